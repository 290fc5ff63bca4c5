"""Running a method step by step does not change its predictions, and every step is reported."""

import numpy as np
import pytest
import threadpoolctl

from evaluate.fake_methods import TwoEncoders
from zeroshift import OnlineADAPT, TransductiveADAPT, ZeroShot
from zeroshift.evaluate import run_stream, stream_steps
from zeroshift.evaluate.resources import one_blas_thread


def online(clusters, **parameters):
    return OnlineADAPT(clusters.prototypes_for(), logit_scale=clusters.logit_scale, **parameters)


@pytest.mark.parametrize("every", [1, 7, 64, 1000])
@pytest.mark.parametrize(
    "parameters", [{}, {"batch_size": 5}, {"prune": (20, 0.5)}, {"batch_size": 8, "iterations": 3}]
)
def test_smaller_steps_do_not_change_the_predictions(clusters, every, parameters):
    expected = online(clusters, **parameters).adapt(clusters.features)
    done = run_stream(online(clusters, **parameters), clusters.features, every=every)
    # `auto` splits its work by the size of a call, which may change the last digits.
    np.testing.assert_allclose(done.probabilities, expected, rtol=0, atol=1e-12)
    exact = online(clusters, engine="direct", **parameters)
    done = run_stream(exact.clone(), clusters.features, every=every)
    np.testing.assert_array_equal(done.probabilities, exact.adapt(clusters.features))


def test_slices_are_whole_batches_and_cover_every_row_once(clusters):
    steps = list(stream_steps(online(clusters, batch_size=8), clusters.features, every=20))
    assert [(step.start, step.stop) for step in steps] == [
        (0, 24), (24, 48), (48, 72), (72, 96), (96, 120), (120, 144), (144, 150)
    ]  # fmt: skip
    assert all(len(step.probabilities) == step.stop - step.start for step in steps)


def test_a_transductive_method_sees_the_whole_set_at_once(clusters):
    method = TransductiveADAPT(clusters.prototypes_for(), logit_scale=clusters.logit_scale)
    expected = method.clone().adapt(clusters.features)
    (step,) = stream_steps(method, clusters.features, every=10)
    assert (step.start, step.stop) == (0, 150)
    np.testing.assert_array_equal(step.probabilities, expected)


def test_bank_counts_are_current_at_each_step(clusters):
    method, witness = online(clusters, bank_size=4), online(clusters, bank_size=4)
    for step in stream_steps(method, clusters.features, every=10):
        witness.adapt(clusters.features[step.start : step.stop])
        np.testing.assert_array_equal(step.bank_counts, witness.bank_counts)
    history = run_stream(online(clusters, bank_size=4), clusters.features, every=10).bank_history
    assert history.shape == (15, 4)
    assert history[0].sum() < history[-1].sum()


def test_a_method_without_a_bank_has_no_history(clusters):
    class Bankless(ZeroShot):
        name = "bankless"
        bank_counts = None

    done = run_stream(Bankless(clusters.prototypes_for()), clusters.features)
    assert done.bank_history is None


def test_progress_is_reported_of_every_step(clusters):
    seen = []
    done = run_stream(online(clusters), clusters.features, seen.append, every=40)
    assert [step.stop for step in seen] == [40, 80, 120, 150] == done.rows_seen.tolist()
    assert done.seconds == pytest.approx(sum(step.seconds for step in seen))
    assert all(step.seconds > 0 for step in seen)


def test_everything_is_checked_before_anything_is_learned(clusters):
    broken = np.array(clusters.features)
    broken[140] = np.nan
    method = online(clusters)
    with pytest.raises(ValueError, match="row 140 holds NaN"):
        stream_steps(method, broken, every=10)  # at the call, not at the first step
    assert method.n_seen == 0


def test_every_must_be_a_positive_integer(clusters):
    with pytest.raises(ValueError, match="every must be None or an integer of at least 1; got 0"):
        stream_steps(online(clusters), clusters.features, every=0)


def test_torch_features_give_numpy_records(clusters):
    torch = pytest.importorskip("torch")
    features = torch.from_numpy(np.array(clusters.features))
    method = OnlineADAPT(torch.from_numpy(np.array(clusters.prototypes_for())), logit_scale=clusters.logit_scale)
    done = run_stream(method, features)
    assert isinstance(done.probabilities, np.ndarray)
    assert isinstance(done.bank_history, np.ndarray)
    np.testing.assert_allclose(done.probabilities, online(clusters).adapt(clusters.features), atol=1e-9)


def test_blas_threads_come_back():

    def threads():
        return [lib["num_threads"] for lib in threadpoolctl.threadpool_info() if lib["user_api"] == "blas"]

    before = threads()
    with one_blas_thread():
        assert set(threads()) == {1}
    assert threads() == before


def test_the_second_encoder_is_given_row_by_row(clusters):
    method, second = TwoEncoders(clusters.prototypes_for()), np.eye(150, 7)[np.arange(150) % 7]
    run_stream(method, clusters.features, every=40, second=second)
    assert [len(rows) for rows in method.seconds] == [40, 40, 40, 30]
    np.testing.assert_array_equal(np.concatenate(method.seconds), second)
    order, method = np.array([5, 149, 0]), TwoEncoders(clusters.prototypes_for())
    list(stream_steps(method, clusters.features, rows=order, every=2, second=second))
    np.testing.assert_array_equal(np.concatenate(method.seconds), second[order])


def test_a_method_with_one_encoder_is_given_none(clusters):
    method = TwoEncoders(clusters.prototypes_for())
    run_stream(method, clusters.features)
    assert set(map(type, method.seconds)) == {type(None)}


def test_a_wrong_second_encoder_is_refused_before_anything_is_learned(clusters):
    method, second = TwoEncoders(clusters.prototypes_for()), np.eye(150)
    with pytest.raises(ValueError, match=r"second has 149 rows, but features has 150.*Fix: encode the same images"):
        stream_steps(method, clusters.features, second=second[:149])
    with pytest.raises(ValueError, match=r"second row 3.*length 2"):
        stream_steps(method, clusters.features, second=second * np.where(np.arange(150) == 3, 2, 1)[:, None])
    with pytest.raises(TypeError, match=r"adapt_online takes no second encoder.*Fix: second=None"):
        stream_steps(online(clusters), clusters.features, second=second)
    assert method.n_seen == 0

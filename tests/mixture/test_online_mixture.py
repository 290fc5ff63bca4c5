"""The online mixture against the independent transcription of its equations."""

from __future__ import annotations

import numpy as np
import pytest

from mixture import transcription
from mixture.sets import ALL_STREAMS, QUICK_STREAMS, class_sorted, few_classes, first_rows, make_support, pack_stream
from zeroshift import OnlineAnchoredMixture
from zeroshift.testing import make_problem

TOLERANCE = 1e-9
STREAMS = {"mixed": lambda: first_rows("medium"), "sorted by class": class_sorted, "a third": few_classes}


def assert_equals_transcription(stream, tolerance=TOLERANCE, **parameters):
    scale = stream.logit_scale
    method = OnlineAnchoredMixture(stream.prototypes, logit_scale=scale, **parameters)
    run = transcription.online(stream.features, stream.prototypes, logit_scale=scale, **parameters)
    np.testing.assert_allclose(method.adapt(stream.features), run.probabilities, rtol=0, atol=tolerance)
    return method, run


@pytest.mark.parametrize("staleness", [0.0, 0.03125])
@pytest.mark.parametrize("name", QUICK_STREAMS)
@pytest.mark.sampled(3)
def test_generated_streams(name, staleness):
    assert_equals_transcription(QUICK_STREAMS[name](), staleness=staleness)


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [0.0, 0.03125])
@pytest.mark.parametrize("name", ALL_STREAMS)
def test_whole_streams(name, staleness):
    assert_equals_transcription(ALL_STREAMS[name](), staleness=staleness)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cifar10", "fmnist"])
def test_rows_of_packs(name):
    assert_equals_transcription(pack_stream(350, name))


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize(
    "parameters",
    [
        {"anchor_count": 3.0, "cautious_anchor_count": 0.5},
        {"spread_range": (1.1, 1.2)},
        {"shrinkage": 0.1, "shrinkage_samples": 0.0},
        {"shrinkage": 1.0},
        {"reliability_samples": 0.0, "weight": 0.2},
        {"first_samples": 1},
        {"first_samples": 40},
        {"occurring": (0.9, 1.0), "varying": (0.8, 1.0)},
        {"occurring": (0.5, 0.5), "varying": (0.5, 0.5)},
        {"order": "none"},
        {"relative_samples": 1.0},
        {"balance": 0.0},
        {"balance": 1.0, "calm": 1.0},
        {"calm": 0.0},
        {"staleness": 0.5},
    ],
    ids=str,
)
@pytest.mark.sampled(3)
def test_every_parameter(parameters, name):
    assert_equals_transcription(STREAMS[name](), **parameters)


@pytest.mark.parametrize("staleness", [0.0, 0.03125])
@pytest.mark.parametrize("per_class", [1, 3], ids=["few labelled", "labelled enough to start with"])
def test_labelled_samples(per_class, staleness):
    for stream in (first_rows("small"), class_sorted()):
        assert_equals_transcription(stream, support=make_support(stream, per_class), staleness=staleness)


@pytest.mark.parametrize("name", ["sorted by class", "a third"])
def test_public_attributes_equal_the_transcription(name):
    stream = STREAMS[name]()
    support = make_support(stream)
    method, run = assert_equals_transcription(stream, support=support, staleness=0.0)
    settings = transcription.Settings(logit_scale=stream.logit_scale)
    labelled = transcription.one_hot(support, len(stream.prototypes))
    found = run.found
    np.testing.assert_allclose(method.counts, found.counts, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(method.means, found.first.means, rtol=0, atol=TOLERANCE)
    precision = found.first.precision
    np.testing.assert_allclose(method.precision_matrix, precision, rtol=1e-9, atol=TOLERANCE * precision.max())
    read = (method.reliability, method.caution, method.few_classes, method.temperature, method.stay)
    expected = (found.rho, found.caution, found.few, found.tau, run.memory.chain.stay())
    assert read == pytest.approx(expected, abs=TOLERANCE)
    assert found.caution > 0.5
    assert method.second_weight == 0.0
    others = make_problem(*stream.prototypes.shape, 30, seed=54).features
    expected = transcription.predict(others, run.memory, labelled, stream.prototypes, settings)
    np.testing.assert_allclose(method.predict(others), expected, rtol=0, atol=TOLERANCE)


def test_the_first_answers_are_zero_shot():
    stream = first_rows("small")
    method = OnlineAnchoredMixture(stream.prototypes, logit_scale=stream.logit_scale)
    method.adapt(stream.features[:7])
    np.testing.assert_array_equal(method.means, stream.prototypes)
    assert not method.precision_matrix.any()
    assert (method.reliability, method.caution, method.temperature, method.few_classes) == (0.0, 0.0, 1.0, 0.0)
    method.adapt(stream.features[7:8])
    assert method.precision_matrix.any()
    assert method.reliability == 8 / (8 + 32 * 5)


def test_a_sample_is_predicted_before_it_is_counted():
    """The statistics that predict a sample do not contain it."""
    stream = first_rows("small")
    method = OnlineAnchoredMixture(stream.prototypes, logit_scale=stream.logit_scale, staleness=0.0)
    method.adapt(stream.features[:50])
    before = method.predict(stream.features[50:51])
    np.testing.assert_allclose(method.adapt(stream.features[50:51]), before, rtol=0, atol=1e-14)
    assert np.abs(method.predict(stream.features[50:51]) - before).max() > 1e-6


def test_statistics_are_updated_after_a_share_of_new_samples():
    """From the 64th sample on, every second sample updates the statistics."""
    stream = first_rows("small")
    method = OnlineAnchoredMixture(stream.prototypes, logit_scale=stream.logit_scale)
    method.adapt(stream.features[:64])
    means = method.means
    method.adapt(stream.features[64:65])
    np.testing.assert_array_equal(method.means, means)
    assert method.counts.sum() == pytest.approx(65)
    method.adapt(stream.features[65:66])
    assert np.abs(method.means - means).max() > 1e-6


@pytest.mark.parametrize("name", STREAMS)
def test_predict_changes_nothing(name):
    stream = STREAMS[name]()
    one, other = (OnlineAnchoredMixture(stream.prototypes, logit_scale=stream.logit_scale) for _ in range(2))
    answers = []
    for rows in np.array_split(stream.features, 5):
        one.predict(stream.features)
        answers.append(one.adapt(rows))
        one.predict(rows[0])
    np.testing.assert_array_equal(
        np.concatenate(answers), np.concatenate([other.adapt(rows) for rows in np.array_split(stream.features, 5)])
    )
    (arrays, values), (expected, other_values) = one._state(), other._state()
    assert values == other_values
    for name, array in expected.items():
        np.testing.assert_array_equal(arrays[name], array, err_msg=name)


@pytest.mark.parametrize("name", STREAMS)
def test_numpy_and_torch_agree(name):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    stream = STREAMS[name]()
    plain = OnlineAnchoredMixture(stream.prototypes, logit_scale=stream.logit_scale)
    tensors = OnlineAnchoredMixture(torch.from_numpy(stream.prototypes), logit_scale=stream.logit_scale)
    found = tensors.adapt(torch.from_numpy(stream.features))
    assert isinstance(found, torch.Tensor)
    np.testing.assert_allclose(found.numpy(), plain.adapt(stream.features), rtol=0, atol=TOLERANCE)
    assert tensors.stay == pytest.approx(plain.stay, abs=TOLERANCE)

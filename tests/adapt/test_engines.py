"""Every engine computes the numbers of `direct`, for all streams, settings and libraries."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from engine_comparison import (
    assert_same_bank,
    assert_same_scores,
    assert_same_statistics,
    get_stream,
    make_method,
    run_direct,
    treat_as_large,
)
from streams import ADVERSARIAL, STREAMS
from zeroshift import OnlineADAPT
from zeroshift.adapt.engines import ENGINES, direct, make_engine, reason_for_direct
from zeroshift.adapt.engines.base import DRIFT_TOLERANCE
from zeroshift.adapt.engines.direct import RecomputingEngine
from zeroshift.adapt.engines.precision_primal import CHECK_EVERY, PrimalPrecision
from zeroshift.testing import make_problem

FAST = ["streaming", "replay"]
SMALL_BANK = {"bank_size": 6, "alpha": 1.0}


@pytest.fixture(params=["like large problems", "with shortcuts"])
def size(request, monkeypatch):
    """Small problems have shortcuts; they must be right with and without them."""
    if request.param == "like large problems":
        treat_as_large(monkeypatch)
    return request.param


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="torch is not installed")


def assert_equals_direct(name, engine, calls=(), rows=None, **parameters):
    """Compare on a stream, or its first rows, split into calls at the given rows."""
    stream = get_stream(name)
    expected, reference = run_direct(name, rows, **parameters)
    method = make_method(stream, engine, **parameters)
    parts = np.split(stream.features[:rows], list(calls))
    assert_same_scores(np.concatenate([method.adapt_scores(part) for part in parts if len(part)]), expected)
    assert_same_bank(method, reference)
    assert_same_statistics(method, reference)
    probes = stream.features[:: max(1, len(stream.features) // 20)]
    assert_same_scores(method.predict_scores(probes), reference.predict_scores(probes))
    return method


@cache
def scores_of_4500_rows(engine):
    problem = make_problem(4, 6, 4500, seed=9)
    parameters = {"logit_scale": 20.0, "batch_size": 3, "bank_size": 4, "prune": (2000, 0.5)}
    return OnlineADAPT(problem.prototypes, engine=engine, **parameters).adapt_scores(problem.features)


class TestStreams:
    @pytest.mark.parametrize("engine", ["streaming", pytest.param("replay", marks=pytest.mark.slow)])
    @pytest.mark.parametrize("name", STREAMS)
    def test_ordinary_streams(self, name, engine, large):
        method = assert_equals_direct(name, engine)
        if engine == "streaming" and name not in ("more dimensions than samples", "on the prototypes"):
            assert method.diagnostics.updates > 0, "the stream never used the maintained inverse"

    @pytest.mark.parametrize("name", STREAMS)
    @pytest.mark.sampled(3)
    def test_ordinary_streams_in_calls_of_different_sizes(self, name, large):
        """`auto` alternates between streaming and replay."""
        assert_equals_direct(name, "auto", calls=[1, 9, 30, 31], bank_size=3)

    @pytest.mark.parametrize(
        ("parameters", "engine"),
        [
            pytest.param({}, "streaming", id="streaming"),
            pytest.param({}, "replay", marks=pytest.mark.slow, id="replay"),
            pytest.param(SMALL_BANK, "streaming", marks=pytest.mark.slow, id="streaming-small bank"),
            pytest.param(SMALL_BANK, "replay", id="replay-small bank"),
        ],
    )
    @pytest.mark.parametrize("name", ADVERSARIAL)
    @pytest.mark.sampled(2)
    def test_adversarial_streams(self, name, parameters, engine, large):
        assert_equals_direct(name, engine, calls=[2, 3, 50], **parameters)

    @pytest.mark.parametrize("name", ADVERSARIAL)
    @pytest.mark.sampled(2)
    def test_adversarial_streams_with_shortcuts(self, name):
        """Small problems keep their shortcuts."""
        assert_equals_direct(name, "auto", calls=[2, 3, 50])

    @pytest.mark.parametrize("engine", ["auto", *FAST])
    @pytest.mark.parametrize("name", ["negative cosines", "more dimensions than samples"])
    def test_in_torch(self, name, engine, torch, large):
        stream = get_stream(name)
        expected, reference = run_direct(name, bank_size=3)
        method = make_method(stream._replace(prototypes=torch.tensor(stream.prototypes)), engine, bank_size=3)
        halves = np.split(stream.features, [40])
        answers = [method.adapt_scores(torch.tensor(half)) for half in halves if len(half)]
        assert all(isinstance(answer, torch.Tensor) for answer in answers)
        assert_same_scores(torch.cat(answers), expected)
        assert_same_bank(method, reference)
        assert_same_statistics(method, reference)


class TestSettings:
    @pytest.mark.parametrize("engine", FAST)
    @pytest.mark.parametrize(
        "parameters",
        [
            {"update_mean": False},
            {"update_covariance": False},
            {"update_mean": False, "update_covariance": False},
            {"use_bank_term": False},
            {"update_mean": False, "use_bank_term": False, "bank_size": 3},
            {"alpha": 0.0},
            {"alpha": 1.0},
            {"alpha": 0.5, "bank_size": 1},
            {"bank_size": 1, "update_mean": False},
            {"beta": 0.0, "bank_size": 3},
            {"beta": 2.0},
            {"batch_size": 7},
            {"batch_size": 64, "bank_size": 3},
            {"batch_size": 1000, "bank_size": 3},
            {"prune": (20, 0.4), "bank_size": 5},
            {"prune": (7, 1.0)},
            {"prune": (60, 0.9)},
            {"prune": (10, 0.3), "batch_size": 4, "bank_size": 4},
        ],
        ids=str,
    )
    def test_every_setting(self, parameters, engine, large):
        size = parameters.get("batch_size", 1)
        assert_equals_direct("small", engine, calls=[size, 12 * size], rows=130, **parameters)

    @pytest.mark.parametrize("engine", FAST)
    @pytest.mark.parametrize(
        "parameters",
        [
            {},
            {"alpha": 1.0, "bank_size": 1},
            {"beta": 2.0, "batch_size": 7},
            {"prune": (40, 1.0)},
            {"update_mean": False},
        ],
        ids=str,
    )
    def test_every_setting_with_labelled_samples(self, parameters, engine, large):
        assert_equals_direct("negative cosines", engine, calls=[7, 84], rows=130, support=True, **parameters)

    @pytest.mark.parametrize("engine", ["auto", *FAST])
    def test_a_batch_larger_than_a_block(self, engine):
        """2200 samples learned together, before any of them is predicted."""
        problem = make_problem(4, 6, 2300, seed=8)
        # Sorted by confidence, so that the last rows of the batch enter too.
        logits = np.sort(problem.features @ problem.prototypes.T, axis=1)
        problem = problem._replace(features=problem.features[np.argsort(logits[:, -1] - logits[:, -2])])
        parameters = {"logit_scale": 20.0, "batch_size": 2200, "bank_size": 2}
        expected = OnlineADAPT(problem.prototypes, engine="direct", **parameters).adapt_scores(problem.features)
        method = OnlineADAPT(problem.prototypes, engine=engine, **parameters)
        assert_same_scores(method.adapt_scores(problem.features), expected)

    @pytest.mark.parametrize("engine", ["auto", *FAST])
    def test_several_blocks(self, engine):
        """More rows than any engine converts together, in batches that do not divide them."""
        assert_same_scores(scores_of_4500_rows(engine), scores_of_4500_rows("direct"))

    @pytest.mark.parametrize("engine", ["auto", *FAST])
    @pytest.mark.parametrize("dtype", ["float32", "float16"])
    def test_half_and_single_precision_features_are_computed_in_float64(self, dtype, engine):
        """Only the answer is rounded to the type of the features."""
        stream = get_stream("small")
        narrow = stream.features.astype(dtype)
        expected = make_method(stream, "direct").adapt_scores(narrow)
        answer = make_method(stream, engine).adapt_scores(narrow)
        assert answer.dtype == expected.dtype
        scale = np.abs(expected).max()
        np.testing.assert_allclose(answer, expected, rtol=0, atol=2 * scale * np.finfo(answer.dtype).eps)
        np.testing.assert_array_equal(answer.argmax(axis=1), expected.argmax(axis=1))

    @pytest.mark.parametrize(
        "parameters",
        [
            {"bank_size": 0},
            {"bank_size": 0, "update_mean": False, "use_bank_term": False},
            {"iterations": 20},
            {"iterations": 3, "beta": 2.0, "covariance": "per_class"},
            {"covariance": "per_class"},
            {"covariance": "per_class", "bank_size": 2, "prune": (20, 0.4)},
        ],
        ids=str,
    )
    def test_auto_computes_as_direct_where_only_that_can(self, parameters):
        stream = get_stream("small")
        expected, reference = run_direct("small", 130, **parameters)
        method = make_method(stream, "auto", **parameters)
        parts = np.split(stream.features[:130], [1, 40])
        assert_same_scores(np.concatenate([method.adapt_scores(part) for part in parts]), expected)
        assert_same_statistics(method, reference)
        assert type(method._engine) is RecomputingEngine
        assert reason_for_direct(method.bank_size, method.iterations, method.covariance)
        assert reason_for_direct(16, 1, "shared") is None

    def test_covariances_of_unchanged_classes_are_not_inverted_again(self, monkeypatch):
        stream, inverted = get_stream("small"), []
        inner = direct.bounded_precision
        monkeypatch.setattr(direct, "bounded_precision", lambda *given: inverted.append(given) or inner(*given))
        method = make_method(stream, "auto", covariance="per_class")
        method.adapt(stream.features[:60])
        banks_changed = int(method._evidence.counts.sum())  # at least: an entry can also replace another
        n_classes = len(stream.prototypes)
        assert banks_changed <= len(inverted) <= 60 + n_classes

    def test_make_engine_returns_the_named_engine(self):
        method = OnlineADAPT(np.eye(3, 8))
        made = {
            name: type(
                make_engine(name, method._wide_prototypes, 100.0, 1, method._settings, method._evidence),
            )
            for name in ("auto", *ENGINES)
        }
        assert {name: made[name] for name in ENGINES} == ENGINES
        assert len(set(made.values())) == 4


@pytest.mark.usefixtures("large")
class TestDiagnostics:
    """The maintained inverse is checked, and updates and factorisations are counted."""

    def run_streaming(self, samples, **geometry):
        problem = make_problem(4, 12, 3000, seed=51, **geometry)
        # Sorted by confidence: nearly every sample enters, so that the inverse is updated often.
        logits = np.sort(problem.features @ problem.prototypes.T, axis=1)
        order = np.argsort(logits[:, -1] - logits[:, -2])
        method = OnlineADAPT(problem.prototypes, logit_scale=10.0, engine="streaming", bank_size=60)
        reference = OnlineADAPT(problem.prototypes, logit_scale=10.0, engine="direct", bank_size=60)
        features = problem.features[order]
        answers = method.adapt_scores(features[:samples])
        return method, reference, features, answers

    @pytest.mark.slow
    def test_a_long_stream_stays_within_tolerance(self, monkeypatch):
        monkeypatch.setattr("zeroshift.adapt.engines.precision_primal.MAX_UPDATES", 2 * CHECK_EVERY)
        method, reference, features, answers = self.run_streaming(2600)
        assert_same_scores(answers, reference.adapt_scores(features[:2600]))
        diagnostics = method.diagnostics
        assert diagnostics.updates > 1500
        assert diagnostics.checks >= diagnostics.updates // CHECK_EVERY - diagnostics.factorisations
        assert diagnostics.checks > 10
        assert 0 < diagnostics.largest_drift < DRIFT_TOLERANCE / 100
        assert diagnostics.drift_factorisations == 0
        assert diagnostics.scheduled_factorisations > 0
        assert diagnostics.ridge_factorisations > 0
        with_reason = (
            diagnostics.ridge_factorisations + diagnostics.scheduled_factorisations + diagnostics.scatter_rebuilds
        )
        # The first factorisation belongs to the change from the dual form.
        assert diagnostics.factorisations == with_reason + 1

    def test_a_corrupt_inverse_is_detected_and_recomputed(self):
        method, reference, features, _ = self.run_streaming(1000)
        reference.adapt(features[:1000])
        assert isinstance(method._engine._precision, PrimalPrecision)
        before = method.diagnostics
        method._engine._precision.contraction *= 1 + 1e-5
        row = 1000
        while method.diagnostics.drift_factorisations == 0:
            updates = method.diagnostics.updates
            wrong = method.adapt_scores(features[row : row + 1])
            expected = reference.adapt_scores(features[row : row + 1])
            assert method.diagnostics.updates >= updates
            row += 1
            assert method.diagnostics.updates - before.updates <= CHECK_EVERY, "no check was made"
        assert abs(wrong - expected).max() > 1e-6, "the corruption had no effect"
        after = method.diagnostics
        assert after.largest_drift > DRIFT_TOLERANCE
        assert after.factorisations == before.factorisations + 1
        rest = features[row : row + 300]
        assert_same_scores(method.adapt_scores(rest), reference.adapt_scores(rest))

    def test_the_scatter_is_recomputed_when_little_is_left_of_it(self):
        method = assert_equals_direct("spread shrinking to nearly nothing", "streaming", bank_size=6, alpha=1.0)
        assert method.diagnostics.scatter_rebuilds > 0

    def test_diagnostics_are_a_copy(self):
        method = make_method(get_stream("small"), "streaming")
        method.diagnostics.updates = 77
        assert method.diagnostics.updates == 0

    def test_direct_maintains_nothing(self):
        _, method = run_direct("small")
        assert method.diagnostics.updates == method.diagnostics.factorisations == method.diagnostics.checks == 0


class TestPredictChangesNothing:
    @pytest.mark.parametrize("engine", ["auto", "direct", *FAST])
    @pytest.mark.parametrize("rows", [0, 5, 60, 61])
    @pytest.mark.parametrize("parameters", [{"prune": (60, 0.9)}], ids=str)
    def test_predict_changes_no_bit_of_the_state(self, engine, rows, parameters, tmp_path, large):
        stream = get_stream("small")
        method = make_method(stream, engine, **parameters)
        if rows:
            method.adapt(stream.features[:rows])
        method.save(tmp_path / "before")
        diagnostics = method.diagnostics
        method.predict(stream.features)
        method.predict(stream.features[0])
        _ = method.means, method.precision_matrix, method.bank_counts
        method.save(tmp_path / "after")
        assert (tmp_path / "after").read_bytes() == (tmp_path / "before").read_bytes()
        assert method.diagnostics == diagnostics

    @pytest.mark.parametrize("engine", ["auto", *FAST])
    def test_predict_does_not_change_later_answers(self, engine, size):
        stream = get_stream("small")
        queried, untouched = (make_method(stream, engine) for _ in range(2))
        for part in np.split(stream.features[:110], [3, 10, 40, 41]):
            queried.predict(stream.features[:7])
            np.testing.assert_array_equal(queried.adapt_scores(part), untouched.adapt_scores(part))


def test_a_call_that_starts_with_a_bank_without_spread(large):
    """Rows before the first insertion are scored with the present statistics, here the identity."""
    features, prototypes, _ = make_problem(12, 16, 120, seed=71)
    start = np.repeat(prototypes[:10], 2, axis=0)
    again = np.concatenate([start, np.repeat(prototypes[:10], 3, axis=0), features])
    expected = OnlineADAPT(prototypes, logit_scale=20.0, bank_size=2, engine="direct")
    method = OnlineADAPT(prototypes, logit_scale=20.0, bank_size=2)
    for rows in (again[:20], again[20:]):
        np.testing.assert_allclose(method.adapt(rows), expected.adapt(rows), rtol=0, atol=1e-6)

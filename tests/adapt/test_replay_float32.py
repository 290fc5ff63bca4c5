"""Replay with float32 products: banks as in float64, probabilities within 1e-4 of `direct`."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from engine_comparison import assert_same_bank, assert_same_statistics, get_stream, make_method, treat_as_large
from streams import ADVERSARIAL, STREAMS
from zeroshift import OnlineADAPT
from zeroshift.adapt.engines import replay, replay_blocks, streaming
from zeroshift.benchmarks.problems import GEOMETRIES, clip_like
from zeroshift.zero_shot import softmax

NEAR_TIE = 2e-4
"""Two best probabilities this close may be in either order."""


@pytest.fixture
def as_large(monkeypatch):
    treat_as_large(monkeypatch)


def single(features):
    """Unit vectors that float32 can represent."""
    return np.ascontiguousarray(features, dtype=np.float32)


def assert_promised(scores, expected):
    scores, expected = np.asarray(scores, np.float64), np.asarray(expected, np.float64)
    assert np.isfinite(scores).all()
    answer, truth = softmax(scores), softmax(expected)
    np.testing.assert_allclose(answer, truth, rtol=0, atol=1e-4)
    best = np.sort(truth, axis=1)
    decided = best[:, -1] - best[:, -2] > NEAR_TIE if truth.shape[1] > 1 else np.full(len(truth), True)
    np.testing.assert_array_equal(answer.argmax(axis=1)[decided], truth.argmax(axis=1)[decided])


def compare(stream, rows=None, **parameters):
    """Replay with float32 features against `direct` with the same features in float64."""
    features = single(stream.features[:rows])
    method, direct = make_method(stream, "replay", **parameters), make_method(stream, "direct", **parameters)
    scores = method.adapt_scores(features)
    assert scores.dtype == np.float32
    assert_promised(scores, direct.adapt_scores(features.astype(np.float64)))
    assert_same_bank(method, direct)
    assert_same_statistics(method, direct)
    return method


@pytest.mark.usefixtures("as_large")
@pytest.mark.parametrize("name", [*STREAMS, *ADVERSARIAL])
@pytest.mark.sampled(3)
def test_streams(name):
    compare(get_stream(name))


@pytest.mark.usefixtures("as_large")
@pytest.mark.parametrize(
    "parameters",
    [
        {"batch_size": 7},
        {"prune": (30, 0.5)},
        {"support": True},
        {"use_bank_term": False},
        {"update_mean": False},
        {"update_covariance": False},
        {"alpha": 1.0},
        {"beta": 1.5},
        {"bank_size": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["small", "medium", "negative cosines"])
@pytest.mark.sampled(3)
def test_settings(name, parameters):
    compare(get_stream(name), **parameters)


@pytest.mark.usefixtures("as_large")
@pytest.mark.parametrize("rows", [1, 2, 9, 33])
def test_first_samples(rows):
    compare(get_stream("medium"), rows)


@cache
def larger_problem(geometry):
    """Enough classes and dimensions for float32 products in blocks; and scores of `direct`, and the method after it."""
    problem = clip_like(60, 128, 900, geometry=geometry)
    direct = OnlineADAPT(problem.prototypes, logit_scale=problem.logit_scale, engine="direct", bank_size=6)
    return problem, direct.adapt_scores(problem.features.astype(np.float64)), direct


@pytest.mark.parametrize("geometry", GEOMETRIES)
class TestLargerProblem:
    def method(self, problem, **parameters):
        parameters = {"engine": "replay", "bank_size": 6, **parameters}
        return OnlineADAPT(problem.prototypes, logit_scale=problem.logit_scale, **parameters)

    def test_probabilities_and_bank(self, geometry):
        problem, expected, direct = larger_problem(geometry)
        method = self.method(problem)
        assert_promised(method.adapt_scores(problem.features), expected)
        assert_same_bank(method, direct)
        found = method.diagnostics
        assert found.products == "float32"
        assert found.float32_checks == 1
        assert found.largest_float32_error < 1e-4

    def test_in_several_calls_and_resumed_from_a_file(self, geometry, tmp_path):
        problem, expected, direct = larger_problem(geometry)
        method = self.method(problem)
        scores = [method.adapt_scores(problem.features[:400])]
        method.save(tmp_path / "state.safetensors")
        for engine in ("replay", "streaming"):
            resumed = OnlineADAPT.load(tmp_path / "state.safetensors", engine=engine)
            rest = [resumed.adapt_scores(problem.features[400:700]), resumed.adapt_scores(problem.features[700:])]
            assert_promised(np.concatenate([*scores, *rest]), expected)
            assert_same_bank(resumed, direct)

    def test_float64_is_used_where_selected(self, geometry):
        problem, expected, _ = larger_problem(geometry)
        method = self.method(problem, precision="float64")
        scores = method.adapt_scores(problem.features)
        assert method.diagnostics.products == "float64"
        np.testing.assert_allclose(scores, expected, rtol=2e-7, atol=2e-6)

    def test_float64_if_the_rounding_error_could_matter(self, geometry, monkeypatch):
        problem, expected, _ = larger_problem(geometry)
        monkeypatch.setattr(replay_blocks, "ROUNDING_GROWTH", 1e9)
        used = []
        solve_block = replay.solve_block

        def spy(problem, dtype, threads):
            used.append(dtype)
            return solve_block(problem, dtype, threads)

        monkeypatch.setattr(replay, "solve_block", spy)
        method = self.method(problem)
        assert_promised(method.adapt_scores(problem.features), expected)
        assert method.diagnostics.float64_fallbacks > 0
        assert used[0] == np.float32
        assert set(used[1:]) == {np.float64}

    def test_a_failed_check_selects_float64_until_a_reset(self, geometry, monkeypatch):
        problem = larger_problem(geometry)[0]
        monkeypatch.setattr(streaming, "FLOAT32_TOLERANCE", -1.0)
        monkeypatch.setattr(replay_blocks, "ROUNDING_GROWTH", -1e9)
        method = self.method(problem)
        method.adapt(problem.features[:400])
        assert method.diagnostics.float64_fallbacks == 1
        method.adapt(problem.features[400:])
        assert method.diagnostics.products == "float64"
        method.reset()
        method.adapt(problem.features[:400])
        assert method.diagnostics.products == "float32"

    def test_torch_computes_the_same(self, geometry):
        problem, expected, direct = larger_problem(geometry)
        torch = pytest.importorskip("torch")
        method = OnlineADAPT(
            torch.tensor(problem.prototypes), logit_scale=problem.logit_scale, engine="replay", bank_size=6
        )
        assert_promised(method.adapt_scores(torch.tensor(problem.features)).numpy(), expected)
        assert_same_bank(method, direct)


def test_little_spread_is_computed_in_float64():
    """Entries so close to their means that scores are in the ten thousands, where float32 rounds to hundredths."""
    rng = np.random.default_rng(5)
    prototypes = rng.normal(size=(20, 64))
    prototypes /= np.linalg.norm(prototypes, axis=1, keepdims=True)
    features = prototypes[np.arange(600) % 20] + 0.006 * rng.normal(size=(600, 64))
    features = single(features / np.linalg.norm(features, axis=1, keepdims=True))
    method = OnlineADAPT(prototypes, logit_scale=20.0, engine="replay", bank_size=30, alpha=1.0)
    direct = OnlineADAPT(prototypes, logit_scale=20.0, engine="direct", bank_size=30, alpha=1.0)
    for rows in (features[:300], features[300:]):
        assert_promised(method.adapt_scores(rows), direct.adapt_scores(rows.astype(np.float64)))
    assert method.diagnostics.float64_fallbacks > 0

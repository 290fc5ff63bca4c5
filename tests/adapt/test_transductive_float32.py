"""Transductive ADAPT with float32 products, compared with float64 products: same banks, same answers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams import STREAMS
from zeroshift import TransductiveADAPT, linalg
from zeroshift.adapt import transductive, transductive_float32
from zeroshift.adapt.transductive_float32 import Candidates, NarrowFusion
from zeroshift.adapt.transductive_gpu import GpuFusion
from zeroshift.arrays import Backend, to_numpy
from zeroshift.benchmarks.problems import clip_like
from zeroshift.precision import FLOAT32_TOLERANCE
from zeroshift.testing import make_problem
from zeroshift.zero_shot import softmax

NEAR_TIE = 2 * FLOAT32_TOLERANCE

LIBRARIES = ["numpy", "torch"]


def in_library(array, library):
    if library == "numpy":
        return array
    return pytest.importorskip("torch", reason="torch is not installed").asarray(array)


def assert_same_answers(one, other):
    one, other = to_numpy(one).astype(np.float64), to_numpy(other).astype(np.float64)
    assert np.abs(one - other).max() <= FLOAT32_TOLERANCE
    highest = np.sort(other, axis=1)[:, ::-1]
    clear = highest[:, 0] - highest[:, 1] > NEAR_TIE if other.shape[1] > 1 else np.ones(len(other), dtype=bool)
    np.testing.assert_array_equal(one.argmax(axis=1)[clear], other.argmax(axis=1)[clear])


def assert_same_bank(one, other):
    """The same samples in the same slots, with the weights of float64."""
    np.testing.assert_array_equal(to_numpy(one._evidence.features), to_numpy(other._evidence.features))
    np.testing.assert_allclose(to_numpy(one._evidence.weights), to_numpy(other._evidence.weights), rtol=0, atol=1e-12)


def adapted(features, prototypes, scale, **parameters):
    """(with float32 products, with float64 products), adapted; their answers are compared."""
    narrow, wide = (
        TransductiveADAPT(prototypes, logit_scale=scale, precision=precision, **parameters)
        for precision in ("auto", "float64")
    )
    assert_same_answers(narrow.adapt(features), wide.adapt(features))
    assert_same_bank(narrow, wide)
    assert narrow.diagnostics.products == "float32"
    assert wide.diagnostics.products == "float64"
    assert_same_answers(narrow.predict(features), wide.predict(features))
    return narrow, wide


def assert_close_scores(one, other, tolerance=1e-3):
    one, other = to_numpy(one).astype(np.float64), to_numpy(other).astype(np.float64)
    assert (np.abs(one - other) / np.maximum(1.0, np.abs(other))).max() < tolerance


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", STREAMS)
def test_every_set(name, library):
    stream = STREAMS[name]()
    features = in_library(stream.features.astype(np.float32), library)
    prototypes = in_library(stream.prototypes.astype(np.float32), library)
    narrow, wide = adapted(features, prototypes, stream.logit_scale, chunk_size=37)
    np.testing.assert_allclose(to_numpy(narrow.means), to_numpy(wide.means), rtol=0, atol=1e-5)
    assert_close_scores(narrow.adapt_scores(features), wide.adapt_scores(features))
    assert_close_scores(narrow.predict_scores(features), wide.predict_scores(features))


@pytest.mark.parametrize("geometry", ["clip_like", "clustered"])
@pytest.mark.parametrize("size", [(10, 128, 800), (120, 64, 2500), (300, 128, 1500)], ids=str)
def test_both_geometries(geometry, size):
    problem = clip_like(*size, geometry=geometry)
    narrow, wide = adapted(problem.features, problem.prototypes, problem.logit_scale)
    assert_close_scores(narrow.adapt_scores(problem.features), wide.adapt_scores(problem.features))


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Treats torch on the CPU as a GPU without tensor cores."""
    monkeypatch.setattr(Backend, "on_gpu", property(lambda backend: backend.library == "torch"))
    monkeypatch.setattr(linalg, "_multiplies_halves", lambda device: False)


@pytest.mark.parametrize("name", STREAMS)
def test_gpu_every_set(as_on_a_gpu, name):
    """The operations of a GPU, on a CPU; benchmarks/cuda_engines.py and cuda_parity.py use a real one."""
    stream = STREAMS[name]()
    features = in_library(stream.features.astype(np.float32), "torch")
    prototypes = in_library(stream.prototypes.astype(np.float32), "torch")
    narrow, wide = adapted(features, prototypes, stream.logit_scale, chunk_size=37)
    np.testing.assert_allclose(to_numpy(narrow.means), to_numpy(wide.means), rtol=0, atol=1e-5)
    assert_close_scores(narrow.adapt_scores(features), wide.adapt_scores(features))
    assert_close_scores(narrow.predict_scores(features), wide.predict_scores(features))


@pytest.mark.parametrize("few", [0, 1024], ids=["too many candidates", "few candidates"])
def test_gpu_whole_set_in_one_chunk(as_on_a_gpu, monkeypatch, few):
    """The bank is filled without waiting for the number of candidates, unless they are more than expected."""
    monkeypatch.setattr(transductive, "FEW_CANDIDATES", few)
    problem = make_problem(8, 24, 700, seed=6)
    duplicates = np.concatenate([problem.features[:24]] * 30).astype(np.float32)
    selected, most_confident = [], transductive.MostConfident.chosen
    monkeypatch.setattr(
        transductive.MostConfident, "chosen", lambda self: (selected.append(1), most_confident(self))[1]
    )
    narrow, wide = (
        TransductiveADAPT(in_library(problem.prototypes, "torch"), logit_scale=20.0, precision=precision)
        for precision in ("auto", "float64")
    )
    features = in_library(duplicates, "torch")
    answer = narrow.adapt(features)
    assert len(selected) == (few == 0)
    assert_same_answers(answer, wide.adapt(features))
    assert narrow.diagnostics.float32_checks > 0


def test_gpu_failed_check(as_on_a_gpu, monkeypatch):
    """The check comes last: if it fails, all rows are scored again."""
    problem = make_problem(10, 24, 700, seed=7)
    features, prototypes = (in_library(array.astype(np.float32), "torch") for array in problem[:2])
    monkeypatch.setattr(transductive, "FLOAT32_TOLERANCE", -1.0)
    narrow, wide = (
        TransductiveADAPT(prototypes, logit_scale=20.0, precision=precision, chunk_size=50)
        for precision in ("auto", "float64")
    )
    assert_same_answers(narrow.adapt(features), wide.adapt(features))
    assert narrow.diagnostics.float64_fallbacks == 1
    assert narrow.diagnostics.products == "float64"


@pytest.mark.parametrize("cone", [0.0, 0.7, 2.0])
def test_gpu_negative_cosines(as_on_a_gpu, cone):
    problem = make_problem(30, 40, 300, seed=8, cone=cone)
    features, prototypes = (in_library(array.astype(np.float32), "torch") for array in problem[:2])
    narrow, wide = adapted(features, prototypes, 5.0, update_covariance=False, chunk_size=64)
    assert_close_scores(narrow.adapt_scores(features), wide.adapt_scores(features), 1e-5)


def test_gpu_doubtful_rows_are_scored_in_float64(as_on_a_gpu, monkeypatch):
    problem = make_problem(10, 24, 300, seed=7, noise=1.5)
    features, prototypes = (in_library(array.astype(np.float32), "torch") for array in problem[:2])
    of, exact, scored = NarrowFusion.of, GpuFusion.exact, []
    monkeypatch.setattr(NarrowFusion, "of", lambda *parts: replace(of(*parts), error=4e-3))
    monkeypatch.setattr(GpuFusion, "exact", lambda self, x: (scored.append(len(x)), exact(self, x))[1])
    narrow, wide = (
        TransductiveADAPT(prototypes, logit_scale=20.0, precision=precision, chunk_size=50)
        for precision in ("auto", "float64")
    )
    assert_same_answers(narrow.adapt(features), wide.adapt(features))
    assert 0 < sum(scored) < 300
    assert_close_scores(narrow.adapt_scores(features), wide.adapt_scores(features), 1e-5)


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_half_precision(precision):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    problem = make_problem(20, 32, 400, seed=3)
    features = torch.asarray(problem.features).to(getattr(torch, precision))
    adapted(features, torch.asarray(problem.prototypes), 20.0)


def test_float64_features_with_float32_products():
    problem = make_problem(20, 32, 400, seed=4)
    narrow, wide = (
        TransductiveADAPT(problem.prototypes, logit_scale=20.0, precision=precision)
        for precision in ("float32", "auto")
    )
    answer = narrow.adapt(problem.features)
    assert answer.dtype == np.float64
    assert_same_answers(answer, wide.adapt(problem.features))
    assert_same_bank(narrow, wide)
    assert (narrow.diagnostics.products, wide.diagnostics.products) == ("float32", "float64")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"PAIR_SHARE": -1.0},
        {"PAIR_SHARE": 1.0, "PAIRS_PER_CLASS": 10**9},
        {"PAIR_SHARE": 1.0, "PAIRS_PER_CLASS": 0},
        {"PAIR_SHARE": 1.0, "PAIRS_PER_CLASS": 10**9, "GATHERED_NUMBERS": 1, "PARTIAL_SHARE": 2.0},
    ],
    ids=["by cost", "whole bank", "pair by pair", "class by class", "single pairs of single rows"],
)
@pytest.mark.parametrize("cone", [0.0, 0.7, 2.0])
def test_negative_cosines(monkeypatch, changes, cone):
    """Flat scores, so that every class has a probability and most of the bank terms matter."""
    for name, value in changes.items():
        monkeypatch.setattr(transductive_float32, name, value)
    problem = make_problem(30, 40, 300, seed=8, cone=cone)
    features = problem.features.astype(np.float32)
    narrow, wide = adapted(features, problem.prototypes, 5.0, update_covariance=False)
    assert_close_scores(narrow.adapt_scores(features), wide.adapt_scores(features), 1e-5)


def test_what_is_ignored_changes_no_probability():
    problem = clip_like(200, 64, 1500, geometry="clustered")
    method = TransductiveADAPT(problem.prototypes, logit_scale=problem.logit_scale)
    answer, scores = method.adapt(problem.features), method.adapt_scores(problem.features)
    np.testing.assert_allclose(answer, softmax(scores.astype(np.float64)), rtol=0, atol=2e-5)


@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(1, 4), st.booleans(), st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_candidates_contain_the_most_confident(seed, classes, capacity, select_early, parts):
    rng = np.random.default_rng(seed)
    n = 120
    # Few different confidences, so that there are ties.
    true_classes, confidences = rng.integers(0, classes, n), -rng.integers(1, 30, n) / 10.0

    def best(rows):
        order = rows[np.lexsort((rows, -confidences[rows], true_classes[rows]))]
        of_class = true_classes[order]
        order = order[np.arange(len(order)) - np.searchsorted(of_class, of_class) < capacity]
        return true_classes[order], confidences[order], order

    of_parts = [
        Candidates(Backend.of(np.zeros(1)), classes, capacity, 20 if select_early else 10**6, best)
        for _ in range(parts)
    ]
    for start in range(0, n, 10):
        rows = np.arange(start, start + 10)
        error = rng.uniform(0, 0.3, 10)
        found = confidences[rows] + rng.uniform(-1, 1, 10) * error
        unknown = rng.random(10) < 0.1
        error[unknown] = np.inf
        assumed = np.where(unknown, rng.integers(0, classes, 10), true_classes[rows])
        of_parts[start * parts // n].offer(assumed, found - error, found + error, rows)
    candidates = of_parts[0]
    for other in of_parts[1:]:
        candidates.include(other)
    np.testing.assert_array_equal(best(candidates.rows())[2], best(np.arange(n))[2])


def test_many_equal_samples_stay_within_bounds(monkeypatch):
    """Float32 does not separate duplicates: they are selected in float64 whenever too many wait."""
    monkeypatch.setattr(transductive, "PENDING", 40)
    stream = STREAMS["interleaved duplicates"]()
    adapted(stream.features.astype(np.float32), stream.prototypes, stream.logit_scale, chunk_size=16, bank_size=3)


def test_settings_that_need_float64():
    problem = make_problem(6, 16, 120, seed=2)
    features = problem.features.astype(np.float32)
    for parameters in ({"iterations": 2}, {"bank_size": 0}):
        method = TransductiveADAPT(problem.prototypes, logit_scale=20.0, **parameters)
        other = TransductiveADAPT(problem.prototypes, logit_scale=20.0, precision="float64", **parameters)
        np.testing.assert_array_equal(method.adapt(features), other.adapt(features))
        assert method.diagnostics.products == "float64"
        assert method.diagnostics.float64_fallbacks == 0


def test_labelled_support_and_views():
    problem = make_problem(8, 32, 200, seed=5)
    support = (make_problem(8, 32, 9, seed=99).features, np.array([0, 0, 1, 3, 3, 3, 3, 7, 1]))
    adapted(problem.features.astype(np.float32), problem.prototypes, 20.0, support=support)
    views = np.stack([problem.features, np.roll(problem.features, 1, axis=0)], axis=1).astype(np.float32)
    narrow, wide = (
        TransductiveADAPT(problem.prototypes, logit_scale=20.0, view_ratio=1.0, precision=precision)
        for precision in ("auto", "float64")
    )
    assert_same_answers(narrow.adapt_views(views), wide.adapt_views(views))
    assert narrow.diagnostics.products == "float32"


@pytest.mark.parametrize("library", LIBRARIES)
def test_logits_too_large_for_float32(library):
    """The bound on their error is known before the first product."""
    problem = make_problem(6, 16, 200, seed=6)
    features = in_library(problem.features.astype(np.float32), library)
    prototypes = in_library(problem.prototypes, library)
    narrow = TransductiveADAPT(prototypes, logit_scale=1e6)
    wide = TransductiveADAPT(prototypes, logit_scale=1e6, precision="float64")
    np.testing.assert_array_equal(to_numpy(narrow.adapt(features)), to_numpy(wide.adapt(features)))
    assert narrow.diagnostics.products == "float64"
    assert narrow.diagnostics.float64_fallbacks == 1
    assert narrow.diagnostics.float32_checks == 0


def test_scores_too_large_for_float32():
    """Samples close to each other: the precision matrix is large, and so are the scores."""
    rng = np.random.default_rng(0)
    prototypes = rng.normal(size=(40, 256))
    prototypes /= np.linalg.norm(prototypes, axis=1, keepdims=True)
    features = prototypes[np.arange(400) % 40] + 1e-4 * rng.normal(size=(400, 256)) / 16
    features = (features / np.linalg.norm(features, axis=1, keepdims=True)).astype(np.float32)
    narrow = TransductiveADAPT(prototypes, logit_scale=20.0, alpha=0.999)
    wide = TransductiveADAPT(prototypes, logit_scale=20.0, alpha=0.999, precision="float64")
    assert_same_answers(narrow.adapt(features), wide.adapt(features))
    assert_same_bank(narrow, wide)
    assert narrow.diagnostics.products == "float64"
    assert narrow.diagnostics.float64_fallbacks == 1


def test_doubtful_rows_are_scored_in_float64(monkeypatch):
    problem = make_problem(10, 24, 300, seed=7, noise=1.5)
    features = problem.features.astype(np.float32)
    of = NarrowFusion.of
    monkeypatch.setattr(NarrowFusion, "of", lambda *parts: replace(of(*parts), error=4e-3))
    method = TransductiveADAPT(problem.prototypes, logit_scale=20.0)
    method.adapt(features)
    scored = []
    original = TransductiveADAPT._score_again
    monkeypatch.setattr(
        TransductiveADAPT,
        "_score_again",
        lambda self, rows, *rest: (scored.append(rows), original(self, rows, *rest)),
    )
    answer = method.adapt(features)
    rows = np.concatenate(scored)
    assert 0 < len(rows) < 300
    expected = TransductiveADAPT(problem.prototypes, logit_scale=20.0, precision="float64").adapt(features)
    highest = expected.max(axis=1)
    assert set(np.flatnonzero((highest > 0.03) & (highest < 0.97))) <= set(rows.tolist())
    assert_same_answers(answer, expected)


def test_a_failed_check_switches_to_float64_until_reset(monkeypatch):
    problem = make_problem(10, 24, 300, seed=9)
    features = problem.features.astype(np.float32)
    scores = NarrowFusion.scores

    def wrong(self, x, out, spare, *, complete):
        found = scores(self, x, out, spare, complete=complete)
        found[:, 0] += 3.0
        return found

    method = TransductiveADAPT(problem.prototypes, logit_scale=20.0)
    method.adapt(features)
    assert method.diagnostics.float64_fallbacks == 0
    assert method.diagnostics.float32_checks > 0
    assert method.diagnostics.largest_float32_error < FLOAT32_TOLERANCE
    method.reset()
    assert method.diagnostics.float32_checks == 0
    expected = TransductiveADAPT(problem.prototypes, logit_scale=20.0, precision="float64").adapt(features)
    with monkeypatch.context() as patched:
        patched.setattr(NarrowFusion, "scores", wrong)
        assert_same_answers(method.adapt(features), expected)
    found = method.diagnostics
    assert found.products == "float64"
    assert found.float64_fallbacks == 1
    assert found.largest_float32_error > FLOAT32_TOLERANCE
    np.testing.assert_array_equal(method.adapt(features), expected)
    assert method.diagnostics.products == "float64"
    method.reset()
    method.adapt(features)
    assert method.diagnostics.products == "float32"


def test_products_that_torch_may_round_further_are_float64():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    problem = make_problem(6, 16, 100, seed=10)
    features, prototypes = torch.asarray(problem.features).float(), torch.asarray(problem.prototypes)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        method = TransductiveADAPT(prototypes, logit_scale=100.0)
        method.adapt(features)
    finally:
        torch.set_float32_matmul_precision(before)
    assert method.diagnostics.products == "float64"


def test_precision_can_change_when_loading(tmp_path):
    problem = make_problem(6, 16, 100, seed=11)
    features = problem.features.astype(np.float32)
    method = TransductiveADAPT(problem.prototypes, logit_scale=20.0)
    method.adapt(features)
    method.save(tmp_path / "state.safetensors")
    loaded = TransductiveADAPT.load(tmp_path / "state.safetensors", precision="float64")
    assert_same_answers(loaded.predict(features), method.predict(features))
    assert loaded.diagnostics.products == "float64"

"""Mathematics and bookkeeping of the recorded step without a GPU: each graph is replaced by the function it records.

benchmarks/cuda_parity.py and cuda_engines.py check the graphs on a real device.
"""

from __future__ import annotations

import contextlib
import copy

import numpy as np
import pytest

from engine_comparison import treat_as_large
from zeroshift import OnlineADAPT, linalg
from zeroshift.adapt.engines import cuda_graph, replay_gpu
from zeroshift.arrays import Backend
from zeroshift.testing import make_problem

torch = pytest.importorskip("torch", reason="torch is not installed")

SCORES = 1e-6


class FakeGraph:
    """Replaces a CUDA graph: `replay` calls the recorded function."""

    def __init__(self, work):
        self.replay = work


def record(self):
    changing = [*self._arrays.values(), self.confidences, self.next_insertions, self.counts, self.scalars]
    kept = [array.clone() for array in changing]
    self._run()
    for array, before in zip(changing, kept, strict=True):
        array.copy_(before)
    return FakeGraph(self._run)


def lu_without_pivoting(matrix, pivot):
    """LAPACK has none; for symmetric matrices it follows from L D L^T."""
    assert not pivot
    inverse, pivots = linalg.ldl_inverse(matrix.numpy())
    lower = np.linalg.inv(inverse)
    upper = pivots[..., :, None] * np.swapaxes(lower, -1, -2)
    return torch.tensor(np.tril(lower, -1) + np.triu(upper)), None, None


@pytest.fixture
def steps(monkeypatch):
    """Treats torch on the CPU as a GPU. Returns a list with, for each step, whether it was recorded."""
    treat_as_large(monkeypatch)
    monkeypatch.setattr(Backend, "on_gpu", property(lambda backend: backend.library == "torch"))
    monkeypatch.setattr(torch.linalg, "lu_factor_ex", lu_without_pivoting)
    monkeypatch.setattr(linalg, "_multiplies_halves", lambda device: False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)  # the index of a CPU
    monkeypatch.setattr(
        cuda_graph.RecordedStep, "_pinned", lambda self, array: torch.empty(array.shape, dtype=array.dtype)
    )
    monkeypatch.setattr(cuda_graph.RecordedStep, "_record", record)
    monkeypatch.setattr(cuda_graph.RecordedStep, "_aside", lambda self, number: contextlib.nullcontext())
    monkeypatch.setattr(cuda_graph.RecordedStep, "_join", lambda self, number: None)
    recorded = []
    original_step = cuda_graph.RecordedStep.step

    def counted(self, features):
        done = original_step(self, features)
        recorded.append(done)
        return done

    monkeypatch.setattr(cuda_graph.RecordedStep, "step", counted)
    return recorded


def problem():
    return make_problem(12, 20, 300, seed=31)


def adapt_one_by_one(method, rows):
    return np.stack([np.asarray(method.adapt_scores(row)) for row in rows])


@pytest.mark.parametrize(
    "parameters",
    [{}, {"use_bank_term": False}, {"update_mean": False}, {"beta": 2.0, "bank_size": 3}, {"prune": (90, 0.3)}],
    ids=str,
)
@pytest.mark.sampled(2)
def test_recorded_steps_equal_direct(steps, parameters):
    features, prototypes, _ = problem()
    expected = OnlineADAPT(prototypes, logit_scale=20.0, engine="direct", **parameters).adapt_scores(features)
    method = OnlineADAPT(torch.tensor(prototypes), logit_scale=20.0, engine="streaming", **parameters)
    np.testing.assert_allclose(adapt_one_by_one(method, torch.tensor(features)), expected, rtol=0, atol=SCORES)
    assert sum(steps) > 150, "hardly any step was recorded"


@pytest.mark.parametrize("how", ["same object", "loaded", "copied"])
@pytest.mark.parametrize("engine", ["streaming", "auto"])
def test_samples_without_insertion_right_after_a_recording(steps, engine, how, tmp_path):
    features, prototypes, _ = problem()
    method = OnlineADAPT(torch.tensor(prototypes), logit_scale=20.0, engine=engine, bank_size=4)
    method.adapt(torch.tensor(features[:200]))
    method.save(tmp_path / "state.safetensors")
    reference = OnlineADAPT.load(tmp_path / "state.safetensors", library="numpy", engine="direct")
    if how == "loaded":
        method = OnlineADAPT.load(tmp_path / "state.safetensors")
    elif how == "copied":
        method = copy.deepcopy(method)
    counts = reference.bank_counts.copy()
    # Halfway between two classes: less confident than any bank entry.
    uncertain = prototypes[:6] + prototypes[6:12]
    uncertain = uncertain / np.linalg.norm(uncertain, axis=1, keepdims=True)
    rows = np.concatenate([uncertain, features[200:230]])
    expected = reference.adapt_scores(rows[:6])
    np.testing.assert_array_equal(reference.bank_counts, counts)
    expected = np.concatenate([expected, reference.adapt_scores(rows[6:])])
    np.testing.assert_allclose(adapt_one_by_one(method, torch.tensor(rows)), expected, rtol=0, atol=SCORES)
    assert sum(steps) >= 30


def test_alternating_with_replay(steps):
    features, prototypes, _ = problem()
    reference = OnlineADAPT(prototypes, logit_scale=20.0, engine="direct")
    method = OnlineADAPT(torch.tensor(prototypes), logit_scale=20.0)
    for start, stop in ((0, 100), (100, 103), (103, 200), (200, 210), (210, 300)):
        expected = reference.adapt_scores(features[start:stop])
        scores = np.asarray(method.adapt_scores(torch.tensor(features[start:stop])))
        np.testing.assert_allclose(scores, expected, rtol=0, atol=SCORES)
    assert any(steps)


@pytest.mark.parametrize("wrong", ["NaN", "infinite", "too long", "zero"])
def test_rows_that_the_device_refuses_change_nothing(steps, wrong):
    features, prototypes, _ = problem()
    method = OnlineADAPT(torch.tensor(prototypes), logit_scale=20.0)
    twin = OnlineADAPT(torch.tensor(prototypes), logit_scale=20.0)
    rows = torch.tensor(features)
    adapt_one_by_one(method, rows[:100])
    adapt_one_by_one(twin, rows[:100])
    row = rows[100].clone()
    row[3] = {"NaN": float("nan"), "infinite": float("inf"), "too long": 2.0, "zero": 0.0}[wrong]
    if wrong == "zero":
        row.zero_()
    steps.clear()
    with pytest.raises(ValueError, match="features row 0"):
        method.adapt(row)
    assert steps == [False]
    assert method.n_seen == 100
    np.testing.assert_array_equal(adapt_one_by_one(method, rows[100:130]), adapt_one_by_one(twin, rows[100:130]))


def test_answers_have_the_shape_and_precision_of_the_rows(steps):
    features, prototypes, _ = problem()
    method = OnlineADAPT(torch.tensor(prototypes), logit_scale=20.0)
    reference = OnlineADAPT(prototypes, logit_scale=20.0, engine="direct")
    method.adapt(torch.tensor(features[:100]))
    reference.adapt(features[:100])
    steps.clear()
    for row, shape, dtype in ((100, (12,), torch.float64), (101, (1, 12), torch.float64), (102, (12,), torch.float32)):
        given = torch.tensor(features[row]).to(dtype)
        answer = method.adapt(given if len(shape) == 1 else given[None])
        assert (tuple(answer.shape), answer.dtype) == (shape, dtype)
        expected = reference.adapt(given.double().numpy())
        np.testing.assert_allclose(np.asarray(answer).reshape(-1), expected, rtol=0, atol=1e-6)
        kept = answer.clone()
        method.adapt(torch.tensor(features[row + 10]))
        reference.adapt(features[row + 10])
        assert torch.equal(answer, kept), "an answer changed with the next step"
    assert all(steps)


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"use_bank_term": False},
        {"update_mean": False},
        {"beta": 2.0, "bank_size": 3},
        {"batch_size": 4},
        {"prune": (90, 0.3)},
    ],
    ids=str,
)
@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.sampled(3)
def test_replay_on_a_gpu_equals_direct(steps, parameters, precision):
    features, prototypes, _ = problem()
    expected = OnlineADAPT(prototypes, logit_scale=20.0, engine="direct", **parameters).adapt(features)
    method = OnlineADAPT(torch.tensor(prototypes), logit_scale=20.0, engine="replay", precision=precision, **parameters)
    answers = np.asarray(method.adapt(torch.tensor(features)))
    np.testing.assert_allclose(answers, expected, rtol=0, atol=1e-8 if precision == "float64" else 1e-4)
    assert method.diagnostics.products == precision
    np.testing.assert_array_equal(answers.argmax(axis=1), expected.argmax(axis=1))
    # What was learned is the same, so streaming continues from it.
    rows = problem()[0][::-1].copy()[:20]
    reference = OnlineADAPT(prototypes, logit_scale=20.0, engine="direct", **parameters)
    reference.adapt(features)
    np.testing.assert_allclose(np.asarray(method.predict(torch.tensor(rows))), reference.predict(rows), atol=1e-6)


def test_replay_on_a_gpu_in_several_groups(steps, monkeypatch):
    """Negative cosines, and groups of few blocks of few changes."""
    monkeypatch.setattr(replay_gpu, "GROUP_NUMBERS", 200_000)
    monkeypatch.setattr(replay_gpu, "COSINES", 5_000)
    monkeypatch.setattr(replay_gpu, "BLOCKS", 5)
    solved = []
    original = replay_gpu.solve_group
    monkeypatch.setattr(replay_gpu, "solve_group", lambda *given: solved.append(len(given[0])) or original(*given))
    rng = np.random.default_rng(5)
    features, prototypes = (
        rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in rng.normal(size=(2, 400, 10))
    )
    prototypes = prototypes[:8]
    expected = OnlineADAPT(prototypes, logit_scale=20.0, engine="direct").adapt_scores(features)
    method = OnlineADAPT(torch.tensor(prototypes), logit_scale=20.0, engine="replay")
    np.testing.assert_allclose(method.adapt_scores(torch.tensor(features)), expected, rtol=0, atol=SCORES)
    assert len(solved) > 3
    assert max(solved) > 1

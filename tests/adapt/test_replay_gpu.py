"""The operations of a replay on a GPU, on a CPU; benchmarks/cuda_engines.py uses a real one."""

from __future__ import annotations

import numpy as np
import pytest

from zeroshift import OnlineADAPT, linalg
from zeroshift.adapt.engines import replay
from zeroshift.adapt.engines.replay import PlannedRows, ReplayEngine
from zeroshift.arrays import Backend
from zeroshift.benchmarks.problems import clip_like
from zeroshift.zero_shot import softmax

torch = pytest.importorskip("torch", reason="torch is not installed")


def lu_without_pivoting(matrix, pivot):
    assert not pivot
    lu = matrix.clone()
    for j in range(lu.shape[-1] - 1):
        lu[..., j + 1 :, j] /= lu[..., j, j, None]
        lu[..., j + 1 :, j + 1 :] -= lu[..., j + 1 :, j, None] * lu[..., None, j, j + 1 :]
    return lu, None, None


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    """Treats torch on the CPU as a GPU without tensor cores, with small blocks of rows."""
    monkeypatch.setattr(Backend, "on_gpu", property(lambda backend: backend.library == "torch"))
    monkeypatch.setattr(linalg, "_multiplies_halves", lambda device: False)
    monkeypatch.setattr(torch.linalg, "lu_factor_ex", lu_without_pivoting)
    monkeypatch.setattr(ReplayEngine, "block_rows", 300)


@pytest.fixture
def plans(monkeypatch):
    """The sizes of the blocks that were planned ahead."""
    plan, planned = PlannedRows.planned, []
    monkeypatch.setattr(PlannedRows, "planned", lambda self: (planned.append(len(self.features)), plan(self))[1])
    return planned


@pytest.mark.parametrize("geometry", ["clip_like", "clustered"])
@pytest.mark.parametrize("parameters", [{}, {"batch_size": 7}, {"bank_size": 2, "use_bank_term": False}], ids=str)
def test_same_scores_as_streaming(geometry, parameters, plans):
    problem = clip_like(30, 32, 1000, geometry=geometry)
    features, prototypes = problem.features.astype(np.float64), problem.prototypes.astype(np.float64)
    streaming = OnlineADAPT(prototypes, logit_scale=problem.logit_scale, engine="streaming", **parameters)
    expected = streaming.adapt_scores(features)
    adapter = OnlineADAPT(torch.asarray(prototypes), logit_scale=problem.logit_scale, engine="replay", **parameters)
    scores = adapter.adapt_scores(torch.asarray(features))
    np.testing.assert_allclose(scores.numpy(), expected, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(adapter.bank_counts.numpy(), streaming.bank_counts)
    assert set(plans) == ({294, 118} if "batch_size" in parameters else {300, 100})
    # The first block of the next call has not been announced.
    again = adapter.adapt_scores(torch.asarray(features[:50]))
    np.testing.assert_allclose(again.numpy(), streaming.adapt_scores(features[:50]), rtol=0, atol=1e-6)


def test_float32_products():
    problem = clip_like(30, 32, 1000)
    wide = problem.features.astype(np.float64)
    expected = OnlineADAPT(problem.prototypes, logit_scale=problem.logit_scale, precision="float64").adapt(wide)
    adapter = OnlineADAPT(torch.asarray(problem.prototypes), logit_scale=problem.logit_scale, engine="replay")
    answer = adapter.adapt(torch.asarray(problem.features)).numpy()
    np.testing.assert_allclose(answer, expected, rtol=0, atol=1e-4)
    assert adapter.diagnostics.products == "float32"


@pytest.mark.parametrize("error", [0.0, 1.0], ids=["float32", "float64"])
def test_blocks_solved_again(monkeypatch, error):
    """A wrong assumption about the size of the scores changes no answer, and neither does float64."""
    problem = clip_like(30, 32, 600)
    features, prototypes = torch.asarray(problem.features), torch.asarray(problem.prototypes)
    expected = OnlineADAPT(prototypes, logit_scale=problem.logit_scale, engine="replay").adapt_scores(features)
    monkeypatch.setattr(replay, "SIZE_MARGIN", 0.01)
    monkeypatch.setattr(replay, "rounding_error", lambda size, d: error)
    adapter = OnlineADAPT(prototypes, logit_scale=problem.logit_scale, engine="replay")
    scores = adapter.adapt_scores(features)
    found, before = softmax(scores.double()), softmax(expected.double())
    np.testing.assert_allclose(found.numpy(), before.numpy(), rtol=0, atol=1e-4)
    assert (adapter.diagnostics.float64_fallbacks > 0) == (error > 0)


def test_pruning_between_blocks(plans):
    """The bank changes after the block, so nothing can be planned ahead."""
    problem = clip_like(30, 32, 900)
    features, prototypes = problem.features.astype(np.float64), problem.prototypes.astype(np.float64)
    settings = {"logit_scale": problem.logit_scale, "prune": (250, 0.5)}
    expected = OnlineADAPT(prototypes, engine="streaming", **settings).adapt_scores(features)
    scores = OnlineADAPT(torch.asarray(prototypes), engine="replay", **settings).adapt_scores(torch.asarray(features))
    np.testing.assert_allclose(scores.numpy(), expected, rtol=0, atol=1e-6)
    assert not plans

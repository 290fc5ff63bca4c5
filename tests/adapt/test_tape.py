"""The recorded step's mathematics and bookkeeping, without a GPU: recordings are replaced by the work they record.

What a real device does with them is checked by benchmarks/cuda_parity.py and cuda_engines.py.
"""

from __future__ import annotations

import contextlib
import copy

import numpy as np
import pytest

from comparing import treat_as_large
from zeroshift import OnlineADAPT
from zeroshift import linalg as factors
from zeroshift.adapt.engines import cuda_graph as cuda_graph
from zeroshift.arrays import Home
from zeroshift.testing import make_problem

torch = pytest.importorskip("torch", reason="torch is not installed")

SCORES = 1e-6


class Unrecorded:
    """Stands in for a CUDA graph: does the work when asked to replay it."""

    def __init__(self, work):
        self.replay = work


def record(self, work):
    kept = {name: array.clone() for name, array in self._arrays.items()}
    work()
    for name, array in kept.items():
        self._arrays[name].copy_(array)
    return Unrecorded(work)


def receive(self, name):
    return getattr(self, name).numpy()


@pytest.fixture
def steps(monkeypatch):
    """torch on the CPU passes for a GPU; answers how many steps were taken by cuda_graph."""
    treat_as_large(monkeypatch)
    monkeypatch.setattr(Home, "on_gpu", property(lambda home: home.library == "torch"))
    monkeypatch.setattr(factors, "_ldl_by_lu", factors._ldl_columns)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(
        cuda_graph.RecordedStep, "_pinned", lambda self, array: torch.empty(array.shape, dtype=array.dtype)
    )
    monkeypatch.setattr(cuda_graph.RecordedStep, "_record", record)
    monkeypatch.setattr(cuda_graph.RecordedStep, "_receive", receive)
    taken = []
    plain = cuda_graph.RecordedStep.step

    def counted(self, features):
        scores = plain(self, features)
        taken.append(scores is not None)
        return scores

    monkeypatch.setattr(cuda_graph.RecordedStep, "step", counted)
    return taken


def problem():
    return make_problem(12, 20, 300, seed=31)


def one_by_one(method, rows):
    return np.stack([np.asarray(method.adapt_scores(row)) for row in rows])


@pytest.mark.parametrize(
    "parameters",
    [{}, {"use_bank_term": False}, {"update_mean": False}, {"beta": 2.0, "bank_size": 3}, {"prune": (90, 0.3)}],
    ids=str,
)
def test_a_stream_by_tape_is_direct(steps, parameters):
    features, prototypes, _ = problem()
    expected = OnlineADAPT(prototypes, logit_scale=20.0, engine="direct", **parameters).adapt_scores(features)
    method = OnlineADAPT(torch.tensor(prototypes), logit_scale=20.0, engine="streaming", **parameters)
    np.testing.assert_allclose(one_by_one(method, torch.tensor(features)), expected, rtol=0, atol=SCORES)
    assert sum(steps) > 150, "hardly a step went by tape"


@pytest.mark.parametrize("how", ["goes on", "loaded", "copied"])
@pytest.mark.parametrize("engine", ["streaming", "auto"])
def test_samples_that_enter_nothing_right_after_a_recording(steps, engine, how, tmp_path):
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
    # Halfway between two classes: no bank is less sure than that.
    weak = prototypes[:6] + prototypes[6:12]
    weak = weak / np.linalg.norm(weak, axis=1, keepdims=True)
    rows = np.concatenate([weak, features[200:230]])
    expected = reference.adapt_scores(rows[:6])
    np.testing.assert_array_equal(reference.bank_counts, counts)
    expected = np.concatenate([expected, reference.adapt_scores(rows[6:])])
    np.testing.assert_allclose(one_by_one(method, torch.tensor(rows)), expected, rtol=0, atol=SCORES)
    assert sum(steps) >= 30


def test_by_turns_with_replay(steps):
    features, prototypes, _ = problem()
    reference = OnlineADAPT(prototypes, logit_scale=20.0, engine="direct")
    method = OnlineADAPT(torch.tensor(prototypes), logit_scale=20.0)
    for start, stop in ((0, 100), (100, 103), (103, 200), (200, 210), (210, 300)):
        expected = reference.adapt_scores(features[start:stop])
        scores = np.asarray(method.adapt_scores(torch.tensor(features[start:stop])))
        np.testing.assert_allclose(scores, expected, rtol=0, atol=SCORES)
    assert any(steps)

"""Which recordings are made, kept and shared. Recording itself needs a GPU: benchmarks/cuda_mixture.py."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from zeroshift import recording
from zeroshift.recording import MOST_RECORDINGS, USES_BEFORE, Recordings


@pytest.fixture(autouse=True)
def stream(monkeypatch):
    monkeypatch.setattr(recording, "_current_stream", lambda device: 0)


ON_GPU = SimpleNamespace(is_cuda=True, device="cuda:0")


def use(recordings, key, array=ON_GPU, made=None):
    with recordings.use(array, key, lambda: (made or []).append(key) or f"graph of {key}") as found:
        return found


def test_a_recording_is_made_after_some_uses_and_used_again():
    recordings, made = Recordings(), [None]
    found = [use(recordings, 1, made=made) for _ in range(USES_BEFORE + 5)]
    assert found == [None] * USES_BEFORE + ["graph of 1"] * 5
    assert made == [None, 1]


def test_other_devices_and_arrays_in_main_memory():
    recordings = Recordings()
    for _ in range(USES_BEFORE + 1):
        assert use(recordings, 1, np.zeros(1)) is None
        use(recordings, 1)
    assert use(recordings, 1) == "graph of 1"
    assert use(recordings, 1, SimpleNamespace(is_cuda=True, device="cuda:1")) is None


def test_another_stream_has_its_own(monkeypatch):
    recordings = Recordings()
    for _ in range(USES_BEFORE + 1):
        use(recordings, 1)
    monkeypatch.setattr(recording, "_current_stream", lambda device: 1)
    assert use(recordings, 1) is None


def test_the_oldest_is_given_up():
    recordings = Recordings()
    for key in range(MOST_RECORDINGS + 1):
        found = [use(recordings, key) for _ in range(USES_BEFORE + 1)]
        assert found[-1] == f"graph of {key}"
    assert use(recordings, MOST_RECORDINGS) is not None
    assert use(recordings, 0) is None


def test_who_comes_while_it_is_used_does_without():
    recordings = Recordings()
    for _ in range(USES_BEFORE + 1):
        use(recordings, 1)
    with recordings.use(ON_GPU, 1, str) as first:
        assert first == "graph of 1"
        assert use(recordings, 1) is None
    assert use(recordings, 1) == "graph of 1"

"""The scripts of benchmarks/results/scale.md, on small sizes."""

from __future__ import annotations

import numpy as np
import pytest
import scale_simulation
from scale_shards import measure as measure_shards


def test_simulation_without_losses_is_the_ideal(monkeypatch):
    for name, value in (("TASK_SECONDS", 0.0), ("ADD_SECONDS", 0.0), ("LIFETIME", 1e12), ("SLOW_SHARE", 0.0)):
        monkeypatch.setattr(scale_simulation, name, value)
    found = scale_simulation.simulate(1000, 0, rows=1_000_000, workers=10)
    assert found.tasks == 1000
    assert found.ideal <= found.makespan < 1.05 * found.ideal
    assert found.wasted < 1e-9


def test_simulation_counts_what_is_lost(monkeypatch):
    monkeypatch.setattr(scale_simulation, "SLOW_SHARE", 0.0)
    monkeypatch.setattr(scale_simulation, "LIFETIME", 600.0)
    small, large = (scale_simulation.simulate(size, 0, rows=10**8, workers=50) for size in (100_000, 1_000_000))
    assert 0 < small.wasted < large.wasted < 0.5
    assert small.makespan < large.makespan


def test_shards():
    answers = [measure_shards(files, rows, workers=0) for files, rows in ((50, 20), (1, 1000))]
    assert np.array_equal(answers[0][3], answers[1][3])
    assert [one[2] for one in answers] == [1, 1]


def test_gpu_script_on_a_cpu():
    pytest.importorskip("torch")
    from scale_cuda import ROUNDS, measure, table

    found = measure(600, "cpu", 300, repeats=1)
    assert found["kept"].shape == found["moved"].shape == (1, ROUNDS)
    assert all(time > 0 for time in [*found["kept"].ravel(), *found["moved"].ravel(), found["products"]])
    assert len(table(found, 600)) == 6

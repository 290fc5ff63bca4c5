"""Measurements use the right states, rows and sums. No test depends on a time."""

import os
from pathlib import Path

import numpy as np
import pytest

from zeroshift import OnlineADAPT
from zeroshift.arrays import Backend
from zeroshift.benchmarks.baseline_products import time_baseline_products
from zeroshift.benchmarks.bench import is_measured, run_cases
from zeroshift.benchmarks.case import (
    DEFAULT,
    FULL,
    BenchBackend,
    BenchCase,
    check_engines,
    default_cases,
    grid_sizes,
    measure_case,
)
from zeroshift.benchmarks.engines import (
    MIXTURE_SINGLE,
    BankSchedule,
    _definition_record,
    bank_schedule,
    measure_mixture,
)
from zeroshift.benchmarks.machine import competing_processes
from zeroshift.benchmarks.problems import GEOMETRIES, clip_like
from zeroshift.benchmarks.timing import TimedSteps, agreement, latency_percentiles, time_steps

NUMPY = Backend.named("numpy", "cpu")


@pytest.fixture(scope="module")
def problem():
    return clip_like(classes=4, dimension=16, samples=200)


def small(engines=("direct",), **changes) -> BenchCase:
    return BenchCase(**{"classes": 4, "dimension": 16, "samples": 60, "backend": BenchBackend(), "engines": engines,
                       "repeats": 1, "steps": 2, "memory": False, **changes})  # fmt: skip


def test_saved_states_are_those_of_the_stream(problem, tmp_path):
    schedule = bank_schedule(problem, [0, 70, 150], tmp_path)
    adapter = OnlineADAPT(problem.prototypes, engine="direct")
    adapter.adapt(problem.features[:150])
    loaded = OnlineADAPT.load(schedule.states[150])
    assert loaded.n_seen == 150
    assert loaded.bank_counts.tolist() == adapter.bank_counts.tolist()
    assert schedule.entries[149] == adapter.bank_counts.sum()
    np.testing.assert_allclose(loaded.means, adapter.means, atol=1e-12)


def test_steps_from_a_state_answer_as_the_whole_stream_does(problem, tmp_path):
    """Also where samples that do not enter are skipped."""
    schedule = bank_schedule(problem, [0, 100], tmp_path)
    expected = OnlineADAPT(problem.prototypes, engine="direct").adapt(problem.features)
    for seen in (0, 100):
        rows = schedule.rows_from(seen, 5)
        taken = time_steps(schedule.states[seen], "direct", problem.features, rows, NUMPY)
        np.testing.assert_allclose(taken.probabilities, expected[rows], atol=1e-6)
        assert (taken.seconds > 0).all()


def test_only_samples_that_change_nothing_are_skipped():
    entered = np.array([1, 0, 1, 0, 0, 1, 1, 0, 1], dtype=bool)
    schedule = BankSchedule(entered, np.cumsum(entered), {})
    assert schedule.rows_from(0, 2).tolist() == [0, 1, 2, 3]
    assert schedule.rows_from(2, 2).tolist() == [2, 3, 4, 5]
    assert schedule.rows_from(6, 5).tolist() == [6, 7, 8]
    assert schedule.rows_from(3, 1).tolist() == [3, 5]


def test_the_total_of_direct_is_interpolated_by_kind_of_sample():
    entered = np.array([True] * 5 + [False] * 5)
    schedule = BankSchedule(entered, np.arange(1, 11), {})
    answers = np.zeros((2, 3))
    taken = {
        0: TimedSteps(np.array([0, 1]), np.array([1.0, 1.0]), answers),
        4: TimedSteps(np.array([4, 5]), np.array([3.0, 0.5]), answers),
    }
    record = _definition_record(taken, schedule)
    assert record["seconds"] == pytest.approx((1 + 1.5 + 2 + 2.5 + 3) + 5 * 0.5)
    assert "interpolated" in record["timed"]


def test_a_case_with_every_kind_of_engine(every_engine):
    record = measure_case(small(every_engine))
    engines = record["engines"]
    assert set(engines) == {"direct", "streaming", "replay", "transductive", "mixture", "mixture call", "mixture set"}
    for name in ("streaming", "replay", "transductive"):
        assert engines[name]["agreement"]["largest_difference"] < 1e-4
        assert engines[name]["agreement"]["largest_score_difference"] < 1e-4
        assert engines[name]["agreement"]["argmax_equal"] == 1.0
    streaming = engines["streaming"]
    assert streaming["latency"]["all"]["samples"] == 60
    assert streaming["latency"]["entering"]["samples"] == record["entered"]
    assert streaming["banks_equal"] is True
    assert all(point["argmax_equal"] == 1.0 for point in streaming["points"])
    assert engines["replay"]["windows"][-1]["seen"] == 60
    assert engines["replay"]["banks_equal"] is True
    assert set(streaming["health"]) == set(engines["replay"]["health"])
    assert 0 < record["zero_shot_accuracy"] <= 1
    assert all(engine["times_the_floor"] > 0 for engine in engines.values())
    assert all(record["floor"][precision]["median"] > 0 for precision in ("float64", "float32"))


def test_the_mixture_is_measured_one_by_one_in_one_call_and_as_a_set(problem):
    records = measure_mixture(problem, problem.features, NUMPY, repeats=2)
    single, call, whole = (records[name] for name in ("mixture", "mixture call", "mixture set"))
    assert single["latency"]["all"]["samples"] == 200
    assert single["windows"][-1]["seen"] == 200
    assert np.mean([window["seconds_per_sample"] for window in single["windows"]]) == pytest.approx(
        single["seconds_per_sample"]
    )
    assert call["agreement"]["samples"] == 200
    assert call["agreement"]["largest_difference"] < 1e-6
    assert whole["repeated"]["repeats"] == call["repeated"]["repeats"] == 2


def test_memory_is_measured_in_a_separate_process():
    record = measure_case(small(memory=True))
    for name, engine in record["engines"].items():
        if name == MIXTURE_SINGLE:
            assert "memory" not in engine
            continue
        assert "error" not in engine["memory"]
        assert 0 <= engine["memory"]["bytes_beyond_input_and_output"] < 500e6


def test_torch_is_measured_like_numpy():
    pytest.importorskip("torch")
    record = measure_case(small(backend=BenchBackend("torch", "cpu")))
    assert record["engines"]["transductive"]["agreement"]["argmax_equal"] == 1.0


def test_a_finished_case_is_not_measured_again(tmp_path, monkeypatch):
    cases = [small(), small(samples=80)]
    out = tmp_path / "bench.json"
    first = run_cases(cases[:1], out=out)
    measured = []

    def measure(settings, *_):
        measured.append(settings)
        return {**first["cells"][cases[0].key], "settings": settings.record()}

    monkeypatch.setattr("zeroshift.benchmarks.bench.measure_case", measure)
    assert run_cases(cases, out=out)["cells"][cases[0].key] == first["cells"][cases[0].key]
    assert measured == cases[1:]
    run_cases(cases, out=out, again=True)
    assert measured == [*cases[1:], *cases]
    run_cases([small(steps=1)], out=out)
    assert measured[-1].steps == 1, "a case with other settings is another case"


def test_settings_that_differ_are_not_the_same_measurement():
    held = {small().key: {"settings": small().record()}}
    assert is_measured(held, small())
    assert not is_measured(held, small(repeats=2))
    assert not is_measured(held, small(("direct", "streaming")))


def test_a_stream_of_few_samples_has_points_with_rows_after_them():
    assert small(samples=10).points()[-1] < 10


def test_default_cases_include_the_other_geometry_and_a_busy_machine():
    cases = default_cases(backend=BenchBackend(), engines=("direct",))
    assert {(case.classes, case.dimension, case.samples) for case in cases} == set(DEFAULT)
    assert {case.source for case in cases} == set(GEOMETRIES)
    assert [case.competitors for case in cases if case.competitors] == [2]
    assert len({case.key for case in cases}) == len(cases)


def test_competing_processes_run_until_the_block_ends():
    with competing_processes(2):
        started = _children()
        assert len(started) == 2
    assert not _children()


def _children() -> list[int]:
    """Processes that this one has started and that still run."""
    tasks = Path(f"/proc/{os.getpid()}/task")
    if not tasks.exists():
        pytest.skip("needs /proc")
    found = [int(pid) for task in tasks.iterdir() for pid in (task / "children").read_text().split()]
    return [pid for pid in found if b"matrix @ matrix" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_both_precisions_are_timed(every_engine):
    engines = measure_case(small(every_engine, source="clustered"))["engines"]
    for name in ("streaming", "replay", "transductive", "mixture call", "mixture set"):
        assert engines[name]["float64"]["seconds"] > 0
    assert engines["streaming"]["float64"]["interpolated"]
    assert engines["transductive"]["health"]["products"] == "float32"


def test_near_ties_are_not_other_predictions():
    definition = np.array([[0.50005, 0.49995], [0.6, 0.4]])
    swapped = definition[:, ::-1]
    assert agreement(swapped, definition)["argmax_equal"] == 0.5


def test_the_full_grid():
    assert {size[0] for size in FULL} == {10, 100, 1000}
    assert {size[1] for size in FULL} == {256, 512, 1024}
    assert len(FULL) == 27
    assert grid_sizes([3], [8, 9], [10]) == ((3, 8, 10), (3, 9, 10))


def test_direct_is_always_among_the_engines():
    assert check_engines(None)[0] == "direct"
    assert check_engines(["direct"]) == ("direct",)
    with pytest.raises(ValueError, match="Did you mean 'direct'"):
        check_engines(["direkt"])


def test_scores_show_what_confident_probabilities_hide():
    definition = np.array([[0.0, -500.0], [0.0, -2.0]])
    wrong = definition + np.array([[7.0, 7.0 - 5.0], [3.0, 3.0]])
    sure = np.array([[1.0, 0.0], [1.0, 0.0]])
    found = agreement(sure, sure, wrong, definition)
    assert found["largest_difference"] == 0.0
    assert found["largest_score_difference"] == pytest.approx(0.01)


def test_percentiles():
    found = latency_percentiles(np.arange(1, 101) / 100)
    assert found["p50"] == pytest.approx(0.505)
    assert found["max"] == 1.0
    assert latency_percentiles(np.zeros(0)) is None


def test_baseline_products(problem):
    found = time_baseline_products(problem.features, problem.prototypes, NUMPY, repeats=2)
    assert found["float64"]["repeats"] >= 2
    assert found["single_sample_float64"]["samples"] == 200

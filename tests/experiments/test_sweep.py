"""Sweeps: their runs, and when a curve is flat or rises."""

import pytest

from zeroshift.experiments import JobResults, Options, Suite
from zeroshift.experiments._shared.findings import Value
from zeroshift.experiments._shared.suite import TASKS, largest_per_task, largest_per_task_note, main_set
from zeroshift.experiments._shared.sweep import Curve, rising_evidence, stability_evidence
from zeroshift.experiments._shared.trials import runs
from zeroshift.experiments.bank_size import EXPERIMENT, ONLINE


def curve(*accuracies, samples=100_000):
    """So many samples that a point is far more than chance."""
    return [Curve.of(TASKS[1], dict(enumerate(map(value_of, accuracies))), samples)]


def value_of(accuracy):
    return None if accuracy is None else Value(accuracy)


@pytest.mark.parametrize(
    ("accuracies", "start", "holds"),
    [
        ((0.50, 0.505, 0.502), 0, True),
        ((0.50, 0.53, 0.53), 0, False),
        ((0.50, 0.53, 0.53), 1, True),
    ],
    ids=["little", "much", "much-before-the-start"],
)
def test_flat_is_within_the_tolerance_from_the_start_on(accuracies, start, holds):
    (evidence,) = stability_evidence(curve(*accuracies), 1.0, start)
    assert evidence.holds is holds
    assert evidence.where == "corruption"


@pytest.mark.parametrize(
    ("accuracies", "holds"),
    [
        ((0.50, 0.52, 0.54), True),
        ((0.50, 0.54, 0.538), True),
        ((0.50, 0.56, 0.54), False),
        # Neither risen nor fallen: a tie.
        ((0.50, 0.504, 0.50), None),
        ((0.51, 0.512, 0.507), False),
        # Many small falls are one large one.
        ((0.50, 0.56, 0.557, 0.554, 0.551), False),
    ],
    ids=["steady", "small-fall", "large-fall", "ends-where-it-began", "ends-lower", "many-small-falls"],
)
def test_rising_allows_small_falls_only(accuracies, holds):
    (evidence,) = rising_evidence(curve(*accuracies), 0.5)
    assert evidence.holds is holds


def test_few_samples_leave_a_verdict_open():
    """1.2 points where one standard error is 1.07: neither within 1 point nor beyond."""
    (evidence,) = stability_evidence(curve(0.50, 0.512, samples=4400), 1.0)
    assert evidence.holds is None
    (evidence,) = rising_evidence(curve(0.50, 0.51, samples=1000), 0.5)
    assert evidence.holds is None


@pytest.mark.parametrize("accuracies", [(0.50, None, 0.54), (0.50,), ()], ids=["gap", "one-value", "nothing"])
def test_a_curve_with_gaps_or_of_one_value_is_no_evidence(accuracies):
    assert rising_evidence(curve(*accuracies), 0.5) == []
    assert stability_evidence(curve(*accuracies), 1.0) == []


def test_at_its_default_a_sweep_is_the_method_as_it_is(small_suite):
    member = small_suite.members[0]
    (swept,) = ONLINE.trials(member, ONLINE.default)
    (plain,) = runs(member, "adapt_online", 1)
    assert swept.key == plain.key
    assert len({trial.key for value in ONLINE.values for trial in ONLINE.trials(member, value)}) == len(ONLINE.values)
    assert [variant.label for variant in ONLINE.variants() if variant.strong] == ["16 (default)"]


def test_failed_runs_leave_gaps_and_no_claim(small_suite):
    findings = EXPERIMENT.find(small_suite, Options(), JobResults([]))
    assert all(cell is None for row in findings[2].rows for cell in row.cells[1:])
    assert not any("The paper finds" in getattr(finding, "text", "") for finding in findings)


def test_one_set_per_task_is_reported_where_others_are_skipped(small_suite):
    pack = small_suite.members[1].dataset.load()
    suite = Suite.of({"few": pack.subset(slice(0, 50)), "many": pack, "other": small_suite.members[0].dataset.load()})
    kept = largest_per_task(suite)
    assert [member.name for member in kept.members] == ["many", "other"]
    assert "one set per task" in largest_per_task_note(suite)
    assert "one set per task" not in largest_per_task_note(kept)
    assert main_set(suite).name == "many"

"""Table 22: pruning, and the remark if the bank was never pruned."""

from dataclasses import replace

import numpy as np
import pytest

from experiments.fake_results import chapter_with, record
from experiments.paper_sets import papers_set, shrink_catalogue
from experiments.reading import column, found, remarks
from zeroshift.data import packs
from zeroshift.experiments import Suite
from zeroshift.experiments.pruning import EVERY, EXPERIMENT, OFTEN, RATIOS


@pytest.fixture(scope="module")
def suite():
    """One corrupted set, large enough that some banks fill."""
    return Suite.of({"fog": packs.load("cifar10c_fog_5").subset(slice(0, 300))})


@pytest.fixture(scope="module")
def chapter(investigated, suite):
    return investigated(EXPERIMENT, suite)


def test_sets_too_small_for_the_papers_interval_are_reported_as(chapter):
    table = found(chapter, f"pruned-every-{EVERY}")
    assert len({cell.value for cell in column(table, "Task 2").values()}) == 1
    assert "no prediction saw a pruned bank" in table.notes[0]
    assert not any(f"({EVERY:,} samples" in text for text in remarks(chapter))


def test_frequent_pruning_changes_predictions_and_the_verdict(chapter):
    table = found(chapter, f"pruned-every-{OFTEN}")
    corrupted = column(table, "Task 2")
    assert len(corrupted) == 1 + len(RATIOS)
    assert corrupted["0.7 dropped"].value != corrupted["no pruning"].value
    assert "pruned 2 times (corruption)" in table.notes[0]
    (message,) = [text for text in remarks(chapter) if text.startswith("The paper finds")]
    assert "Task 2: corruption (" in message


@pytest.mark.parametrize(
    ("pruned", "message"),
    [(0.30, "Confirmed here"), (0.60, "Too close to call here"), (0.90, "Not confirmed here")],
    ids=["lower", "equal", "higher"],
)
def test_the_verdict_on_pruning_handles_ties(suite, pruned, message):
    def answer(job):
        return record(pruned if "prune" in job.spec.parameters else 0.60)

    assert any(f"between prunings). {message}: " in text for text in remarks(chapter_with(EXPERIMENT, suite, answer)))


def long_sets(*, fog: int, plain: int) -> Suite:
    """Sets of so many samples, of two tasks."""
    rows = {"cifar10c_fog_5": fog, "cifar10": plain}
    return Suite.of({name: packs.load(name).subset(np.arange(n) % 300) for name, n in rows.items()})


def test_each_task_is_judged_by_its_own_sets():
    """The bank is pruned after a full interval if another sample follows: never in a set of exactly one interval."""
    chapter = chapter_with(EXPERIMENT, long_sets(fog=EVERY + 1, plain=EVERY), lambda job: record(0.5))
    table = found(chapter, f"pruned-every-{EVERY}")
    assert "pruned never (natural shift), once (corruption)." in table.notes[0]
    (message,) = [text for text in remarks(chapter) if f"({EVERY:,} samples" in text]
    assert "corruption" in message
    assert "natural shift" not in message


def test_the_two_sets_of_the_papers_table_are_enough_for_it(monkeypatch):
    shrink_catalogue(monkeypatch)
    both = Suite.of({name: papers_set(name) for name in ("imagenet", "imagenet_a")})
    assert remarks(chapter_with(EXPERIMENT, both, lambda job: record(0.5)), "data") == []
    (message,) = remarks(chapter_with(EXPERIMENT, Suite(both.members[:1]), lambda job: record(0.5)), "data")
    assert "missing here: imagenet_a" in message


def test_the_papers_numbers_are_next_to_ours_on_its_own_sets(investigated, suite, chapter):
    (member,) = suite.members
    papers = replace(member, from_paper=True, data_set="imagenet_a", encoder="CLIP ViT-B/16", corruption=None)
    table = found(investigated(EXPERIMENT, Suite((papers,))), "as-printed")
    assert [row.cells[1].paper for row in table.rows] == [0.6332, 0.5069, 0.506, 0.5056, 0.5052]
    assert not [f for f in chapter.findings if getattr(f, "name", "") == "as-printed"]

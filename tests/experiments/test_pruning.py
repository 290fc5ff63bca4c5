"""Table 22: the bank pruned, or the report says that it never was."""

from dataclasses import replace

import pytest

from experiments.tables import column, found, remarks
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


def test_sets_too_small_for_the_papers_interval_are_said_to_be(chapter):
    table = found(chapter, f"pruned-every-{EVERY}")
    assert len({cell.value for cell in column(table, "Task 2").values()}) == 1
    assert "nothing was ever dropped" in table.notes[0]
    assert not any(f"({EVERY:,} samples" in text for text in remarks(chapter))


def test_pruning_often_changes_what_is_predicted_and_the_verdict_tells_which_way(chapter):
    table = found(chapter, f"pruned-every-{OFTEN}")
    corrupted = column(table, "Task 2")
    assert len(corrupted) == 1 + len(RATIOS)
    assert corrupted["0.7 dropped"].value != corrupted["no pruning"].value
    assert "pruned 3 times" in table.notes[0]
    (said,) = [text for text in remarks(chapter) if text.startswith("The paper finds")]
    columns = range(1, len(table.columns))
    harmful = all(row.cells[at].value < table.rows[0].cells[at].value for row in table.rows[1:] for at in columns)
    assert (said in remarks(chapter, "note")) is harmful


@pytest.mark.parametrize(("rows", "words"), [(1000, "once"), (300, "0 to 1 times")], ids=["all", "some"])
def test_how_often_is_counted(rows, words):
    from zeroshift.experiments.pruning import _how_often

    fog = packs.load("cifar10c_fog_5")
    suite = Suite.of({"one": fog.subset(slice(0, 1000)), "two": packs.load("cifar10").subset(slice(0, rows))})
    assert words in _how_often(suite, EVERY)


def test_the_papers_numbers_stand_beside_ours_on_its_own_sets(investigated, suite, chapter):
    (member,) = suite.members
    papers = replace(member, papers=True, data_set="imagenet_a", encoder="CLIP ViT-B/16", corruption=None)
    table = found(investigated(EXPERIMENT, Suite((papers,))), "as-printed")
    assert [row.cells[1].paper for row in table.rows] == [0.6332, 0.5069, 0.506, 0.5056, 0.5052]
    assert not [f for f in chapter.findings if getattr(f, "name", "") == "as-printed"]

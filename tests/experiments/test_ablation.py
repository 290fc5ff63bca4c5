"""Table 5: what is switched off is off, and what the paper concludes can be seen."""

import pytest

from experiments.tables import column, found, remarks
from zeroshift.data import packs
from zeroshift.experiments import Options, Suite
from zeroshift.experiments.ablation import EXPERIMENT
from zeroshift.experiments.parts.paper import paper_table


@pytest.fixture(scope="module")
def chapter(investigated):
    """On one corrupted set: the rows without the bank are slow."""
    return investigated(EXPERIMENT, Suite.of({"fog": packs.load("cifar10c_fog_5").subset(slice(0, 200))}))


def test_a_moving_covariance_without_the_bank_lowers_accuracy(chapter):
    corrupted = column(found(chapter, "components"), "Task 2")
    assert corrupted["covariance"].value < corrupted["nothing (zero-shot)"].value
    assert corrupted["bank + means + covariance"].value > corrupted["nothing (zero-shot)"].value
    assert any("without the bank lowers accuracy below zero-shot. So it is here" in text for text in remarks(chapter))


def test_the_verdict_on_everything_together_follows_from_the_table(chapter):
    corrupted = {label: cell.value for label, cell in column(found(chapter, "components"), "Task 2").items()}
    (said,) = [text for text in remarks(chapter) if "everything together does best" in text]
    best = max(corrupted.values()) == corrupted["bank + means + covariance"]
    assert (said in remarks(chapter, "note")) is best


def test_rows_that_go_another_way_than_the_papers_are_told(chapter):
    corrupted = {label: cell.value for label, cell in column(found(chapter, "components"), "Task 2").items()}
    (said,) = [text for text in remarks(chapter) if "gains and losses over zero-shot" in text]
    assert said.startswith("Of 7 ")
    # In the paper the bank and moving means together raise the accuracy on corrupted images.
    falls = corrupted["bank + means"] <= corrupted["nothing (zero-shot)"]
    assert ("bank + means, corruption (here -" in said) is falls


def test_every_combination_is_there_once_and_the_data_is_said_to_be_another(chapter, small_suite):
    table = found(chapter, "components")
    assert len({row.cells[0] for row in table.rows}) == 8
    jobs = EXPERIMENT.plan(small_suite, Options())
    assert len(jobs) == len({job.key for job in jobs}) == 8 * 3
    assert any("other data than the paper's" in text for text in remarks(chapter, "data"))
    assert all(cell.paper is None for row in table.rows for cell in row.cells[1:])


def test_the_papers_rows_are_found():
    printed = paper_table("ablation_components")
    full = printed.row(config={"knowledge_bank": True, "update_mu": True, "update_sigma": True})
    assert full.number("Task 2") == 28.56

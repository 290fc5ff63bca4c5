"""Table 5: what is switched off is off, and what the paper concludes can be seen."""

from experiments.tables import column, found, remarks
from zeroshift.experiments.ablation import EXPERIMENT
from zeroshift.experiments.parts.paper import paper_table


def test_a_moving_covariance_without_the_bank_lowers_accuracy(investigated):
    table = found(investigated(EXPERIMENT), "components")
    corrupted = column(table, "Task 2")
    assert corrupted["covariance"].value < corrupted["nothing (zero-shot)"].value
    assert corrupted["bank + means + covariance"].value > corrupted["nothing (zero-shot)"].value


def test_every_combination_is_there_once_and_the_data_is_said_to_be_another(investigated):
    chapter = investigated(EXPERIMENT)
    table = found(chapter, "components")
    assert len({row.cells[0] for row in table.rows}) == 8
    assert len(chapter.jobs) == len({job.key for job in chapter.jobs}) == 8 * 3
    assert any("other data than the paper's" in text for text in remarks(chapter, "data"))
    assert all(cell.paper is None for row in table.rows for cell in row.cells[1:])


def test_the_papers_rows_are_found():
    printed = paper_table("ablation_components")
    full = printed.row(config={"knowledge_bank": True, "update_mu": True, "update_sigma": True})
    assert full.number("Task 2") == 28.56

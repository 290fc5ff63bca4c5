"""Table 5: parts that are switched off, and the paper's conclusions."""

import pytest

from experiments.fake_results import chapter_with, record
from experiments.reading import column, found, remarks
from zeroshift.data import packs
from zeroshift.experiments import Options, Suite
from zeroshift.experiments._shared.paper import paper_table
from zeroshift.experiments.ablation import EXPERIMENT


@pytest.fixture(scope="module")
def chapter(investigated):
    """On one corrupted set: the rows without the bank are slow."""
    return investigated(EXPERIMENT, Suite.of({"fog": packs.load("cifar10c_fog_5").subset(slice(0, 200))}))


def test_a_moving_covariance_without_the_bank_lowers_accuracy(chapter):
    corrupted = column(found(chapter, "components"), "Task 2")
    assert corrupted["covariance"].value < corrupted["nothing (zero-shot)"].value
    assert corrupted["bank + means + covariance"].value > corrupted["nothing (zero-shot)"].value
    assert any(text.startswith("Of 7 gains and losses over zero-shot") for text in remarks(chapter))


def on(job):
    """What a run has switched on."""
    given = job.spec.parameters
    if job.spec.method == "zero_shot":
        return ()
    switches = {
        "bank": "bank_size" not in given,
        "means": given["update_mean"],
        "covariance": given["update_covariance"],
    }
    return tuple(name for name, used in switches.items() if used)


EVERYTHING = ("bank", "means", "covariance")


@pytest.mark.parametrize(
    ("accuracy", "message"),
    [(0.40, "Confirmed here"), (0.499, "Too close to call here"), (0.60, "Not confirmed here")],
    ids=["lower", "hardly-lower", "higher"],
)
def test_a_covariance_alone_is_compared_with_zero_shot_with_an_interval(small_suite, accuracy, message):
    chapter = chapter_with(EXPERIMENT, small_suite, lambda job: record(accuracy if on(job) == ("covariance",) else 0.5))
    assert any(f"without the bank lowers accuracy below zero-shot. {message}: " in text for text in remarks(chapter))


@pytest.mark.parametrize(
    ("accuracy", "message"),
    [(0.70, "Confirmed here"), (0.50, "Too close to call here"), (0.30, "Not confirmed here")],
    ids=["best", "equal-to-another", "worst"],
)
def test_a_tied_row_is_not_the_best(small_suite, accuracy, message):
    chapter = chapter_with(EXPERIMENT, small_suite, lambda job: record(accuracy if on(job) == EVERYTHING else 0.5))
    assert any(f"everything together does best. {message}: " in text for text in remarks(chapter))


def test_where_a_row_failed_nothing_is_called_the_best(small_suite):
    chapter = chapter_with(EXPERIMENT, small_suite, lambda job: None if on(job) == ("means",) else record(0.5))
    assert not any("everything together" in text for text in remarks(chapter))


def test_only_significant_contradictions_are_warnings(small_suite):
    """On corrupted images a bank alone loses 0.4 points in the paper, and everything together gains 3."""
    outcome_text = {}
    for accuracy in (0.501, 0.60):
        chapter = chapter_with(
            EXPERIMENT, small_suite, lambda job, a=accuracy: record(a if on(job) == ("bank",) else 0.5)
        )
        ((outcome_text[accuracy], kind),) = [
            (f.text, f.kind) for f in chapter.findings if "gains and losses over zero-shot" in getattr(f, "text", "")
        ]
        assert kind == ("warning" if accuracy == 0.60 else "note")
    assert "The opposite sign" not in outcome_text[0.501]
    assert "bank, corruption (here +0.1, the paper -0.4)" in outcome_text[0.501].split("Too close to call: ")[1]
    assert "bank, corruption (here +10.0, the paper -0.4)" in outcome_text[0.60].split("Too close to call: ")[0]


def test_every_combination_is_there_once_and_the_data_is_reported_as_another(chapter, small_suite):
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

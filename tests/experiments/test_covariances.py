"""Table 11: one covariance per class."""

import pytest

from experiments.fake_results import chapter_with, record
from experiments.paper_sets import papers_set, shrink_catalogue
from experiments.reading import found, remarks
from zeroshift.data import packs
from zeroshift.experiments import Suite
from zeroshift.experiments._shared.paper import paper_table
from zeroshift.experiments.covariances import EXPERIMENT


@pytest.fixture(scope="module")
def chapter(investigated):
    return investigated(EXPERIMENT, Suite.of({"fog": packs.load("cifar10c_fog_5").subset(slice(0, 120))}))


def test_one_covariance_per_class_lowers_accuracy_on_corrupted_images(chapter):
    table = found(chapter, "by-task")
    accuracy = {(row.group, row.cells[0]): row.cells[1].value for row in table.rows}
    for protocol in ("online", "transductive"):
        assert accuracy[protocol, "one per class"] < accuracy[protocol, "one for all classes"]


@pytest.mark.parametrize(
    ("separate", "message"),
    [(0.40, "Confirmed here"), (0.60, "Too close to call here"), (0.70, "Not confirmed here")],
    ids=["lower", "equal", "higher"],
)
def test_the_verdict_on_separate_covariances_handles_ties(small_suite, separate, message):
    accuracies = {"shared": 0.60, "per_class": separate}
    chapter = chapter_with(
        EXPERIMENT,
        small_suite,
        lambda job: record(accuracies.get(job.spec.parameters.get("covariance"), 0.5)),
    )
    assert any(f"for every class lowers accuracy. {message}: online, Task 1" in text for text in remarks(chapter))


def test_the_papers_set_is_enough_for_its_table(monkeypatch):
    shrink_catalogue(monkeypatch)
    suite = Suite.of({name: papers_set(name) for name in ("imagenet", "dtd")})
    assert remarks(chapter_with(EXPERIMENT, suite, lambda job: record(0.5)), "data") == []


def test_gain_is_over_the_zero_shot_row(chapter):
    table = found(chapter, "separate-covariances")
    zero_shot, *others = table.rows
    assert zero_shot.cells[2].value == 0
    assert zero_shot.cells[4].value == 1
    for row in others:
        assert row.cells[2].value == pytest.approx(100 * (row.cells[1].value - zero_shot.cells[1].value))


def test_the_papers_rows_are_found():
    from zeroshift.experiments.covariances import KINDS, OURS

    printed = paper_table("separate_covariance")
    accuracies = [printed.number_at("Acc (%)", method=row, protocol=p) for p in OURS for row in KINDS.values()]
    assert accuracies == [70.91, 53.8, 71.56, 66.16]

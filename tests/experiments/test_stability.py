"""Table 13: always ten orders, and their mean, deviation and worst."""

import numpy as np
import pytest

from experiments.fake_results import chapter_with, nothing
from experiments.paper_sets import papers_set, shrink_catalogue
from experiments.reading import column, found, remarks
from zeroshift import OnlineADAPT
from zeroshift.data import packs
from zeroshift.experiments import Suite
from zeroshift.experiments._shared.paper import paper_table
from zeroshift.experiments._shared.tasks import get_task
from zeroshift.experiments.stability import EXPERIMENT, TABLES

PACKS = ("cifar10c_fog_5", "cifar10c_jpeg_compression_5")


@pytest.fixture(scope="module")
def suite() -> Suite:
    return Suite.of({name: packs.load(name).subset(slice(0, 80)) for name in PACKS})


def test_ten_orders_are_run_even_where_fewer_are_requested(investigated, suite):
    chapter = investigated(EXPERIMENT, suite, orders=1)
    assert len(chapter.jobs) == len({job.key for job in chapter.jobs}) == 10 * 2


def test_mean_deviation_and_worst_are_those_of_the_ten_orders(investigated, suite):
    table = found(investigated(EXPERIMENT, suite), "stability")
    some = packs.load(PACKS[0]).subset(slice(0, 80))
    accuracies = []
    for seed in range(10):
        rows = np.random.default_rng(seed).permutation(80)
        results = OnlineADAPT(some.prototypes_for(), logit_scale=some.logit_scale).adapt(some.features[rows])
        accuracies.append(np.mean(results.argmax(axis=1) == some.labels[rows]))
    name = str(table.rows[0].cells[0])
    assert column(table, "Mean")[name].value == pytest.approx(np.mean(accuracies))
    assert column(table, "Mean")[name].low == pytest.approx(min(accuracies))
    assert column(table, "Standard")[name].value == pytest.approx(100 * np.std(accuracies, ddof=1))
    assert column(table, "Worst")[name].value == pytest.approx(min(accuracies))
    assert column(table, "Zero-shot")[name].value == pytest.approx(some.zero_shot_accuracy())


def test_an_average_over_sets_spreads_less_than_the_sets(investigated, suite):
    table = found(investigated(EXPERIMENT, suite), "stability")
    corrupted = [row for row in table.rows if row.group == "corruption"]
    assert [row.cells[0] for row in corrupted][-1] == "average of 2 sets"
    *sets, average = (row.cells[2].value for row in corrupted)
    assert average < max(sets)
    assert corrupted[-1].cells[1].value == pytest.approx(np.mean([row.cells[1].value for row in corrupted[:-1]]))


def test_orders_that_lose_are_reported(investigated, suite):
    chapter = investigated(EXPERIMENT, suite)
    table = found(chapter, "stability")
    lost = [row.cells[0] for row in table.rows if row.cells[3].value - row.cells[4].value <= -0.001]
    (outcome_text,) = [text for text in remarks(chapter) if text.startswith("The worst tenth")]
    below = outcome_text.split("level with")[0].split("above")[0]
    assert all(f"{name} (-" in below for name in lost)
    assert bool(lost) == ("below" in outcome_text)


def test_orders_level_with_zero_shot_neither_win_nor_lose(suite):
    chapter = chapter_with(EXPERIMENT, suite, lambda job: {"accuracy": 0.5, "zero_shot_accuracy": 0.5})
    (outcome_text,) = [text for text in remarks(chapter) if "zero-shot" in text]
    assert outcome_text.startswith("The worst tenth of the orders ends level with zero-shot on ")
    assert "above" not in outcome_text
    assert "below" not in outcome_text


def test_without_results_nothing_is_reported_of_orders(suite):
    assert remarks(chapter_with(EXPERIMENT, suite, nothing)) == remarks(
        chapter_with(EXPERIMENT, suite, nothing), "data"
    )


def test_orders_that_failed_are_counted_and_leave_no_average(suite):
    lost = ("cifar10c_fog_5", 3)
    chapter = chapter_with(
        EXPERIMENT,
        suite,
        lambda job: None if (job.features, job.seed) == lost else {"accuracy": 0.6, "zero_shot_accuracy": 0.5},
    )
    labels = [str(row.cells[0]) for row in found(chapter, "stability").rows]
    assert len(labels) == 2
    assert sum(label.endswith("(9 of 10 orders)") for label in labels) == 1


def test_table_13_has_a_mean_without_imagenet(monkeypatch):
    shrink_catalogue(monkeypatch)
    sets = {name: papers_set(name) for name in get_task("natural").papers_sets}

    def record(job):
        """ImageNet at 0.9, the others at 0.5 and 0.01 more in every second order."""
        return {
            "accuracy": 0.9 if job.features == "imagenet" else 0.5 + 0.01 * (job.seed % 2),
            "zero_shot_accuracy": 0.4,
        }

    table = found(chapter_with(EXPERIMENT, Suite.of(sets), record), "stability")
    means = {str(row.cells[0]): row.cells[1:] for row in table.rows if str(row.cells[0]).startswith("average")}
    assert list(means) == ["average of 4 sets, all but imagenet", "average of 5 sets"]
    shifted, all_hold = means.values()
    assert shifted[0].value == pytest.approx(0.505)
    assert all_hold[0].value == pytest.approx((0.9 + 4 * 0.505) / 5)
    assert (shifted[0].paper, shifted[1].paper) == (pytest.approx(0.6541), 0.06)
    assert all_hold[0].paper == pytest.approx(0.6647)
    without = {name: features for name, features in sets.items() if name != "imagenet"}
    labels = [str(r.cells[0]) for r in found(chapter_with(EXPERIMENT, Suite.of(without), record), "stability").rows]
    assert labels[-1] == "average of 4 sets"


def test_no_reason_is_given_for_a_spread_that_was_not_analysed(suite):
    chapter = chapter_with(
        EXPERIMENT, suite, lambda job: {"accuracy": 0.5 + 0.1 * (job.seed % 2), "zero_shot_accuracy": 0.4}
    )
    (outcome_text,) = [text for text in remarks(chapter, "warning") if "standard deviation" in text]
    assert outcome_text.endswith("above the paper's largest, 0.71 (EuroSAT).")


def test_the_papers_deviations_are_found():
    (row,) = paper_table(TABLES["fine_grained"]).rows
    assert row.number("EuroSAT") == 67.24
    assert row.extra["std"]["EuroSAT"] == max(row.extra["std"].values()) == 0.71

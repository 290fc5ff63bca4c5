"""Table 13: ten orders whatever is asked, and what is said of them is what they are."""

import numpy as np
import pytest

from experiments.tables import column, found, remarks
from zeroshift import OnlineADAPT
from zeroshift.data import packs
from zeroshift.experiments import Suite
from zeroshift.experiments.parts.paper import paper_table
from zeroshift.experiments.stability import EXPERIMENT, TABLES

PACKS = ("cifar10c_fog_5", "cifar10c_jpeg_compression_5")


@pytest.fixture(scope="module")
def suite() -> Suite:
    return Suite.of({name: packs.load(name).subset(slice(0, 80)) for name in PACKS})


def test_ten_orders_are_run_even_where_fewer_are_asked_for(investigated, suite):
    chapter = investigated(EXPERIMENT, suite, orders=1)
    assert len(chapter.jobs) == len({job.key for job in chapter.jobs}) == 10 * 2


def test_mean_deviation_and_worst_are_those_of_the_ten_orders(investigated, suite):
    table = found(investigated(EXPERIMENT, suite), "stability")
    some = packs.load(PACKS[0]).subset(slice(0, 80))
    accuracies = []
    for seed in range(10):
        rows = np.random.default_rng(seed).permutation(80)
        answers = OnlineADAPT(some.prototypes_for(), logit_scale=some.logit_scale).adapt(some.features[rows])
        accuracies.append(np.mean(answers.argmax(axis=1) == some.labels[rows]))
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


def test_orders_that_lose_are_told(investigated, suite):
    chapter = investigated(EXPERIMENT, suite)
    table = found(chapter, "stability")
    lost = [row.cells[0] for row in table.rows if row.cells[3].value < row.cells[4].value]
    told = [text for text in remarks(chapter) if text.startswith(("The worst tenth", "On every set"))]
    assert len(told) == 1
    assert all(str(name) in told[0] for name in lost)
    assert bool(lost) == told[0].startswith("The worst tenth")


def test_the_papers_deviations_are_found():
    (row,) = paper_table(TABLES["fine_grained"]).rows
    assert row.number("EuroSAT") == 67.24
    assert row.extra["std"]["EuroSAT"] == max(row.extra["std"].values()) == 0.71

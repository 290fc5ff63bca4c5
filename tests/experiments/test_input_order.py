"""Table 9: the order of the streams, and remarks where the paper's finding does not hold."""

import numpy as np
import pytest

from experiments.fake_results import chapter_with, chapter_with_accuracies, nothing
from experiments.reading import column, found, remarks
from zeroshift.data import packs
from zeroshift.evaluate.streams import StreamInputs
from zeroshift.experiments import Options, Suite
from zeroshift.experiments._shared.paper import paper_table
from zeroshift.experiments.input_order import EXPERIMENT

PACKS = ("cifar10", "cifar10c_fog_5", "fmnist")


@pytest.fixture(scope="module")
def suite() -> Suite:
    return Suite.of({name: packs.load(name).subset(slice(0, 120)) for name in PACKS})


def test_the_streams_are_sorted_by_confidence(suite):
    some = packs.load("cifar10").subset(slice(0, 120))
    jobs = EXPERIMENT.plan(suite, Options(orders=2))
    by_kind = {job.stream["kind"]: job for job in jobs if job.features == "cifar10"}
    assert set(by_kind) == {"hard_to_easy", "easy_to_hard", "random"}
    rows = by_kind["easy_to_hard"].stream_spec.stream(some, seed=0).rows
    assert (np.diff(StreamInputs(some).confidences[rows]) <= 1e-9).all()


@pytest.mark.parametrize(
    ("easy", "hard", "kind", "words"),
    [
        (0.917, 0.917, "note", "Too close to call here: natural shift (91.7% against 91.7%)"),
        (0.94, 0.917, "note", "Too close to call here"),
        (0.95, 0.7, "note", "Confirmed here: natural shift (95.0% against 70.0%)"),
        (0.7, 0.95, "warning", "Not confirmed here: natural shift (70.0% against 95.0%)"),
    ],
    ids=["tie", "close", "better", "worse"],
)
def test_a_tie_is_no_win(suite, easy, hard, kind, words):
    accuracy = {"easy_to_hard": easy, "hard_to_easy": hard, "random": 0.8}
    chapter = chapter_with_accuracies(EXPERIMENT, suite, lambda job: accuracy[job.stream["kind"]])
    (message,) = [text for text in remarks(chapter, kind) if "better than hard to easy" in text]
    assert words in message


def test_without_results_nothing_is_concluded(suite):
    assert not [text for text in remarks(chapter_with(EXPERIMENT, suite, nothing)) if "The paper finds" in text]


def test_the_order_matters_and_random_is_run_in_several(investigated, suite):
    table = found(investigated(EXPERIMENT, suite, orders=2), "input-order")
    values = [cell.value for title in ("Task 1", "Task 2", "Task 3") for cell in column(table, title).values()]
    assert len(set(values)) > 3
    random = column(table, "Task 2")["random (default)"]
    assert random.low <= random.value <= random.high
    assert random.low < random.high
    assert column(table, "Task 2")["easy to hard"].low is None


def test_the_papers_rows_are_found():
    assert paper_table("input_order").row(label="Easy-to-Hard").number("Task 2") == 29.09
    assert paper_table("input_order").row(label="Random (Ours)").number("Task 1") == 66.53

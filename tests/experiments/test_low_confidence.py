"""Table 21, by the paper's reading and by ours."""

import pytest

from experiments.fake_results import chapter_with, record
from experiments.reading import found, remarks
from zeroshift.data import packs
from zeroshift.experiments import Options, Suite, bank_size
from zeroshift.experiments._shared.paper import paper_table
from zeroshift.experiments.low_confidence import COUNTS, EXPERIMENT


@pytest.fixture(scope="module")
def suite():
    """One corrupted set, large enough that some banks fill."""
    return Suite.of({"fog": packs.load("cifar10c_fog_5").subset(slice(0, 500))})


@pytest.fixture(scope="module")
def chapter(investigated, suite):
    return investigated(EXPERIMENT, suite)


def test_two_samples_per_class_are_too_few_online_on_corrupted_images(chapter):
    table = found(chapter, "small-banks")
    (row,) = [row for row in table.rows if row.group == "online" and row.cells[0] == "corruption"]
    values = [cell.value for cell in row.cells[1:]]
    assert values[0] < max(values)


def test_n_is_the_size_of_the_bank(suite):
    """In the paper to the last digit; here the same runs."""
    printed, main = paper_table("few_high_confidence"), paper_table("closed_vs_iterative")
    for task in ("Task 1", "Task 2", "Task 3"):
        closed = main.number_at(task, protocol="transductive", label="Closed")
        assert printed.number_at("N=6", protocol="transductive", task=task) == closed
    keys = {job.key for job in EXPERIMENT.plan(suite, Options())}
    (same,) = bank_size.ONLINE.trials(suite.members[0], 4)
    assert same.key in keys


def test_few_confident_samples_come_and_zero_shot_is_of_the_same_rows(chapter, suite):
    table = found(chapter, "few-confident")
    plain = suite.members[0].dataset.load().zero_shot_accuracy()
    zero_shot = [cell.value for row in table.rows if row.group == "corruption" for cell in row.cells[1:]][: len(COUNTS)]
    assert zero_shot[0] < plain
    assert any("gain over zero-shot" in text for text in remarks(chapter))


@pytest.mark.parametrize(
    ("accuracy", "kind"), [(0.50, "note"), (0.499, "note"), (0.40, "warning")], ids=["equal", "hardly-lower", "lower"]
)
def test_only_a_significant_loss_is_a_warning(small_suite, accuracy, kind):
    chapter = chapter_with(EXPERIMENT, small_suite, lambda job: record(accuracy))
    (message,) = [text for text in remarks(chapter, kind) if "gain over zero-shot" in text]
    assert ("too close to call" in message) is (kind == "note")


@pytest.mark.parametrize(
    ("least", "message"),
    [(0.30, "Confirmed here"), (0.60, "Too close to call here"), (0.90, "Not confirmed here")],
    ids=["lower", "equal", "higher"],
)
def test_the_verdict_on_the_smallest_bank_handles_ties(small_suite, least, message):
    def answer(job):
        return record(least if job.spec.parameters.get("bank_size") == COUNTS[0] else 0.60)

    chapter = chapter_with(EXPERIMENT, small_suite, answer)
    assert any(f"does worst at N = 2 and recovers quickly. {message}: " in text for text in remarks(chapter))

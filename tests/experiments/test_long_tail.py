"""Table 23: without noise, online ADAPT on a long-tailed stream; with noise, the stated share is wrong."""

import re

import pytest

from experiments.edge_cases import scattered
from experiments.fake_results import chapter_with, nothing
from experiments.reading import column, found, remarks
from zeroshift import FeatureSet
from zeroshift.data import packs
from zeroshift.evaluate import Analysis, StreamSpec
from zeroshift.evaluate.streams import long_tail_counts
from zeroshift.experiments import Suite
from zeroshift.experiments._shared.paper import paper_table
from zeroshift.experiments._shared.trials import runs
from zeroshift.experiments.long_tail import EXPERIMENT, long_tail_with_noise

PACKS = ("cifar10", "cifar10c_fog_5")
ROWS = 300


@pytest.fixture(scope="module")
def suite() -> Suite:
    return Suite.of({name: packs.load(name).subset(slice(0, ROWS)) for name in PACKS})


@pytest.fixture(scope="module")
def chapter(investigated, suite):
    return investigated(EXPERIMENT, suite, orders=1)


def test_without_noise_it_is_the_method_itself_on_that_stream(suite):
    some = packs.load("cifar10").subset(slice(0, ROWS))
    ours = long_tail_with_noise(some, prompt=some.default_prompt, seed=1, noisy=False)
    trial = runs(suite.members[0], "adapt_online", 2, stream_spec=StreamSpec("long_tail"))[1]
    record = trial.run(some)
    assert ours["scored"] == record["scored"]
    assert ours["turned"] == 0
    # float16 features are scored in float64 here: a sample on the border may fall to the other side.
    assert ours["adapt_online"]["all"] == pytest.approx(record["accuracy"], abs=1.5 / record["scored"])
    assert ours["zero_shot"]["all"] == pytest.approx(record["zero_shot_accuracy"], abs=1.5 / record["scored"])
    for name in ("head", "medium", "tail"):
        assert ours["zero_shot"][name] == pytest.approx(record["groups"][name]["zero_shot_accuracy"], abs=0.1)


def test_noise_changes_the_stated_number_and_lowers_both(chapter):
    table = found(chapter, "long-tail")
    accuracy = column(table, "All samples")
    assert accuracy["zero-shot, with noise"].value < accuracy["zero-shot"].value
    assert accuracy["ADAPT, with noise"].value < accuracy["ADAPT"].value
    change = column(table, "Change")
    fall = 100 * (accuracy["zero-shot, with noise"].value - accuracy["zero-shot"].value)
    assert change["zero-shot, with noise"].value == pytest.approx(fall)
    assert change["zero-shot"] is None
    # Accuracy can fall by at most the share of noise: 9% of all samples.
    assert fall > -9


def test_groups_are_those_of_the_sizes(suite):
    some = packs.load("cifar10").subset(slice(0, ROWS))
    record = long_tail_with_noise(some, prompt=some.default_prompt, seed=0, noisy=True)
    smallest = min((some.labels == k).sum() for k in range(10))
    counts = long_tail_counts(10, int(smallest))
    assert record["scored"] == counts.sum()
    assert record["classes"] == {
        "head": (counts >= 0.8 * smallest).sum(),
        "tail": (counts <= 0.2 * smallest).sum(),
        "medium": ((counts < 0.8 * smallest) & (counts > 0.2 * smallest)).sum(),
        "all": 10,
    }
    assert 0 < record["turned"] <= round(0.3 * round(0.3 * record["scored"]))


def test_noise_never_corrects_and_its_share_is_reported(chapter):
    """A classifier that is always wrong stays wrong with any noise."""
    some = scattered(4, 30, prompts=("plain",))
    nearest = (some.features @ some.prototypes_for().T).argmax(axis=1)
    wrong = FeatureSet(some.features, prototypes=some.prototypes, labels=(nearest + 1) % 4)
    for seed in range(5):
        record = long_tail_with_noise(wrong, prompt=wrong.default_prompt, seed=seed, noisy=True)
        assert record["turned"] > 0
        assert record["zero_shot"]["all"] == record["zero_shot_accuracy"] == 0
    (note,) = [note for note in found(chapter, "long-tail").notes if note.startswith("Noise")]
    assert re.search(r"here \d\.\d%( to \d\.\d%)? of all samples", note)


def test_zero_shot_accuracy_uses_the_same_rows_without_noise():
    some = packs.load("cifar10").subset(slice(0, ROWS))
    record = long_tail_with_noise(some, prompt=some.default_prompt, seed=0, noisy=True)
    plain = long_tail_with_noise(some, prompt=some.default_prompt, seed=0, noisy=False)
    assert record["zero_shot_accuracy"] == plain["zero_shot_accuracy"] == plain["zero_shot"]["all"]
    assert record["zero_shot"]["all"] < record["zero_shot_accuracy"]
    assert Analysis("x", "", some.default_prompt, long_tail_with_noise, {"seed": 0, "noisy": True}).run(some) == record


def made_up(zero_shot: float, adapt: float):
    groups = ("head", "medium", "tail", "all")
    return {
        "scored": 100, "turned": 8, "imbalance": 12.0, "samples": dict.fromkeys(groups, 100),
        "classes": dict.fromkeys(groups, 3), "zero_shot": dict.fromkeys(groups, zero_shot),
        "adapt_online": dict.fromkeys(groups, adapt),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("adapt", "words"),
    [
        (0.7, "Too close to call here"),
        (0.72, "Too close to call here"),
        (0.95, "Confirmed here"),
        (0.4, "Not confirmed here"),
    ],
    ids=["tie", "close", "better", "worse"],
)
def test_a_tie_is_no_gain(suite, adapt, words):
    message = [t for t in remarks(chapter_with(EXPERIMENT, suite, lambda job: made_up(0.7, adapt))) if "The paper" in t]
    assert len(message) == 2
    assert all(words in text for text in message)


def test_the_actual_ratio_is_reported(suite):
    table = found(chapter_with(EXPERIMENT, suite, lambda job: made_up(0.7, 0.7)), "long-tail")
    assert "up to 50:1" in table.notes[0]
    assert "here 12:1." in table.notes[0]


def test_sets_without_a_tail_and_failures_are_skipped_with_a_remark(suite, investigated):
    odd = Suite.of({"pair": scattered(2, 6), "ones": scattered(6, 1), "mine": scattered(4, 8)})
    chapter = investigated(EXPERIMENT, odd, orders=1)
    assert {job.features for job in chapter.jobs} == {"ones", "mine"}
    message = remarks(chapter, "note")
    assert "Left out, because of fewer than 3 classes: pair." in message
    assert "Left out, because of fewer than 2 samples of some class: ones." in message
    assert any("draws from mine;" in text for text in remarks(chapter, "data"))
    (failed,) = remarks(chapter_with(EXPERIMENT, suite, nothing))
    assert failed.startswith("Left out, because runs failed: ")


def test_other_data_few_classes_and_the_papers_table_are_reported(chapter):
    assert any("compare the pattern" in text for text in remarks(chapter, "data"))
    assert any("Few classes" in note for note in found(chapter, "long-tail").notes)
    assert found(chapter, "paper-long-tail-noise").reference
    assert any("with early noise" in text for text in remarks(chapter))


def test_the_papers_average_is_over_samples_but_for_clips():
    """What the note under the table says."""
    sizes = {"Head class": 2719, "Medium class": 7396, "Tail class": 2416}
    for row in paper_table("long_tail_noise").rows:
        mean = sum(size * row.number(name) for name, size in sizes.items()) / sum(sizes.values())
        assert (abs(mean - row.number("Avg.")) < 0.02) == (row.method != "CLIP")

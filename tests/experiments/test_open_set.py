"""Unknown classes: samples without a prototype are in the stream, and dissimilar ones are detected."""

import re

import numpy as np
import pytest

from experiments.fake_results import chapter_with, nothing
from experiments.reading import found, remarks
from zeroshift import FeatureSet, normalize
from zeroshift.experiments import Suite
from zeroshift.experiments.open_set import COMPARED, EXPERIMENT, SCORES, unknown_classes

CLASSES = 6


def clusters(classes: int = CLASSES, noise: float = 0.05) -> FeatureSet:
    """Tight classes around axes: a sample is similar only to its own prototype."""
    rng = np.random.default_rng(4)
    labels = np.arange(25 * classes) % classes
    features = normalize(np.eye(8)[labels] + noise * rng.normal(size=(len(labels), 8)))
    return FeatureSet(features, prototypes=np.eye(8)[:classes], labels=labels, logit_scale=10.0)


def test_dissimilar_unknown_samples_are_detected_by_every_score():
    outcome_text = unknown_classes(clusters(), prompt="default", seed=1)
    assert len(outcome_text["hidden"]) == CLASSES // 3
    assert outcome_text["unknown"] == 25 * 2
    assert outcome_text["scored"] == 25 * CLASSES
    assert outcome_text["scores"]["cosine"] == {"auroc": 1.0, "fpr95": 0.0}
    assert outcome_text["scores"]["zero_shot"]["auroc"] > 0.99
    assert outcome_text["rejected"]["unknown"] > 0.9
    assert outcome_text["rejected"]["known"] < 0.02
    assert outcome_text["known_accuracy"] == outcome_text["zero_shot_accuracy"] == 1.0
    assert "accuracy" not in outcome_text


def test_the_zero_shot_accuracy_is_that_of_the_known_classes_among_themselves():
    features = clusters(noise=0.8)
    outcome_text = unknown_classes(features, prompt="default", seed=1)
    known = np.setdiff1d(np.arange(CLASSES), outcome_text["hidden"])
    rows = np.flatnonzero(np.isin(features.labels, known))
    nearest = known[(features.features[rows] @ features.prototypes_for()[known].T).argmax(axis=1)]
    assert outcome_text["zero_shot_accuracy"] == pytest.approx(np.mean(nearest == features.labels[rows]))
    assert outcome_text["zero_shot_accuracy"] > features.zero_shot_accuracy()


def test_unknown_samples_similar_to_known_classes_are_not_detected():
    """Features without any class in them: no score can be better than chance."""
    outcome_text = unknown_classes(clusters(noise=50.0), prompt="default", seed=0)
    assert 0.3 < outcome_text["scores"]["cosine"]["auroc"] < 0.7


def test_draws_differ_by_seed_and_repeat():
    first, again, other = (unknown_classes(clusters(), prompt="default", seed=seed) for seed in (0, 0, 2))
    assert first == again
    assert first["hidden"] != other["hidden"]


def test_where_no_sample_is_unknown_nothing_is_claimed():
    features = clusters()
    hidden = unknown_classes(features, prompt="default", seed=1)["hidden"]
    rows = np.flatnonzero(~np.isin(features.labels, hidden))
    outcome_text = unknown_classes(features.subset(rows), prompt="default", seed=1)
    assert outcome_text["scores"] == {}
    assert outcome_text["zero_shot_accuracy"] == 1.0
    strangers = unknown_classes(
        features.subset(np.flatnonzero(np.isin(features.labels, hidden))), prompt="default", seed=1
    )
    assert strangers["scores"] == {}
    assert strangers["zero_shot_accuracy"] is None


def test_sets_of_two_classes_are_skipped_with_a_remark(investigated):
    chapter = investigated(EXPERIMENT, Suite.of({"many": clusters(), "pair": clusters(2)}), orders=2)
    assert {job.features for job in chapter.jobs} == {"many"}
    assert any("fewer than 3 classes: pair." in text for text in remarks(chapter))
    with pytest.raises(ValueError, match="at least 3 classes"):
        unknown_classes(clusters(2), prompt="default", seed=0)


def test_on_real_features_the_cosine_beats_the_softmax(investigated, small_suite):
    """A softmax must spread its mass over the known classes; the cosine need not. Reported either way, set by set."""
    chapter = investigated(EXPERIMENT, orders=2)
    table = found(chapter, "unknown-classes")
    photographs = {row.cells[0]: row.cells[1:] for row in table.rows if row.group == small_suite.members[0].title}
    cosine, zero_shot = (
        photographs["one minus the largest cosine"],
        photographs["one minus the largest probability, zero-shot"],
    )
    assert cosine[0].value > zero_shot[0].value > 0.5
    assert cosine[1].value < zero_shot[1].value
    bars = found(chapter, "auroc").bars
    assert len(bars) == len(SCORES) * len(small_suite)
    assert bars[0].value == pytest.approx(100 * (cosine[0].value - 0.5))
    for words, after, before in COMPARED:
        (message,) = [text for text in remarks(chapter) if text.startswith(words)]
        places = [list(SCORES).index(score) for score in (after, before)]
        for member, first in zip(small_suite.members, range(0, len(bars), len(SCORES)), strict=True):
            new, old = (bars[first + place].value for place in places)
            assert f"{member.title} ({new - old:+.1f} points)" in message
    (message,) = [text for text in remarks(chapter) if text.startswith("Beyond the default cut")]
    for member in small_suite.members:
        unknown, known = map(
            float, re.search(rf"{re.escape(member.title)} \(([\d.]+)% and ([\d.]+)%\)", message).groups()
        )
        assert known < 10
        assert 0 <= unknown <= 100


@pytest.mark.parametrize(
    ("after", "kind", "words"),
    [(0.7, "note", "too close to call on mine (+0.0 points)"),
     (0.72, "note", "too close to call on mine (+2.0 points)"),
     (0.9, "note", "better on mine (+20.0 points)"), (0.5, "warning", "worse on mine (-20.0 points)")],
    ids=["tie", "close", "better", "worse"],
)  # fmt: skip
def test_areas_within_a_standard_error_are_too_close_to_say(after, kind, words):
    areas = {**dict.fromkeys(SCORES, 0.8), "zero_shot": 0.7, "adapt_online": after}
    scores = {name: {"auroc": area, "fpr95": 0.5} for name, area in areas.items()}
    record = {"unknown": 50, "scored": 150, "scores": scores, "rejected": {"unknown": 0.5, "known": 0.02}}
    chapter = chapter_with(EXPERIMENT, Suite.of({"mine": clusters()}), lambda job: record)
    assert any(words in text for text in remarks(chapter, kind))


def test_failed_draws_are_reported_as_failed():
    suite = Suite.of({"mine": clusters()})
    assert remarks(chapter_with(EXPERIMENT, suite, nothing)) == ["All draws failed: mine."]
    mute = chapter_with(EXPERIMENT, suite, lambda job: {"unknown": 0, "scored": 150, "scores": {}})
    assert remarks(mute) == ["No draw had samples both known and unknown: mine."]

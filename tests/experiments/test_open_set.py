"""Unknown classes: their prototypes are gone, their samples are not, and strangers that look like none are found."""

import numpy as np
import pytest

from experiments.tables import found, remarks
from zeroshift import FeatureSet, normalize
from zeroshift.experiments import Suite
from zeroshift.experiments.open_set import EXPERIMENT
from zeroshift.experiments.parts.unknown_classes import unknown_classes

CLASSES = 6


def clusters(classes: int = CLASSES, noise: float = 0.05) -> FeatureSet:
    """Tight classes around axes: a sample is like its own prototype, and like no other."""
    rng = np.random.default_rng(4)
    labels = np.arange(25 * classes) % classes
    features = normalize(np.eye(8)[labels] + noise * rng.normal(size=(len(labels), 8)))
    return FeatureSet(features, prototypes=np.eye(8)[:classes], labels=labels, logit_scale=10.0)


def test_strangers_that_are_like_no_prototype_are_found_by_every_score():
    told = unknown_classes(clusters(), prompt="default", seed=1)
    assert len(told["hidden"]) == CLASSES // 3
    assert told["unknown"] == 25 * 2
    assert told["scored"] == 25 * CLASSES
    assert told["scores"]["cosine"] == {"auroc": 1.0, "fpr95": 0.0}
    assert told["scores"]["zero_shot"]["auroc"] > 0.99
    assert told["accuracy"] == {"zero_shot": 1.0, "adapt_online": 1.0}


def test_nobody_is_found_who_looks_like_the_known():
    """Features without any class in them: no score can be better than chance."""
    told = unknown_classes(clusters(noise=50.0), prompt="default", seed=0)
    assert 0.3 < told["scores"]["cosine"]["auroc"] < 0.7


def test_draws_differ_by_seed_and_repeat():
    first, again, other = (unknown_classes(clusters(), prompt="default", seed=seed) for seed in (0, 0, 2))
    assert first == again
    assert first["hidden"] != other["hidden"]


def test_where_no_sample_is_unknown_nothing_is_claimed():
    features = clusters()
    known = unknown_classes(features, prompt="default", seed=1)["hidden"]
    rows = [row for row, k in enumerate(features.labels) if features.class_names[k] not in known]
    assert unknown_classes(features.subset(rows), prompt="default", seed=1)["scores"] == {}


def test_sets_of_two_classes_are_left_out_and_said_to_be(investigated):
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
        photographs["one less the largest cosine"],
        photographs["one less the largest probability, zero-shot"],
    )
    assert cosine[0].value > zero_shot[0].value > 0.5
    assert cosine[1].value < zero_shot[1].value
    bars = found(chapter, "auroc").bars
    assert len(bars) == 3 * len(small_suite)
    assert bars[0].value == pytest.approx(100 * (cosine[0].value - 0.5))
    worse = [
        member.title
        for member, group in zip(small_suite.members, (bars[i : i + 3] for i in range(0, len(bars), 3)), strict=True)
        if group[2].value < group[1].value
    ]
    said = " ".join(remarks(chapter, "warning"))
    assert all(title in said for title in worse)
    assert bool(worse) == bool(said)

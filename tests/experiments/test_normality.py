"""Table 10: normal classes are not rejected, skewed ones are, and a high mean p is not taken as evidence."""

from dataclasses import replace

import numpy as np
import pytest

from experiments.reading import found, remarks
from zeroshift import FeatureSet
from zeroshift.evaluate import Analysis, JobOutcome, Ledger
from zeroshift.experiments import Investigation, Suite
from zeroshift.experiments.normality import DIMENSIONS, EXPERIMENT, TESTS, normality_of_classes, projected


def made_up(draw, sizes, dimension=20):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    rows = draw((len(labels), dimension)) * 0.02
    rows[:, 0] = 1.0  # one long coordinate, so that unit length hardly bends the others
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return FeatureSet(rows, prototypes=np.eye(len(sizes), dimension), labels=labels)


def rows_of(record, test):
    return {row["dimension"]: row for row in record["tests"] if row["test"] == test}


def test_skewed_classes_are_rejected_far_more_often_than_normal_ones():
    draws = np.random.default_rng(0)
    settings = {"prompt": "default", "kind": "directions", "dimensions": (2, 4), "repeats": 30}
    normal = normality_of_classes(made_up(draws.standard_normal, [80, 80]), **settings)
    skewed = normality_of_classes(made_up(lambda shape: draws.exponential(size=shape) ** 2, [80, 80]), **settings)
    for test in ("Henze-Zirkler", "Shapiro-Wilk"):
        assert rows_of(normal, test)[4]["rejected"] < 0.25
        assert rows_of(skewed, test)[4]["rejected"] > 0.8
        assert rows_of(skewed, test)[4]["mean_p"] < rows_of(normal, test)[4]["mean_p"]


def test_classes_too_small_for_the_dimension_are_skipped_and_counted():
    draws = np.random.default_rng(1)
    features = made_up(draws.standard_normal, [30, 14, 11, 1])
    record = normality_of_classes(features, prompt="default", kind="directions", dimensions=(2, 13), repeats=3)
    assert [(row["classes"], row["left_out"]) for row in rows_of(record, "Henze-Zirkler").values()] == [(2, 2), (1, 3)]
    again = normality_of_classes(features, prompt="default", kind="directions", dimensions=(2, 13), repeats=3)
    assert record == again


def test_coordinates_are_columns_and_directions_keep_lengths():
    x = np.random.default_rng(2).normal(size=(9, 6))
    rng = np.random.default_rng(0)
    for view in projected(x, "coordinates", 3, 5, rng):
        places = [np.flatnonzero((x == column[:, None]).all(axis=0)).item() for column in view.T]
        assert len(set(places)) == 3
    whole = projected(x, "directions", 6, 2, rng)
    np.testing.assert_allclose(np.linalg.norm(whole, axis=2), np.broadcast_to(np.linalg.norm(x, axis=1), (2, 9)))
    with pytest.raises(ValueError, match="must be one of"):
        projected(x, "axes", 2, 1, rng)


def test_the_table_states_dimensions_rejections_and_what_a_mean_p_does_not_show(investigated, small_suite):
    fog = Suite(small_suite.members[1:2])
    chapter = investigated(EXPERIMENT, fog)
    for kind in ("coordinates", "directions"):
        table = found(chapter, kind)
        assert [(row.group, row.cells[0]) for row in table.rows[::5]] == [
            ("Henze-Zirkler", "d = 2"),
            ("Shapiro-Wilk", "d = 2"),
        ]
        for row in table.rows:
            above, _, yardstick_p, rejected, yardstick = row.cells[1:]
            assert 0 <= above.value <= 1
            assert above.paper is None
            # About 30 samples per class: the tests keep their level approximately.
            assert 0.25 < yardstick_p.value < 0.6
            assert yardstick.value < 0.12
            assert rejected.value >= 0
    (outcome_text,) = [text for text in remarks(chapter) if "not evidence of normality" in text]
    assert "a mean of 0.2 would come with" in outcome_text
    for text in remarks(chapter, "warning"):
        assert "these tests do not show how large the departure is" in text
    paper = found(chapter, "paper-normality-tests")
    assert paper.reference
    assert paper.rows[4].cells[2].value == pytest.approx(0.929)


def test_the_papers_numbers_are_next_to_ours_on_its_own_data_alone(investigated, small_suite):
    imagenet = replace(small_suite.members[1], data_set="imagenet", encoder="CLIP ViT-B/16", from_paper=True)
    chapter = investigated(EXPERIMENT, Suite((imagenet,)))
    last = found(chapter, "coordinates").rows[-1]
    assert (last.group, last.cells[0]) == ("Shapiro-Wilk", "d = 10")
    assert last.cells[1].paper == pytest.approx(0.922)
    assert last.cells[2].paper == pytest.approx(0.11)
    assert not any(getattr(finding, "reference", False) for finding in chapter.findings)


def test_imagenet_among_other_sets_keeps_its_own_rows(investigated, small_suite, monkeypatch):
    imagenet = replace(small_suite.members[1], data_set="imagenet", encoder="composed", from_paper=True)
    others = [small_suite.members[0], small_suite.members[2]]
    with_imagenet = Suite((others[0], imagenet, others[1]))
    monkeypatch.setattr("zeroshift.experiments._shared.suite.PAPERS_BACKBONE", "composed")
    table = found(investigated(EXPERIMENT, with_imagenet), "coordinates")
    groups = list(dict.fromkeys(row.group for row in table.rows))
    assert groups == [
        f"{test}, {name}"
        for name in ("cifar10c_fog_5", "2 other sets pooled")
        for test in ("Henze-Zirkler", "Shapiro-Wilk")
    ]
    own, pool = table.rows[9], table.rows[19]
    assert own.cells[1].paper == pytest.approx(0.922)
    assert own.cells[1].low is None, "one set has no range"
    assert pool.cells[1].paper is None
    alone = found(investigated(EXPERIMENT, Suite((small_suite.members[1],))), "coordinates").rows[9]
    assert own.cells[1].value == alone.cells[1].value


def test_several_sets_are_reported_as_pooled(investigated, small_suite):
    table = found(investigated(EXPERIMENT), "coordinates")
    assert table.rows[0].group == "Henze-Zirkler, 3 sets pooled"


def test_rejections_are_compared_with_those_of_normal_samples(small_suite):
    """A remark appears at twice the rejections of normal samples, not at 5%."""
    suite = Suite(small_suite.members[:1])

    def warned(ours, yardstick):
        investigation = Investigation.of([EXPERIMENT], suite)
        outcomes = []
        for job in investigation.jobs:
            rejected = yardstick if job.parameters["kind"] == "normal" else ours
            numbers = {"classes": 10, "left_out": 0, "above": 1.0, "mean_p": 0.5, "rejected": rejected}
            tests = [{"test": t, "dimension": d, **numbers} for t in TESTS for d in DIMENSIONS]
            outcomes.append(JobOutcome(job, {"tests": tests}, None, False))
        return remarks(investigation.chapters(outcomes)[0], "warning")

    assert not warned(ours=0.30, yardstick=0.20)
    (text,) = warned(ours=0.30, yardstick=0.10)
    assert "30.0% against 10.0%" in text


def test_the_baseline_is_of_the_samples_tested():
    features = made_up(np.random.default_rng(3).standard_normal, [20, 20, 5])
    record = normality_of_classes(features, prompt="default", kind="coordinates", dimensions=[2, 4], repeats=2)
    tested = features.subset(features.labels != 2)
    assert tested.zero_shot_accuracy() != features.zero_shot_accuracy()
    assert record["zero_shot_accuracy"] == tested.zero_shot_accuracy()


def test_what_was_found_is_kept_and_read_back(tmp_path):
    features = made_up(np.random.default_rng(5).standard_normal, [20, 20])
    settings = {"kind": "coordinates", "dimensions": [2], "repeats": 2}
    job = Analysis("made up", "digest", "default", normality_of_classes, settings)
    written = Ledger(tmp_path).write(job, job.run(features))
    assert Ledger(tmp_path).read(job) == written

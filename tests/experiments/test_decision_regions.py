"""Decision regions: the plane, its scale, and the class of every point."""

import numpy as np
import pytest

from experiments.reading import column, found, remarks
from zeroshift.data import packs
from zeroshift.evaluate import JobOutcome
from zeroshift.experiments import Investigation, Suite
from zeroshift.experiments.decision_regions import EXPERIMENT, HALF_SIDE, Plane, boundary, lifted, plane_regions


@pytest.fixture(scope="module")
def small():
    return packs.load("cifar10").subset(slice(0, 240))


@pytest.fixture(scope="module")
def record(small):
    return plane_regions(small, prompt="ensemble", classes=4, points=50, grid=30)


def test_the_plane_is_that_of_the_two_largest_variances(small):
    x = np.asarray(small.features, dtype=np.float64)
    prototypes = np.asarray(small.prototypes_for("ensemble"), dtype=np.float64)
    plane = Plane.of(x, prototypes, small.logit_scale)
    values, vectors = np.linalg.eigh(np.cov(x.T))
    assert plane.kept == pytest.approx(values[-2:].sum() / values.sum())
    scores = (x - x.mean(axis=0)) @ vectors[:, [-1, -2]]
    for ours, plain in zip(plane.points.T, scores.T, strict=True):
        assert abs(np.corrcoef(ours, plain)[0, 1]) == pytest.approx(1.0)
    assert max(np.abs(plane.points).max(), np.abs(plane.anchors).max()) == pytest.approx(HALF_SIDE)
    np.testing.assert_allclose(np.linalg.norm(lifted(plane.points), axis=1), 1.0)


def test_logits_vary_as_much_as_in_all_dimensions(small):
    x = np.asarray(small.features, dtype=np.float64)
    prototypes = np.asarray(small.prototypes_for("ensemble"), dtype=np.float64)
    plane = Plane.of(x, prototypes, small.logit_scale)
    before = small.logit_scale * x @ prototypes.T
    after = plane.logit_scale * lifted(plane.points) @ lifted(plane.anchors).T
    assert np.var(after, axis=1).mean() == pytest.approx(np.var(before, axis=1).mean())


def test_zero_shot_gives_every_field_to_the_nearest_prototype(record):
    half = record["half_side"]
    classes = np.array(record["regions"]["zero_shot"]["classes"])
    for row, place in [(0, 0), (3, 25), (29, 29), (14, 10)]:
        u, v = (-half + (2 * i + 1) * half / 30 for i in (place, row))
        field = np.array([u, v, np.sqrt(1 - u**2 - v**2)])
        assert classes[row, place] == np.argmax(lifted(np.array(record["anchors"])) @ field)


def test_zero_shot_accuracy_is_that_of_the_points_nearest_prototypes(small):
    everything = plane_regions(small, prompt="ensemble", classes=4, points=240, grid=10)
    nearest = np.argmax(lifted(np.array(everything["points"])) @ lifted(np.array(everything["anchors"])).T, axis=1)
    right = np.mean(nearest == np.array(everything["labels"]))
    assert everything["rows"] == len(everything["points"])
    assert everything["regions"]["zero_shot"]["accuracy"] == pytest.approx(right, abs=0.02)


def test_what_is_drawn_is_seeded_and_limited(small, record):
    assert len(record["classes"]) == 4
    assert "class_names" not in record, "a set's digest does not know them"
    assert len(record["points"]) == len(record["labels"]) == 50
    assert set(record["labels"]) <= {0, 1, 2, 3}
    assert plane_regions(small, prompt="ensemble", classes=4, points=50, grid=30) == record
    with pytest.raises(ValueError, match="two classes"):
        plane_regions(small, prompt="ensemble", classes=1)


def test_boundaries_are_counted():
    stripes = np.tile([0, 1], (4, 2))
    assert boundary(stripes) == 12 / 24
    assert boundary(np.zeros((5, 5), dtype=int)) == 0


def test_one_clean_and_one_corrupted_set_are_drawn_with_their_limits(investigated, small_suite):
    chapter = investigated(EXPERIMENT)
    assert [job.features for job in chapter.jobs] == ["cifar10", "cifar10c_fog_5"]
    for name in ("regions-1", "regions-2"):
        regions = found(chapter, name)
        assert len(regions.regions) == 4
        assert regions.points.shape[0] == regions.labels.shape[0] <= 300
        for region in regions.regions:
            assert region.classes.shape == (80, 80)
            assert region.classes.max() < len(regions.class_names)
    table = found(chapter, "plane")
    zero_shot = [row for row in table.rows if row.cells[0] == "zero-shot"]
    # The caption warns that the plane loses much of what separates the classes.
    assert all(row.cells[1].value < row.cells[2].value for row in zero_shot)
    assert any("An illustration" in text for text in remarks(chapter))
    (outcome_text,) = remarks(chapter, "data")
    assert "ImageNet-A" in outcome_text
    assert "TPT is missing" in outcome_text
    assert "CIFAR-10; CIFAR-10 under fog" in outcome_text
    dataset = small_suite.members[0].dataset
    drawn = chapter.jobs[0].run(dataset.load())["classes"]
    assert found(chapter, "regions-1").class_names == tuple(dataset.class_names[k] for k in drawn)
    assert "variance" in found(chapter, "regions-1").caption
    held = column(table, "classes with a region")
    assert 1 <= held["TDA"].value <= 6


def test_the_baseline_is_of_the_rows_and_classes_drawn(small, record):
    rows = np.isin(small.labels, record["classes"])
    cosines = np.asarray(small.features[rows], dtype=np.float64) @ small.prototypes_for("ensemble")[record["classes"]].T
    right = np.array(record["classes"])[cosines.argmax(axis=1)] == small.labels[rows]
    assert record["zero_shot_accuracy"] == pytest.approx(right.mean())
    assert record["zero_shot_accuracy"] != small.zero_shot_accuracy("ensemble")


def test_the_plane_is_the_same_side_up_even_where_cubes_cancel():
    """The first direction here is (1, -1) / sqrt(2), whose cubes add up to nothing; its points must not."""
    rows = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [0.8, 0.6]])
    plane = Plane.of(rows, np.eye(2), 10.0)
    assert np.linalg.matrix_rank(plane.points) == 2
    assert np.isfinite(plane.logit_scale)


def test_rows_or_prototypes_that_do_not_differ_are_rejected():
    same = np.tile([0.6, 0.8, 0.0], (5, 1))
    with pytest.raises(ValueError, match="all the same"):
        Plane.of(same, np.eye(3)[:2], 10.0)
    spread = np.vstack([np.eye(3), -np.eye(3)])
    with pytest.raises(ValueError, match="one point of the plane"):
        Plane.of(spread, np.tile([0.0, 0.0, 1.0], (2, 1)), 10.0)


def test_where_every_run_failed_nothing_is_claimed(small_suite):
    investigation = Investigation.of([EXPERIMENT], small_suite)
    outcomes = [JobOutcome(job, None, "out of memory", False) for job in investigation.jobs]
    (finding,) = investigation.chapters(outcomes)[0].findings
    assert "every run failed" in finding.text


@pytest.mark.parametrize(
    ("ours", "held", "message"),
    [(0.05, 4, "Confirmed here"), (0.096, 4, "Too close to call"), (0.2, 4, "Not confirmed here"), (0.05, 3, None)],
)
def test_a_short_boundary_is_smooth_only_where_no_class_lost_its_region(small_suite, record, ours, held, message):
    """TDA's is 10% of all pairs of neighbours."""
    suite = Suite(small_suite.members[:1])
    regions = {
        name: {**region, "boundary": 0.1, "classes_with_a_region": 4} for name, region in record["regions"].items()
    }
    regions["adapt_online"] |= {"boundary": ours, "classes_with_a_region": held}
    investigation = Investigation.of([EXPERIMENT], suite)
    outcomes = [JobOutcome(job, {**record, "regions": regions}, None, False) for job in investigation.jobs]
    chapter = investigation.chapters(outcomes)[0]
    judged = [text for text in remarks(chapter) if "smoother than TDA's" in text]
    assert [message in text for text in judged] == ([] if message is None else [True])
    assert any("without any region left" in text for text in remarks(chapter, "warning")) == (held < 4)

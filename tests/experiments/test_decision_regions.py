"""Decision regions: the plane keeps what it says, and fields belong to whom the method gives them."""

import numpy as np
import pytest

from experiments.tables import column, found, remarks
from zeroshift.data import packs
from zeroshift.experiments.decision_regions import EXPERIMENT
from zeroshift.experiments.parts.plane import HALF_SIDE, Plane, lifted
from zeroshift.experiments.parts.plane_regions import boundary, plane_regions


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
    assert len(record["class_names"]) == 4
    assert len(record["points"]) == len(record["labels"]) == 50
    assert set(record["labels"]) <= {0, 1, 2, 3}
    assert plane_regions(small, prompt="ensemble", classes=4, points=50, grid=30) == record
    with pytest.raises(ValueError, match="two classes"):
        plane_regions(small, prompt="ensemble", classes=1)


def test_boundaries_are_counted():
    stripes = np.tile([0, 1], (4, 2))
    assert boundary(stripes) == 12 / 24
    assert boundary(np.zeros((5, 5), dtype=int)) == 0


def test_one_clean_and_one_corrupted_set_are_pictured_and_the_limits_are_told(investigated):
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
    # What the caption warns of: the plane loses much of what tells classes apart.
    assert all(row.cells[1].value < row.cells[2].value for row in zero_shot)
    assert any("An illustration" in text for text in remarks(chapter))
    assert "variance" in found(chapter, "regions-1").caption
    held = column(table, "classes with a region")
    assert 1 <= held["TDA"].value <= 6

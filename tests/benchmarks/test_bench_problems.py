"""Synthetic problems have the stated geometry and are reproducible."""

import numpy as np
import pytest

from zeroshift import FeatureSet, TransductiveADAPT
from zeroshift.adapt.bank_term_bounds import fit_cones, shared_direction, uncertain_pairs
from zeroshift.benchmarks.problems import CHUNK_ROWS, BenchProblem, clip_like, clip_like_file, describe_geometry


@pytest.fixture(scope="module")
def imagenet_sized():
    return describe_geometry(clip_like(classes=1000, dimension=512, samples=5000))


def test_image_cone(imagenet_sized):
    assert 0.5 < imagenet_sized.between < 0.65
    assert imagenet_sized.between + 0.1 < imagenet_sized.within < 0.85
    assert imagenet_sized.negative < 1e-3


def test_modality_gap(imagenet_sized):
    assert 0.15 < imagenet_sized.unmatched < 0.25
    assert imagenet_sized.unmatched + 0.05 < imagenet_sized.matched < 0.35


def test_zero_shot_accuracy_is_that_of_clip_on_imagenet(imagenet_sized):
    assert imagenet_sized.accuracy == pytest.approx(0.65, abs=0.03)
    assert 0.45 < imagenet_sized.confidence < 0.7


@pytest.mark.parametrize(("classes", "dimension"), [(10, 256), (100, 256), (100, 1024)])
def test_other_sizes_are_plausible_too(classes, dimension):
    found = describe_geometry(clip_like(classes, dimension, samples=1500))
    assert 0.5 < found.between < 0.65
    assert 0.6 < found.accuracy < 0.99


def test_one_shared_anisotropic_covariance():
    """No axis dominates, most carry little, and two classes have the same covariance."""
    found = describe_geometry(clip_like(classes=5, dimension=128, samples=4000))
    assert found.top_axis < 0.15
    assert found.axes < 80
    problem = clip_like(classes=2, dimension=32, samples=6000)
    one, other = (np.cov(problem.features[problem.labels == k].T) for k in (0, 1))
    assert np.linalg.norm(one - other) < 0.25 * np.linalg.norm(one)


def test_the_clustered_geometry_has_cosines_of_either_sign_and_defeats_the_cones():
    problem = clip_like(classes=200, dimension=128, samples=2000, geometry="clustered")
    found = describe_geometry(problem)
    assert 0.3 < found.between < 0.45
    assert 1e-4 < found.negative < 2e-2
    adapter = TransductiveADAPT(problem.prototypes, logit_scale=problem.logit_scale)
    adapter.adapt(problem.features)
    bank = adapter._evidence
    sums, weights = bank.sums()
    m = shared_direction(sums)
    x = problem.features[:200].astype(np.float64)
    cones = fit_cones(bank.features, bank.occupied, sums, weights, m)
    assert uncertain_pairs(x @ sums.T, x, m, cones, weights).mean() > 0.5


def test_classes_of_one_cluster_are_alike():
    prototypes = clip_like(100, 64, 10, geometry="clustered").prototypes
    cosines = np.sort(prototypes @ prototypes.T, axis=1)
    nearest, median = cosines[:, -2].mean(), np.median(cosines)
    plain = clip_like(100, 64, 10).prototypes
    plain_cosines = np.sort(plain @ plain.T, axis=1)
    assert nearest - median > plain_cosines[:, -2].mean() - np.median(plain_cosines)


def test_an_unknown_geometry_is_refused():
    with pytest.raises(ValueError, match="geometry must be"):
        clip_like(5, 16, 10, geometry="round")


def test_rows_are_unit_float32():
    problem = clip_like(classes=7, dimension=24, samples=50)
    for rows in (problem.features, problem.prototypes):
        assert rows.dtype == np.float32
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    assert problem.labels.min() >= 0
    assert problem.labels.max() < 7


def test_the_seed_decides():
    one, same, other = (clip_like(5, 16, 40, seed=seed) for seed in (3, 3, 4))
    assert np.array_equal(one.features, same.features)
    assert np.array_equal(one.prototypes, same.prototypes)
    assert not np.array_equal(one.prototypes, other.prototypes)


def test_a_longer_stream_begins_with_the_shorter():
    short, long = clip_like(5, 16, 100), clip_like(5, 16, CHUNK_ROWS + 10)
    np.testing.assert_allclose(long.features[:100], short.features, atol=1e-6)
    assert np.array_equal(long.labels[:100], short.labels)


def test_the_file_holds_the_same(tmp_path):
    made, mapped = clip_like(5, 16, 300), clip_like_file(tmp_path / "x.npy", 5, 16, 300)
    assert isinstance(mapped.features, np.memmap)
    assert np.array_equal(mapped.features, made.features)
    assert np.array_equal(mapped.labels, made.labels)
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]


def test_real_features_take_the_same_shape():
    real = FeatureSet(np.eye(3), prototypes=np.eye(3), logit_scale=20.0)
    problem = BenchProblem.of(real)
    assert problem.logit_scale == 20.0
    assert problem.labels.tolist() == [-1, -1, -1]


@pytest.mark.parametrize(("name", "value"), [("classes", 0), ("dimension", 2), ("samples", 0), ("samples", 1.5)])
def test_impossible_sizes_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} must be an integer of at least"):
        clip_like(**{name: value})

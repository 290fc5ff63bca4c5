"""From sums to classes: two classes in the plane computed by hand, leave-one-out, and classes without spread."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mixture.sets import make_support
from streams import STREAMS, Stream
from zeroshift import OnlineAnchoredMixture, TransductiveAnchoredMixture
from zeroshift.arrays import Backend
from zeroshift.mixture.statistics import MixtureConstants, StreamDiagnostics, estimate
from zeroshift.mixture.sums import Sums
from zeroshift.testing import make_problem

PROTOTYPES = np.eye(2)
FEATURES = np.array([[2.0, 0.0], [1.0, 3.0], [4.0, 0.0], [-1.0, 3.0]])
"""Alternately of classes 0 and 1 with centres (3, 0) and (0, 3). Each is 1 from its centre along the first axis."""

CONSTANTS = MixtureConstants(
    anchor_count=1.0,
    cautious_anchor_count=2.0,
    spread_range=(0.1, 5.0),
    spread_samples=1.0,
    shrinkage=0.5,
    shrinkage_samples=1.0,
    reliability_samples=2.0,
    weight=1.0,
    first_samples=1,
    correlation=0.1,
    balance=(0.6, 0.8),
    relief=1.0,
    calm=0.5,
)


def sums_of_stream(posteriors=None, features=FEATURES):
    q = np.eye(2)[np.arange(len(features)) % 2]
    sums = Sums.zeros(Backend.of(features), 2, 2).add_samples(features, q)
    return sums.add_posteriors(q if posteriors is None else posteriors, None, in_order=True)


def found(**changes):
    return estimate(sums_of_stream(), PROTOTYPES, replace(CONSTANTS, **changes))


def test_two_classes_in_the_plane():
    """The centers are (1.5, 1.5) for images and (0.5, 0.5) for text. Class means are sqrt(4.5) from theirs, prototypes
    sqrt(0.5), so the spread is 3, the anchors are the centres, and these are the means. S = diag(1, 0),
    lam = 0.5 + 0.5 * 2/(2 + 4) = 2/3, and P is the inverse of diag(1/3 + 1/3, 1/3)."""
    mixture = found()
    np.testing.assert_allclose(mixture.means, [[3.0, 0.0], [0.0, 3.0]], atol=1e-15)
    np.testing.assert_allclose(mixture.precision, np.diag([1.5, 3.0]), atol=1e-14)
    np.testing.assert_allclose(mixture.mean_counts, [3.0, 3.0])
    np.testing.assert_allclose(mixture.widening, [0.75, 0.75])
    assert mixture.reliability == 0.5
    assert mixture.stream.combined == 0.0
    # To (3, 0): 3 * 1. To (0, 3): 1.5 * 9 + 3 * 4. Each by 3/4.
    distances = mixture.distances(np.array([[3.0, 1.0]]))
    np.testing.assert_allclose(distances, [[2.25, 19.125]], atol=1e-13)
    reading = mixture.posteriors(np.log([[0.5, 0.5]]), distances)
    np.testing.assert_allclose(reading.posteriors[0, 1] / reading.posteriors[0, 0], np.exp(-0.25 * 16.875))
    np.testing.assert_allclose(np.exp(reading.answer), reading.posteriors)
    believed = mixture.confidences(np.log([[0.5, 0.5]]), distances, reading.answer)[0, 0]
    assert believed == pytest.approx(1 / (1 + np.exp(-0.5 * 0.25 * 16.875)))


@pytest.mark.parametrize(
    ("changes", "spread"),
    [({"spread_range": (0.1, 2.0)}, 2.0), ({"spread_range": (4.0, 5.0)}, 4.0), ({"spread_samples": 2.0}, 1.0)],
    ids=["no more than the greatest", "no less than the least", "one while there are few samples"],
)
def test_spread_of_the_anchors(changes, spread):
    """An anchor is (1.5, 1.5) + spread (0.5, -0.5), and counts as one sample next to two whose sum is (6, 0)."""
    anchor = np.array([1.5, 1.5]) + spread * np.array([0.5, -0.5])
    np.testing.assert_allclose(found(**changes).means[0], (np.array([6.0, 0.0]) + anchor) / 3)


def test_full_caution():
    """Posteriors that only ever see one of the two classes: anchors count twice, and means are as good as known."""
    posteriors = np.array([[1.0, 0.0]] * 4)
    mixture = estimate(sums_of_stream(posteriors), PROTOTYPES, CONSTANTS)
    assert mixture.stream == StreamDiagnostics(0.0, 1.0)
    assert mixture.anchor == 2.0
    np.testing.assert_allclose(mixture.mean_counts, [4.0, 4.0])
    np.testing.assert_allclose(mixture.widening, 1.0)
    np.testing.assert_allclose(mixture.distances(np.array([[3.0, 1.0]])), [[3.0, 25.5]], atol=1e-13)


def test_relief_removes_the_gaussians_from_answers_only():
    log_y, distances = np.log([[0.3, 0.7]]), np.array([[2.25, 19.125]])
    for relief, order, left in ((1.0, 1.0, 0.0), (1.0, 0.25, 0.75), (0.5, 1.0, 0.5), (0.0, 1.0, 1.0)):
        mixture = replace(found(relief=relief), stream=StreamDiagnostics(order, 0.0))
        reading = mixture.posteriors(log_y, distances)
        odds = 0.7 / 0.3 * np.exp(-0.25 * 16.875)
        assert reading.posteriors[0, 1] / reading.posteriors[0, 0] == pytest.approx(odds)
        odds = 0.7 / 0.3 * np.exp(-0.25 * left * 16.875)
        assert np.exp(reading.answer[0, 1] - reading.answer[0, 0]) == pytest.approx(odds)


def test_tied_classes_share_the_reference_probability():
    mixture = found()
    log_y, distances = np.log([[0.5, 0.5]]), np.array([[4.0, 4.0 + 1e-12]])
    for answer in (log_y, log_y + np.array([[1e-12, 0.0]]), log_y + np.array([[0.0, 1e-12]])):
        assert mixture.confidences(log_y, distances, answer)[0, 0] == pytest.approx(0.5, abs=1e-12)


def test_no_mixture_with_too_few_samples():
    assert found(first_samples=5) is None
    assert found(first_samples=4) is not None


def test_leave_one_out_equals_means_without_the_sample():
    problem = make_problem(4, 6, 40, seed=60)
    q = np.random.default_rng(61).dirichlet(np.ones(4), size=40)
    sums = Sums.zeros(Backend.of(q), 4, 6).add_samples(problem.features, q).add_posteriors(q, None, in_order=False)
    mixture = estimate(sums, problem.prototypes, replace(CONSTANTS, reliability_samples=32.0))
    anchors = mixture.means * mixture.mean_counts[:, None] - sums.weighted
    left_out = mixture.leave_one_out(mixture.distances(problem.features), q)
    for i, x in enumerate(problem.features):
        for k in range(4):
            mean = (sums.weighted[k] - q[i, k] * x + anchors[k]) / (mixture.mean_counts[k] - q[i, k])
            expected = (x - mean) @ mixture.precision @ (x - mean) * mixture.widening[k]
            assert left_out[i, k] == pytest.approx(expected, rel=1e-9)


def test_leave_one_out_removes_at_most_the_whole_contribution():
    """Surveyed with the statistics of other samples, a share may be more than the class's count."""
    mixture = replace(found(), mean_counts=np.array([1.5, 3.0]))
    np.testing.assert_allclose(
        mixture.leave_one_out(np.ones((1, 2)), np.array([[0.9, 0.1]])), [[1.5**2, (3 / 2.9) ** 2]]
    )


def test_precision_is_zero_without_variance():
    mixture = estimate(sums_of_stream(features=np.eye(2)[np.arange(8) % 2]), PROTOTYPES, CONSTANTS)
    assert not mixture.precision.any()
    np.testing.assert_array_equal(mixture.distances(FEATURES), 0.0)


@pytest.mark.parametrize("cls", [OnlineAnchoredMixture, TransductiveAnchoredMixture], ids=lambda cls: cls.name)
@pytest.mark.parametrize("seed", [14, 23, 81, 117, 148])
def test_rounding_noise_is_not_a_variance(cls, seed):
    """Features exactly on the prototypes: the sums cancel to noise, whose matrix need not be positive."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    draw = np.random.default_rng(seed)
    sizes = (int(draw.integers(2, 8)), int(draw.integers(2, 20)), int(draw.integers(20, 90)))
    problem = make_problem(*sizes, seed=seed)
    features = problem.prototypes[problem.labels]
    for scale in (100.0, 1e4):
        answer = cls(torch.from_numpy(problem.prototypes), logit_scale=scale).adapt(torch.from_numpy(features))
        np.testing.assert_array_equal(answer.numpy().argmax(axis=1), problem.labels)


def test_equal_prototypes_have_no_spread():
    stream = Stream(STREAMS["small"]().features, np.tile(STREAMS["small"]().prototypes[:1], (5, 1)), 20.0)
    method = TransductiveAnchoredMixture(stream.prototypes, logit_scale=stream.logit_scale)
    np.testing.assert_allclose(method.adapt(stream.features), 0.2, atol=1e-12)


def test_support_moves_the_means_before_any_sample():
    problem = make_problem(4, 8, 20, seed=62)
    support = make_support(Stream(problem.features, problem.prototypes, 20.0), per_class=3)
    method = OnlineAnchoredMixture(problem.prototypes, logit_scale=20.0, support=support)
    assert method.counts.tolist() == [4.0, 3.0, 3.0, 3.0]
    assert np.abs(method.means - problem.prototypes).max() > 1e-3
    assert method.n_seen == 0

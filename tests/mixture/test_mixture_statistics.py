"""From sums to classes: two classes in the plane computed by hand, leave-one-out, and classes without spread."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mixture.sets import make_support
from streams import STREAMS, Stream
from zeroshift import OnlineAnchoredMixture, TransductiveAnchoredMixture
from zeroshift.arrays import Backend
from zeroshift.mixture.scoring import MixtureHead
from zeroshift.mixture.statistics import Distances, MixtureConstants, StreamDiagnostics, estimate, posteriors_of
from zeroshift.mixture.sums import Sums
from zeroshift.testing import make_problem

PROTOTYPES = np.eye(2)
FEATURES = np.array([[2.0, 0.0], [1.0, 3.0], [4.0, 0.0], [-1.0, 3.0]])
"""Alternately of classes 0 and 1 with centres (3, 0) and (0, 3). Each is 1 from its centre along the first axis."""

SAMPLE = np.array([[3.0, 1.0]])
"""Its distances are 3 * 1 to (3, 0) and 1.5 * 9 + 3 * 4 to (0, 3), in the precision diag(1.5, 3)."""

CONSTANTS = MixtureConstants(
    anchor_count=1.0,
    cautious_anchor_count=2.0,
    spread_range=(0.1, 5.0),
    shrinkage=0.5,
    shrinkage_samples=1.0,
    reliability_samples=2.0,
    weight=1.0,
    first_samples=1,
    occurring=(0.6, 0.8),
    varying=(0.6, 0.8),
    few_classes_weight=0.5,
    proportions=0.0,
    relative_samples=2.0,
    calm=0.5,
)


def sums_of_stream(posteriors=None, features=FEATURES, second=None):
    q = np.eye(2)[np.arange(len(features)) % 2]
    width = 0 if second is None else second.shape[1]
    sums = Sums.zeros(Backend.of(features), 2, 2, width).add_samples(features, q, second)
    return sums.add_posteriors(q if posteriors is None else posteriors, second)


def found(stay=0.0, sums=None, **changes):
    return estimate(sums or sums_of_stream(), None, PROTOTYPES, stay, replace(CONSTANTS, **changes))


def posteriors(mixture, log_y, distances):
    odds = np.exp(log_y + mixture.log_likelihoods(Distances(distances, None)))
    return odds / odds.sum()


def test_two_classes_in_the_plane():
    """The centers are (1.5, 1.5) for images and (0.5, 0.5) for text. Class means are sqrt(4.5) from theirs, prototypes
    sqrt(0.5), so the spread is 3, the anchors are the centres, and these are the means. S = diag(1, 0),
    lam = 0.5 + 0.5 * 2/(2 + 4) = 2/3, and P is the inverse of diag(1/3 + 1/3, 1/3)."""
    mixture = found()
    np.testing.assert_allclose(mixture.gaussians.means, [[3.0, 0.0], [0.0, 3.0]], atol=1e-15)
    np.testing.assert_allclose(mixture.gaussians.precision, np.diag([1.5, 3.0]), atol=1e-14)
    np.testing.assert_allclose(mixture.mean_counts, [3.0, 3.0])
    np.testing.assert_allclose(mixture.factors, [0.75, 0.75])
    assert mixture.backgrounds is None
    assert mixture.class_offsets is None
    assert mixture.reliability == 0.5
    assert mixture.stream.combined == 0.0
    distances = mixture.distances(SAMPLE)
    assert distances.second is None
    np.testing.assert_allclose(distances.first, [[0.75 * 3.0, 0.75 * 25.5]], atol=1e-13)
    answer = posteriors(mixture, np.log([[0.5, 0.5]]), distances.first)
    np.testing.assert_allclose(answer[0, 1] / answer[0, 0], np.exp(-0.25 * 16.875))
    believed = mixture.confidences(np.log([[0.5, 0.5]]), distances, np.log(answer))[0, 0]
    assert believed == pytest.approx(1 / (1 + np.exp(-0.5 * 0.25 * 16.875)))


@pytest.mark.parametrize(
    ("changes", "spread"),
    [({"spread_range": (0.1, 2.0)}, 2.0), ({"spread_range": (4.0, 5.0)}, 4.0)],
    ids=["no more than the greatest", "no less than the least"],
)
def test_spread_of_the_anchors(changes, spread):
    """An anchor is (1.5, 1.5) + spread (0.5, -0.5), and counts as one sample next to two whose sum is (6, 0)."""
    anchor = np.array([1.5, 1.5]) + spread * np.array([0.5, -0.5])
    np.testing.assert_allclose(found(**changes).gaussians.means[0], (np.array([6.0, 0.0]) + anchor) / 3)


ONE_CLASS = np.array([[1.0, 0.0]] * 4)
"""Posteriors that only ever see one of the two classes."""


def test_few_classes_leave_the_anchors_at_the_text():
    """Anchors count twice, and are the prototypes (1, 0) and (0, 1): means (6, 0)/4 + (1, 0)/2 and the like. They
    are as good as known."""
    mixture = found(sums=sums_of_stream(ONE_CLASS))
    assert mixture.stream == StreamDiagnostics(0.0, 1.0, 1.0)
    assert mixture.anchor == 2.0
    np.testing.assert_allclose(mixture.mean_counts, [4.0, 4.0])
    np.testing.assert_allclose(mixture.factors, 1.0)
    np.testing.assert_allclose(mixture.gaussians.means, [[2.0, 0.0], [0.0, 2.0]], atol=1e-14)


@pytest.mark.parametrize(("stay", "order"), [(0.25, 0.5), (0.5, 1.0), (0.9, 1.0)])
def test_in_an_ordered_stream_anchors_move_to_the_images(stay, order):
    """Half ordered, anchors lie half way. Fully ordered they are the centres, because the spread is 3."""
    mixture = found(stay, sums=sums_of_stream(ONE_CLASS))
    anchor = np.array([1.0, 0.0]) * (1 - order) + np.array([3.0, 0.0]) * order
    np.testing.assert_allclose(mixture.gaussians.means[0], (np.array([6.0, 0.0]) + 2 * anchor) / 4, atol=1e-14)


def test_few_classes_weaken_the_gaussians_of_a_set():
    """h = 1 with a share of 1/2: 1/4 * 1/2."""
    assert found().distance_weight == 0.25
    assert found(sums=sums_of_stream(ONE_CLASS)).distance_weight == 0.125
    assert found(sums=sums_of_stream(ONE_CLASS), few_classes_weight=1.0).distance_weight == 0.25


def test_few_classes_make_the_reference_calmer():
    """h = 1: a fourth of 1/2 * 1/4. The proportions do not count."""
    log_y = np.log([[0.3, 0.7]])
    for proportions in (0.0, 1.0):
        mixture, distances = found(sums=sums_of_stream(ONE_CLASS), proportions=proportions), np.array([[2.25, 19.125]])
        reference = mixture.confidences(log_y, Distances(distances, None), np.log([[0.9, 0.1]]))[0, 0]
        assert reference == pytest.approx(1 / (1 + 0.7 / 0.3 * np.exp(-0.25 * 0.5 * 0.25 * 16.875)))


def test_proportions_of_the_classes():
    """Counts 3 and 1 of four samples: (3.1, 1.1)/4.2, to the power of their weight."""
    q = np.eye(2)[[0, 0, 0, 1]]
    sums = Sums.zeros(Backend.of(q), 2, 2).add_samples(FEATURES, q).add_posteriors(ONE_CLASS)
    mixture = found(sums=sums, proportions=0.5)
    np.testing.assert_allclose(mixture.class_offsets, 0.5 * np.log([3.1 / 4.2, 1.1 / 4.2]))
    none, some = found(sums=sums), found(sums=sums, proportions=0.5)
    ratio = posteriors(some, 0.0, np.ones((1, 2))) / posteriors(none, 0.0, np.ones((1, 2)))
    assert ratio[0, 0] / ratio[0, 1] == pytest.approx((3.1 / 1.1) ** 0.5)
    assert found(proportions=0.5).class_offsets is None  # all classes occur


def test_distances_in_an_ordered_stream():
    """v = 2/(2 + 2), so a distance is half a class's own and half the typical one. S = diag(1, 0) with the anchors at
    the centres and tr(P S) = 1.5. Around their mean (1.5, 1.5) the samples have the covariance
    [[13/4, -9/4], [-9/4, 9/4]], and tr(P ...) = 1.5 * 13/4 + 3 * 9/4. From (3, 1) to the mean it is
    1.5 * 9/4 + 3/4 = 4.125, so the typical distance would be 4.125 + 1.5 - 11.625 < 0 and counts as 0."""
    mixture = found(stay=0.5)
    np.testing.assert_allclose(mixture.gaussians.means, [[3.0, 0.0], [0.0, 3.0]], atol=1e-15)
    assert mixture.gaussians.typical_offset == pytest.approx(1.5 - 11.625)
    np.testing.assert_allclose(mixture.factors, 0.5)
    np.testing.assert_allclose(mixture.backgrounds, 0.5)
    np.testing.assert_allclose(mixture.distances(SAMPLE).first, [[1.5, 12.75]], atol=1e-13)
    # (5, -1): 1.5 * 4 + 3 and 1.5 * 25 + 3 * 16 from the classes, 1.5 * 49/4 + 3 * 25/4 from the mean.
    own, typical = np.array([9.0, 85.5]), 37.125 + 1.5 - 11.625
    np.testing.assert_allclose(mixture.distances(np.array([[5.0, -1.0]])).first[0], (own + typical) / 2)
    half = found(stay=0.25)
    widening = 0.5 * 3.5 / 4.5 + 0.5  # kappa = 1.5, u = 0.5
    np.testing.assert_allclose(half.factors, 0.5 * widening + 0.25)
    np.testing.assert_allclose(half.backgrounds, 0.25)


@pytest.mark.parametrize(("stay", "left"), [(0.0, 1.0), (0.2, 1.0), (0.5, 2 / 3), (0.8, 2 / 9), (0.98, 2 / 99)])
def test_correlated_neighbours_weaken_the_gaussians_of_answers_but_not_the_reference(stay, left):
    """Two neighbours that stay with probability a count as one sample: 2 (1 - a)/(1 + a), at most 1."""
    log_y, distances = np.log([[0.3, 0.7]]), Distances(np.array([[2.25, 19.125]]), None)
    mixture = found(stay)
    answer = posteriors(mixture, log_y, distances.first)
    assert answer[0, 1] / answer[0, 0] == pytest.approx(0.7 / 0.3 * np.exp(-0.25 * left * 16.875))
    odds = 0.7 / 0.3 * np.exp(-0.5 * 0.25 * 16.875)
    reference = mixture.confidences(log_y, distances, np.log([[0.9, 0.1]]))[0, 0]
    assert reference == pytest.approx(1 / (1 + odds))


def test_tied_classes_share_the_reference_probability():
    mixture = found()
    log_y, distances = np.log([[0.5, 0.5]]), Distances(np.array([[4.0, 4.0 + 1e-12]]), None)
    for answer in (log_y, log_y + np.array([[1e-12, 0.0]]), log_y + np.array([[0.0, 1e-12]])):
        assert mixture.confidences(log_y, distances, answer)[0, 0] == pytest.approx(0.5, abs=1e-12)


def test_no_mixture_with_too_few_samples():
    assert found(first_samples=5) is None
    assert found(first_samples=4) is not None


def test_labelled_samples_are_in_the_classes_but_not_in_the_shares():
    labelled = Sums.from_labelled(np.array([[6.0, 0.0]]), np.array([0]), 2)
    mixture = estimate(sums_of_stream(ONE_CLASS), labelled, PROTOTYPES, 0.0, CONSTANTS)
    np.testing.assert_allclose(mixture.mean_counts, [5.0, 4.0])
    assert mixture.reliability == 5 / 9
    assert mixture.stream.few_classes == 1.0


SECOND = np.array([[0.0], [4.0], [2.0], [6.0]])
"""One number per sample; the classes have the means 1 and 5, with their anchors."""


def test_second_encoder_by_hand():
    """S = 1 with the anchors at the class means, lam = 0.5 + 0.5/5 and P = 1 whatever lam is. The first encoder and the
    second have nothing to agree on yet."""
    mixture = found(sums=sums_of_stream(second=SECOND))
    np.testing.assert_allclose(mixture.second.means, [[1.0], [5.0]])
    np.testing.assert_allclose(mixture.second.precision, [[1.0]])
    assert mixture.second_weight == 0.0
    distances = mixture.distances(SAMPLE, np.array([[2.0]]))
    np.testing.assert_allclose(distances.second, [[0.75, 0.75 * 9]])
    np.testing.assert_allclose(mixture.log_likelihoods(distances), -0.25 * distances.first)
    trusted = replace(mixture, second_weight=0.4)
    mean = (distances.first + 0.4 * distances.second) / 1.4
    np.testing.assert_allclose(trusted.log_likelihoods(distances), -0.25 * mean)
    first, alone = mixture.single_posteriors(np.log([[0.5, 0.5]]), distances)
    assert first[0, 1] / first[0, 0] == pytest.approx(np.exp(-0.25 * 16.875))
    assert alone[0, 1] / alone[0, 0] == pytest.approx(np.exp(-0.25 * 6.0))


@pytest.mark.parametrize(
    ("first", "second", "weight"),
    [
        ([[1, 0], [0, 1], [1, 0], [0, 1]], [[1, 0], [0, 1], [1, 0], [0, 1]], 1.0),
        ([[1, 0], [0, 1], [1, 0], [0, 1]], [[0, 1], [1, 0], [0, 1], [1, 0]], 0.0),
        ([[1, 0], [0, 1], [1, 0], [0, 1]], [[1, 0], [1, 0], [0, 1], [0, 1]], 0.0),
        ([[1, 0], [0, 1], [1, 0], [0, 1]], [[1, 0], [0, 1], [1, 0], [1, 0]], 0.125),
        ([[1, 0], [1, 0], [1, 0], [1, 0]], [[1, 0], [1, 0], [1, 0], [1, 0]], 0.0),
    ],
    ids=["equal", "opposite", "independent", "three of four", "nothing varies"],
)
def test_weight_of_the_second_encoder(first, second, weight):
    """Three of four: together 3/4, chance 1/2 * 3/4 + 1/2 * 1/4 = 1/2, so an agreement of
    (3/4 - 1/2)/(1 - 1/2). The weight is its third power."""
    sums = sums_of_stream(second=SECOND).add_agreement(np.array(first, float), np.array(second, float))
    assert found(sums=sums).second_weight == pytest.approx(weight)


def test_leave_one_out_equals_means_without_the_sample():
    problem = make_problem(4, 6, 40, seed=60)
    q = np.random.default_rng(61).dirichlet(np.ones(4), size=40)
    sums = Sums.zeros(Backend.of(q), 4, 6).add_samples(problem.features, q).add_posteriors(q)
    mixture = estimate(sums, None, problem.prototypes, 0.0, replace(CONSTANTS, reliability_samples=32.0))
    gaussians = mixture.gaussians
    anchors = gaussians.means * mixture.mean_counts[:, None] - sums.weighted
    left_out = mixture.leave_one_out(mixture.distances(problem.features), q).first
    for i, x in enumerate(problem.features):
        for k in range(4):
            mean = (sums.weighted[k] - q[i, k] * x + anchors[k]) / (mixture.mean_counts[k] - q[i, k])
            expected = (x - mean) @ gaussians.precision @ (x - mean) * mixture.factors[k]
            assert left_out[i, k] == pytest.approx(expected, rel=1e-9)


def test_leave_one_out_removes_at_most_the_whole_contribution():
    """Surveyed with the statistics of other samples, a share may be more than the class's count."""
    mixture = replace(found(), mean_counts=np.array([1.5, 3.0]))
    distances = Distances(np.ones((1, 2)), 2.0 * np.ones((1, 2)))
    others = mixture.leave_one_out(distances, np.array([[0.9, 0.1]]))
    np.testing.assert_allclose(others.first, [[1.5**2, (3 / 2.9) ** 2]])
    np.testing.assert_allclose(others.second, 2.0 * others.first)


def test_the_linear_head_gives_the_same_posteriors():
    problem = make_problem(4, 6, 40, seed=63)
    q = np.random.default_rng(64).dirichlet(np.full(4, 0.1) * [10, 10, 1, 1], size=40)
    sums = Sums.zeros(Backend.of(q), 4, 6).add_samples(problem.features, q).add_posteriors(q)
    constants = replace(CONSTANTS, proportions=1.0, occurring=(0.9, 1.0), varying=(0.9, 1.0))
    mixture = estimate(sums, None, problem.prototypes, 0.0, constants)
    assert mixture.class_offsets is not None
    scores = mixture.log_likelihoods(mixture.distances(problem.features))
    scores += 20.0 * problem.features @ problem.prototypes.T
    expected = np.exp(scores - scores.max(axis=1, keepdims=True))
    expected /= expected.sum(axis=1, keepdims=True)
    head = MixtureHead.of(mixture, problem.prototypes, 20.0)
    np.testing.assert_allclose(posteriors_of(head.scores(problem.features)), expected, rtol=1e-9)


def test_precision_is_zero_without_variance():
    for stay in (0.0, 0.9):
        mixture = found(stay, sums=sums_of_stream(features=np.eye(2)[np.arange(8) % 2]))
        assert not mixture.gaussians.precision.any()
        np.testing.assert_array_equal(mixture.distances(FEATURES).first, 0.0)


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

"""Linear discriminants of labelled samples: against the authors' scores, by hand, and in edge cases."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from goldens import first_shots, golden, problem
from zeroshift.methods._shared.gaussian_classifier import linear_discriminant
from zeroshift.testing import make_problem


@pytest.mark.parametrize("convert", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_authors_scores(convert):
    features, labels = first_shots(16)
    fit = linear_discriminant(convert(features), labels, 12)
    expected = golden("gda_clip")["gda_only16_scores"]
    np.testing.assert_allclose(fit.scores(convert(problem("float64")["features"])), expected, rtol=0, atol=6e-4)


def test_scores_are_gaussian_log_likelihoods_up_to_a_term_all_classes_share():
    made = make_problem(classes=4, dimension=6, samples=120)
    fit = linear_discriminant(made.features, made.labels, 4)
    away = made.features[:, None, :] - fit.means
    likelihood = -0.5 * np.einsum("nkd,de,nke->nk", away, fit.precision, away)
    difference = fit.scores(made.features) - likelihood
    np.testing.assert_allclose(difference - difference[:, :1], 0, rtol=0, atol=1e-9)


def test_the_order_of_samples_does_not_matter():
    made = make_problem(classes=4, dimension=6, samples=50)
    order = np.random.default_rng(0).permutation(50)
    one = linear_discriminant(made.features, made.labels, 4)
    other = linear_discriminant(made.features[order], made.labels[order], 4)
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


def test_without_spread_all_scores_are_equal():
    fit = linear_discriminant(np.eye(3), np.arange(3), 3)
    assert not fit.precision.any()
    np.testing.assert_array_equal(fit.scores(np.eye(3)), np.full((3, 3), -np.log(3)))


def test_a_class_without_samples_gets_the_average_mean():
    made = make_problem(classes=3, dimension=6, samples=50)
    fit = linear_discriminant(made.features, made.labels, 5)
    for k in (3, 4):
        np.testing.assert_allclose(fit.means[k], fit.means[:3].mean(axis=0), rtol=0, atol=1e-12)
    known = linear_discriminant(made.features, made.labels, 3)
    np.testing.assert_allclose(fit.precision, known.precision, rtol=1e-12, atol=0)
    assert np.isfinite(fit.scores(made.features)).all()


def test_features_are_not_modified():
    made = make_problem(classes=3, dimension=6, samples=20)
    features = made.features.copy()
    linear_discriminant(features, made.labels, 3)
    np.testing.assert_array_equal(features, made.features)

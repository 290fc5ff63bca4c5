"""Gaussians of labelled samples: by their definition, and in edge cases. The authors' are in test_gda_clip.py."""

from __future__ import annotations

import numpy as np

from zeroshift.adapt.statistics import discriminant
from zeroshift.methods._shared.gaussian_classifier import fit_gaussians
from zeroshift.testing import make_problem


def scores(fit, features):
    return discriminant(features, fit.directions, fit.offsets)


def test_scores_are_gaussian_log_likelihoods_up_to_a_term_all_classes_share():
    made = make_problem(classes=4, dimension=6, samples=120)
    fit = fit_gaussians(made.features, made.labels, 4)
    away = made.features[:, None, :] - fit.means
    likelihood = -0.5 * np.einsum("nkd,de,nke->nk", away, fit.precision, away)
    difference = scores(fit, made.features) - likelihood
    np.testing.assert_allclose(difference - difference[:, :1], 0, rtol=0, atol=1e-9)


def test_without_spread_all_scores_are_equal():
    fit = fit_gaussians(np.eye(3), np.arange(3), 3)
    assert not fit.precision.any()
    np.testing.assert_array_equal(scores(fit, np.eye(3)), np.full((3, 3), -np.log(3)))


def test_a_class_without_samples_gets_the_average_mean():
    made = make_problem(classes=3, dimension=6, samples=50)
    fit = fit_gaussians(made.features, made.labels, 5)
    for k in (3, 4):
        np.testing.assert_allclose(fit.means[k], fit.means[:3].mean(axis=0), rtol=0, atol=1e-12)
    known = fit_gaussians(made.features, made.labels, 3)
    np.testing.assert_allclose(fit.precision, known.precision, rtol=1e-12, atol=0)
    assert np.isfinite(scores(fit, made.features)).all()

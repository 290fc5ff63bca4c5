"""TDA against the authors' code, and a plain version where their outputs do not reach."""

import numpy as np
import pytest
import torch

from goldens import assert_golden, golden, problem, views
from plain import tda as plain
from zeroshift.methods import TDA
from zeroshift.testing import make_problem
from zeroshift.views import select_lowest_entropy
from zeroshift.zero_shot import logits

SETTINGS = {
    "logits": {},
    "pos_only_logits": {"negative_capacity": 0},
    "neg_only_logits": {"positive_capacity": 0},
    "alt_logits": {"positive_alpha": 4.0, "positive_beta": 8.0},
}


@pytest.mark.parametrize("array", SETTINGS)
def test_the_authors_logits(array):
    given = problem()
    method = TDA(given["prototypes"], released=True, **SETTINGS[array])
    assert_golden(method.adapt_scores(given["features"]), golden("tda")[array], 2e-4)


def test_the_authors_probabilities_and_caches():
    given = problem()
    method = TDA(given["prototypes"], released=True)
    assert_golden(method.adapt(given["features"]), golden("tda")["probs"], 4e-5)
    assert (method.positive_counts.sum(), method.negative_counts.sum()) == (36, 24)


def test_the_authors_logits_of_views():
    given, expected = views(), golden("tda_views")
    kept = select_lowest_entropy(logits(given["views"], given["prototypes"], 100.0), 0.1)
    np.testing.assert_array_equal(kept, expected["selected_views"])
    scores = TDA(given["prototypes"], released=True).adapt_views_scores(given["views"])
    assert_golden(scores, expected["logits"], 1e-4)


@pytest.mark.parametrize(
    "setting",
    [
        {"positive_capacity": 4, "negative_beta": 2.0},
        {"positive_capacity": 4, "negative_beta": 2.0, "released": True},
        {"negative_alpha": 1.0, "entropy_window": (0.1, 0.9), "probability_window": (0.1, 0.6)},
        {"negative_alpha": 1.0, "entropy_window": (0.1, 0.9), "probability_window": (0.0, 0.2)},
    ],
    ids=str,
)
def test_the_plain_version_agrees(setting):
    given = make_problem(classes=9, dimension=24, samples=500, seed=1)
    ours = TDA(given.prototypes, logit_scale=20.0, **setting)
    expected = plain.scores(torch.tensor(given.features), torch.tensor(given.prototypes), logit_scale=20.0, **setting)
    np.testing.assert_allclose(ours.adapt_scores(given.features), expected, rtol=0, atol=1e-10)
    assert ours.negative_counts.sum() > 0


def test_a_reversed_window_raises():
    with pytest.raises(ValueError, match=r"entropy_window .*got \(0\.5, 0\.2\)\. Fix: \(0\.2, 0\.5\)"):
        TDA(np.eye(2), entropy_window=(0.5, 0.2))

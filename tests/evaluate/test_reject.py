"""Reject scores against their definition."""

from __future__ import annotations

import numpy as np
import pytest

from zeroshift import FeatureSet, normalize
from zeroshift.evaluate.metrics import reject
from zeroshift.evaluate.metrics.reject import reject_scores


@pytest.fixture
def pets():
    rng = np.random.default_rng(2)
    modes = {mode: normalize(rng.normal(size=(3, 7))) for mode in ("ensemble", "vanilla")}
    return FeatureSet(normalize(rng.normal(size=(20, 7))), prototypes=modes, default_prompt="vanilla")


def by_definition(pets, mode):
    scores = []
    for feature in np.asarray(pets.features, np.float64):
        angles = [np.arccos(np.clip(feature @ prototype, -1, 1)) for prototype in pets.prototypes[mode]]
        scores.append(1 - np.cos(min(angles)))
    return scores


def test_one_minus_the_cosine_to_the_nearest_prototype(pets):
    np.testing.assert_allclose(reject_scores(pets), by_definition(pets, "vanilla"), atol=2e-6)
    np.testing.assert_allclose(reject_scores(pets, "ensemble"), by_definition(pets, "ensemble"), atol=2e-6)
    assert not np.allclose(reject_scores(pets), reject_scores(pets, "ensemble"))


def test_blocks_give_the_same_scores(pets, monkeypatch):
    whole = reject_scores(pets)
    seen = []

    def three_rows(count, width):
        assert width == 7  # of the dimension and the classes, the larger one
        for start in range(0, count, 3):
            seen.append(start)
            yield slice(start, min(start + 3, count))

    monkeypatch.setattr(reject, "blocks", three_rows)
    np.testing.assert_allclose(reject_scores(pets), whole, atol=2e-6)
    assert len(seen) == 7


def test_from_zero_on_a_prototype_to_two_opposite_it():
    pets = FeatureSet(np.array([[0.6, 0.8], [-0.6, -0.8], [0.8, -0.6]]), prototypes=np.array([[0.6, 0.8]]))
    np.testing.assert_allclose(reject_scores(pets), [0, 2, 1], atol=1e-6)


def test_never_negative_if_half_precision_makes_a_row_too_long():
    rows = normalize(np.random.default_rng(0).normal(size=(50, 30))).astype(np.float16)
    pets = FeatureSet(rows, prototypes=rows.astype(np.float32))
    lengths = np.linalg.norm(np.asarray(pets.features, np.float64), axis=1)
    assert (lengths > 1).any()
    scores = reject_scores(pets)
    assert scores.min() == 0
    assert not np.signbit(scores).any()  # "-0" in a table reads as an error


def test_the_logit_scale_does_not_matter(pets):
    warmer = FeatureSet(pets.features, prototypes=pets.prototypes, default_prompt="vanilla", logit_scale=7.0)
    np.testing.assert_array_equal(reject_scores(pets), reject_scores(warmer))


def test_a_missing_prompt_mode_is_an_error(pets):
    with pytest.raises(ValueError, match="ensemble"):
        reject_scores(pets, "ensembl")

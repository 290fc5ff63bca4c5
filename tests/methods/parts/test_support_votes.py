"""Votes of support samples, in the methods that have them."""

from __future__ import annotations

import numpy as np
import pytest

from labelled_problem import EMPTY, unbalanced
from zeroshift import ZeroShot
from zeroshift.methods import APE, TipAdapter, TipAdapterF, TipX
from zeroshift.methods._shared import few_shot, support_votes

GIVEN = {
    TipAdapter: {"search_steps": (9, 5)},
    TipAdapterF: {"search_steps": (9, 5), "epochs": 3},
    APE: {"search_steps": (9, 5), "gamma_steps": 3},
    TipX: {"search_steps": (5, 4), "gamma_steps": 3},
}

methods = pytest.mark.parametrize("cls", GIVEN)


@methods
def test_classes_without_support_and_without_weight_are_zero_shot(cls):
    prototypes, support, _, features = unbalanced()
    zero_shot = ZeroShot(prototypes).predict_scores(features)
    scores = cls(prototypes, support=support).predict_scores(features)
    np.testing.assert_array_equal(scores[:, EMPTY], zero_shot[:, EMPTY])
    assert (np.delete(scores != zero_shot, EMPTY, axis=1)).all()
    none = {"alpha": 0, "gamma": 0} if cls is TipX else {"alpha": 0}
    np.testing.assert_array_equal(cls(prototypes, support=support, **none).predict_scores(features), zero_shot)


@methods
def test_a_flat_kernel_counts_the_samples_of_each_class(cls):
    prototypes, support, _, features = unbalanced()
    flat = {"gamma": 0} if cls in (APE, TipX) else {}
    method = cls(prototypes, support=support, beta=0, alpha=2.0, **flat)
    votes = method.predict_scores(features) - ZeroShot(prototypes).predict_scores(features)
    np.testing.assert_allclose(votes, np.tile(2.0 * np.bincount(support[1], minlength=7), (80, 1)), rtol=0, atol=1e-10)


@methods
def test_block_size_does_not_change_results(cls, monkeypatch):
    """Neither while searching nor while predicting."""
    prototypes, support, validation, features = unbalanced()
    given = {"support": support, "validation": validation, **GIVEN[cls]}
    whole = cls(prototypes, **given)
    expected = whole.predict(features)
    blocks = few_shot.blocks
    monkeypatch.setattr(few_shot, "blocks", lambda rows, width: blocks(rows, 2**22 // 7))
    monkeypatch.setattr(support_votes, "BLOCK_ENTRIES", 3 * len(support[1]))
    pieces = cls(prototypes, **given)
    assert pieces.chosen == whole.chosen
    np.testing.assert_allclose(pieces.predict(features), expected, rtol=0, atol=1e-12)


@methods
def test_the_first_of_equally_good_candidates_is_chosen(cls):
    """With prototypes that are always right."""
    support = np.eye(4), np.arange(4)
    found = cls(np.eye(4), support=support, validation=support, **GIVEN[cls]).chosen
    assert (found["alpha"], found["beta"]) == ((0.1, 1.0) if cls is TipX else (0.1, 0.1))

"""Tip-Adapter: the authors' logits, and the result of their search."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from goldens import first_shots, golden, problem
from labelled_problem import unbalanced
from zeroshift.arrays import to_numpy
from zeroshift.methods import TipAdapter

TOLERANCE = 2e-4
"""Five times the difference between an independent float64 version and the authors' float32 one."""


@pytest.mark.parametrize("shots", [16, 4])
@pytest.mark.parametrize(("dtype", "convert"), [("float32", np.asarray), ("float64", torch.tensor)])
@pytest.mark.parametrize("searched", [True, False], ids=["searched", "initial"])
def test_authors_logits(shots, dtype, convert, searched):
    given = problem(dtype)
    features, labels = first_shots(shots, dtype)
    val = (convert(given["val_features"]), given["val_labels"]) if searched else None
    method = TipAdapter(convert(given["prototypes"]), support=(convert(features), labels), validation=val)
    answer = to_numpy(method.adapt_scores(convert(given["features"])))
    expected = golden("tip_adapter")[f"{'shots' if searched else 'init'}{shots}_logits"]
    assert answer.dtype == dtype
    np.testing.assert_allclose(answer, expected, rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(answer.argmax(axis=1), expected.argmax(axis=1))
    if searched:
        beta, alpha = json.loads(str(golden("tip_adapter")["hyperparameters_json"]))[f"best{shots}_beta_alpha"]
        assert method.chosen == pytest.approx({"beta": beta, "alpha": alpha}, abs=1e-12)


def test_a_search_that_ends_before_it_starts_raises():
    prototypes, support, _, _ = unbalanced()
    with pytest.raises(ValueError, match="search_scale must be a pair"):
        TipAdapter(prototypes, support=support, search_scale=(0.05, 3.0))

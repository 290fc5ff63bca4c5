"""The zero-shot classifier against the output of the authors' codes on the same problem."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from goldens import golden, problem
from zeroshift import ZeroShot, zero_shot

LOGITS = 1e-4
PROBABILITIES = {"float32": 2e-5, "float64": 1e-5}
"""The authors' float32 logits of up to 40 are 4e-5 from ours in float64; ours in float32 differ by as much again."""

both_precisions = pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
both_libraries = pytest.mark.parametrize("library", [np.asarray, torch.tensor], ids=["numpy", "torch"])


@both_libraries
@both_precisions
def test_the_method(dtype, library):
    given, expected = problem(dtype), golden("clip_zeroshot")
    features, method = library(given["features"]), ZeroShot(library(given["prototypes"]))
    for scores in (method.predict_scores(features), method.adapt_scores(features)):
        assert str(scores.dtype).endswith(dtype)
        np.testing.assert_allclose(np.asarray(scores), expected["logits"], rtol=0, atol=LOGITS)
        np.testing.assert_array_equal(np.asarray(scores).argmax(axis=1), expected["logits"].argmax(axis=1))
    for answer in (method.predict(features), method.adapt(features)):
        assert str(answer.dtype).endswith(dtype)
        np.testing.assert_allclose(np.asarray(answer), expected["probs"], rtol=0, atol=PROBABILITIES[dtype])
    assert (np.asarray(method.predict(features)).argmax(axis=1) == given["labels"]).sum() == 457


@both_libraries
@both_precisions
def test_the_functions(dtype, library):
    given, expected = problem(dtype), golden("clip_zeroshot")
    arrays = library(given["features"]), library(given["prototypes"]), 100.0
    np.testing.assert_allclose(np.asarray(zero_shot.logits(*arrays)), expected["logits"], rtol=0, atol=LOGITS)
    stats = zero_shot.zero_shot_stats(*arrays)
    for log_y in (zero_shot.log_posterior(*arrays), stats.log_y):
        found = np.exp(np.asarray(log_y))
        np.testing.assert_allclose(found, expected["probs"], rtol=0, atol=PROBABILITIES[dtype])
    np.testing.assert_array_equal(np.asarray(stats.classes), expected["logits"].argmax(axis=1))

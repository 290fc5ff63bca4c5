"""GDA-CLIP: the authors' Gaussians and logits, and what is particular to it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from goldens import first_shots, golden, problem
from zeroshift import ZeroShot
from zeroshift.arrays import to_numpy
from zeroshift.methods import GDACLIP
from zeroshift.testing import make_problem

TOLERANCE = 6e-4
"""Four times the difference between an independent float64 version and the authors' float32 one."""

FOUND = {16: 1.0, 4: 0.1, 1: 1e-4}
"""The alphas that the authors' code finds, by number of shots."""


@pytest.mark.parametrize("shots", [16, 4, 1])
@pytest.mark.parametrize(("dtype", "convert"), [("float32", np.asarray), ("float64", torch.tensor)])
def test_authors_logits(shots, dtype, convert):
    given = problem(dtype)
    features, labels = first_shots(shots, dtype)
    val = convert(given["val_features"]), given["val_labels"]
    method = GDACLIP(convert(given["prototypes"]), support=(convert(features), labels), validation=val)
    assert method.chosen == {"alpha": FOUND[shots]}
    answer = to_numpy(method.adapt_scores(convert(given["features"])))
    expected = golden("gda_clip")[f"shots{shots}_logits"]
    assert answer.dtype == dtype
    np.testing.assert_allclose(answer, expected, rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(answer.argmax(axis=1), expected.argmax(axis=1))


def test_authors_gaussians():
    given, theirs = problem(), golden("gda_clip")
    method = GDACLIP(given["prototypes"], support=first_shots(16))
    np.testing.assert_allclose(method.means, theirs["means16"], rtol=0, atol=1e-6)
    np.testing.assert_allclose(method.precision_matrix, theirs["precision16"], rtol=0, atol=TOLERANCE)
    answer = method.predict_scores(given["features"])
    np.testing.assert_allclose(answer, theirs["alpha1_16_logits"], rtol=0, atol=TOLERANCE)
    # The weight of the text grows with logit_scale: at nearly 0 only the Gaussians remain.
    alone = GDACLIP(given["prototypes"], support=first_shots(16), logit_scale=1e-9).predict_scores
    np.testing.assert_allclose(alone(given["features"]), theirs["gda_only16_scores"], rtol=0, atol=TOLERANCE)


def test_one_sample_per_class_is_zero_shot():
    prototypes, features = problem("float64")["prototypes"], problem("float64")["features"]
    answer = GDACLIP(prototypes, support=first_shots(1, "float64"), alpha=100.0).predict(features)
    np.testing.assert_allclose(answer, ZeroShot(prototypes).predict(features), rtol=0, atol=1e-9)


def test_the_text_decides_about_a_class_without_support():
    """Its Gaussian is that of the average class, so it is neither never predicted nor predicted too often."""
    given = problem()
    features, labels = first_shots(16)
    found, taken, right = [], [], []
    for left_out in range(12):
        kept = labels != left_out
        method = GDACLIP(given["prototypes"], support=(features[kept], labels[kept]))
        others = np.delete(method.means, left_out, axis=0)
        np.testing.assert_allclose(method.means[left_out], others.mean(axis=0), rtol=0, atol=1e-12)
        answer = method.predict(given["features"]).argmax(axis=1)
        its_own = given["labels"] == left_out
        found.append((answer[its_own] == left_out).mean())
        taken.append((answer[~its_own] == left_out).mean())
        right.append((answer == given["labels"]).mean())
    assert np.mean(found) > 0.75  # of its own samples; the zero-shot classifier finds 76 %
    assert np.mean(taken) < 0.03
    assert np.mean(right) > 0.85


def test_a_single_class_may_have_support():
    made = make_problem(classes=5, dimension=12, samples=60)
    one = made.labels == 1
    method = GDACLIP(made.prototypes, support=(made.features[one], made.labels[one]))
    assert np.isfinite(method.predict(made.features)).all()


def test_the_smallest_of_equally_good_weights_is_chosen():
    support = np.eye(4)[[0, 0, 1, 2, 3]], np.array([0, 0, 1, 2, 3])
    assert GDACLIP(np.eye(4), support=support, validation=support).chosen == {"alpha": 1e-4}

"""Entropy of views, selection of the most confident, and their average: against the authors' outputs and by hand."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from zeroshift.arrays import UnitLengthError, to_numpy
from zeroshift.features import checks as feature_checks
from zeroshift.views import average_views, entropy, marginal_entropy, select_lowest_entropy

GOLDEN = Path(__file__).parent / "golden"
TOLERANCE = 1e-4
"""The accuracy of the reference, which was computed in float32 in another order."""


@cache
def problem() -> tuple[np.ndarray, np.ndarray, float]:
    data = np.load(GOLDEN / "problem_views.npz")
    return data["views"], data["prototypes"], float(data["logit_scale"])


@cache
def golden() -> dict[str, np.ndarray]:
    return dict(np.load(GOLDEN / "adapt_views.npz"))


@pytest.mark.parametrize("convert", [np.asarray, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize(("mode", "prefix"), [("online", "online"), ("transductive", "trans")])
def test_average_views_is_the_released_code(mode, prefix, convert):
    views, prototypes, scale = problem()
    answer = average_views(convert(views), convert(prototypes), scale, mode=mode)
    assert type(answer.features) is type(convert(views))
    for ours, theirs in [("features", "features"), ("logits", "logits"), ("probabilities", "probs")]:
        expected = golden()[f"{prefix}_{theirs}"]
        np.testing.assert_allclose(to_numpy(getattr(answer, ours)), expected, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(to_numpy(answer.entropy), golden()[f"{prefix}_entropy"], rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(to_numpy(answer.logits).argmax(axis=1), golden()[f"{prefix}_pred"])


def test_the_two_modes_differ_in_probabilities_only():
    views, prototypes, scale = problem()
    online, transductive = (average_views(views, prototypes, scale, mode=m) for m in ("online", "transductive"))
    np.testing.assert_array_equal(online.features, transductive.features)
    np.testing.assert_array_equal(online.logits, transductive.logits)
    assert np.abs(online.probabilities - transductive.probabilities).max() > 0.01


def test_images_are_independent(monkeypatch):
    """Results are the same in blocks of one image and for single images (V, d)."""
    views, prototypes, scale = (array.astype(np.float64) if hasattr(array, "astype") else array for array in problem())
    together = average_views(views, prototypes, scale)
    monkeypatch.setattr(feature_checks, "BLOCK_ENTRIES", 1)
    for one_by_one, at_once in zip(average_views(views, prototypes, scale), together, strict=True):
        np.testing.assert_allclose(one_by_one, at_once, rtol=0, atol=1e-12)
    alone = average_views(views[7], prototypes, scale)
    assert [array.shape for array in alone] == [(64,), (12,), (12,), ()]
    for one, many in zip(alone, together, strict=True):
        np.testing.assert_allclose(one, many[7], rtol=0, atol=1e-12)


def test_normalize_changes_only_the_length_of_features():
    views, prototypes, scale = problem()
    released, unit = (average_views(views, prototypes, scale, normalize=value) for value in (False, True))
    lengths = np.linalg.norm(released.features, axis=1, keepdims=True)
    assert lengths.max() < 0.99
    np.testing.assert_allclose(unit.features, released.features / lengths, atol=1e-6)
    for name in ("logits", "probabilities", "entropy"):
        np.testing.assert_array_equal(getattr(unit, name), getattr(released, name))


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(half):
    views, prototypes, scale = problem()
    narrow = torch.tensor(views[:3]).to(half)
    answer, wide = (average_views(given, torch.tensor(prototypes), scale) for given in (narrow, narrow.float()))
    assert answer.features.dtype == torch.float32
    np.testing.assert_array_equal(answer.logits, wide.logits)


def test_entropy_by_hand():
    # p = (3/4, 1/4): 3/4 log(4/3) + 1/4 log 4; equal logits: log 3; a certain one: 0, and not NaN or -0.
    np.testing.assert_allclose(entropy(np.log([[3.0, 1.0]])), [0.5623351446])
    np.testing.assert_allclose(entropy(np.zeros((2, 3))), [np.log(3)] * 2)
    certain = entropy(np.array([[[0.0, -9000.0, 0.0]], [[0.0, -9000.0, -9000.0]]]))
    np.testing.assert_allclose(certain, [[np.log(2)], [0.0]], atol=1e-12)
    assert not np.signbit(certain).any()
    assert entropy(torch.zeros((2, 2), dtype=torch.float16)).dtype == torch.float32


def test_marginal_entropy_by_hand():
    # Means of (3/4, 1/4) and (1/4, 3/4), and of (1, 0, 0), (1/2, 1/2, 0) and (0, 0, 1).
    np.testing.assert_allclose(marginal_entropy(np.log([[3.0, 1.0], [1.0, 3.0]])), np.log(2))
    logits = np.array([[0.0, -999.0, -999.0], [0.0, 0.0, -999.0], [-999.0, -999.0, 0.0]])
    expected = -(0.5 * np.log(1 / 2) + np.log(1 / 6) / 6 + np.log(1 / 3) / 3)
    np.testing.assert_allclose(marginal_entropy(np.stack([logits, logits[::-1]])), [expected] * 2)
    np.testing.assert_allclose(marginal_entropy(torch.tensor(logits)), expected)


def test_marginal_entropy_carries_gradients():
    """Against finite differences; prompt tuning uses the gradient."""
    logits = np.random.default_rng(0).normal(size=(3, 4))
    tensor = torch.tensor(logits, requires_grad=True)
    marginal_entropy(tensor).backward()
    step = np.zeros_like(logits)
    step[1, 2] = 1e-6
    slope = (marginal_entropy(logits + step) - marginal_entropy(logits - step)) / 2e-6
    np.testing.assert_allclose(tensor.grad[1, 2], slope, rtol=1e-6)


@pytest.mark.parametrize(
    ("views", "ratio", "kept"), [(64, 0.1, 6), (64, 0.3, 19), (64, 1.0, 64), (9, 0.1, 1), (1, 0.5, 1), (16, 0.5, 8)]
)
def test_how_many_views_are_kept(views, ratio, kept):
    logits = np.random.default_rng(0).normal(size=(2, views, 5))
    assert select_lowest_entropy(logits, ratio).shape == (2, kept)


@pytest.mark.parametrize("convert", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_the_lowest_entropy_comes_first_and_equal_ones_in_order(convert):
    # A larger difference is more confident; its sign does not matter.
    gaps = [[1, 5, -1, 5, 0, -5, 2, 1], [0, 0, 0, 0, 0, 0, 0, 0]]
    logits = convert(np.stack([np.array(gaps, float), np.zeros((2, 8))], axis=-1))
    np.testing.assert_array_equal(select_lowest_entropy(logits, 0.75), [[1, 3, 5, 6, 0, 2], [0, 1, 2, 3, 4, 5]])
    np.testing.assert_array_equal(select_lowest_entropy(logits[0], 0.25), [1, 3])


def test_the_order_of_the_views_does_not_matter():
    views, prototypes, scale = problem()
    shuffled = views[:, np.random.default_rng(1).permutation(64)]
    for one, other in zip(*(average_views(v, prototypes, scale) for v in (views, shuffled)), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("function", [marginal_entropy, select_lowest_entropy])
def test_logits_of_a_wrong_shape_raise(function):
    with pytest.raises(ValueError, match=r"logits must have the shape \(N, V, K\).*got \(5,\)\. Fix: "):
        function(np.zeros(5))
    with pytest.raises(ValueError, match=r"without empty axes; got \(0, 5\)"):
        function(np.zeros((0, 5)))
    with pytest.raises(TypeError, match="logits must be a NumPy array or a torch tensor; got list"):
        function([[0.0, 1.0]])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ratio": 0}, r"ratio must be a number greater than 0 and at most 1; got 0\."),
        ({"ratio": 1.5}, r"ratio must be a number greater than 0 and at most 1; got 1\.5\."),
        ({"mode": "offline"}, r"mode must be one of 'online', 'transductive'; got 'offline'\."),
        ({"logit_scale": -1}, r"logit_scale must be a number greater than 0; got -1\."),
        ({"views": np.ones(3)}, r"views must have the shape \(N, V, d\).*got \(3,\)\. Fix: "),
        ({"views": np.ones((2, 0, 64))}, r"without empty axes; got \(2, 0, 64\)"),
        ({"views": np.ones((2, 4, 3))}, r"views has d = 3, .* prototypes have d = 64\. Fix: "),
        ({"prototypes": np.ones((2, 64))}, r"prototypes row 0 has length 8"),
    ],
)
def test_average_views_checks_its_input(given, message):
    views, prototypes, scale = problem()
    arguments = {"views": views, "prototypes": prototypes, "logit_scale": scale} | given
    with pytest.raises(ValueError, match=message):
        average_views(**arguments)


def test_views_that_are_not_an_array_raise():
    with pytest.raises(TypeError, match=r"views must be a NumPy array or a torch tensor; got list\. Fix: "):
        average_views([[1.0]], np.ones((1, 1)), 1.0)


def test_errors_name_the_view(monkeypatch):
    views, prototypes, scale = problem()
    monkeypatch.setattr(feature_checks, "BLOCK_ENTRIES", 64 * 64 * 4)  # the error is in the second block of four images
    bad = views.copy()
    bad[5, 3] *= 2
    with pytest.raises(UnitLengthError, match=r"views\[5\] row 3 has length 2"):
        average_views(bad, prototypes, scale)
    bad[5, 3, 1] = np.nan
    with pytest.raises(ValueError, match=r"views\[5\] row 3 holds NaN"):
        average_views(torch.tensor(bad), torch.tensor(prototypes), scale)

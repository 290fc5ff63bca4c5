"""Prompts of each class: wrong ones raise, others are copied to the library of the prototypes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from zeroshift.arrays import UnitLengthError, normalize
from zeroshift.methods import TIMO
from zeroshift.methods._shared.prompts import checked_prompts

PROTOTYPES = np.eye(3, 4)
NOISE = 0.3 * np.random.default_rng(0).normal(size=(6, 4))
PROMPTS = normalize(np.repeat(PROTOTYPES, 2, axis=0) + NOISE).reshape(3, 2, 4)


@pytest.mark.parametrize(
    "prompts",
    [PROMPTS[0], PROMPTS[:2], PROMPTS[:, :, :3], PROMPTS[:, :0], PROMPTS[None], PROTOTYPES],
    ids=["one class", "a class short", "a column short", "no prompts", "four axes", "the prototypes"],
)
def test_wrong_shapes(prompts):
    with pytest.raises(
        ValueError, match=r"prompts must have the shape \(K, P, d\) = \(3, P, 4\).*; got .*Fix:"
    ) as error:
        checked_prompts(prompts, PROTOTYPES)
    assert str(tuple(prompts.shape)) in str(error.value)


@pytest.mark.parametrize("prompts", [PROMPTS.tolist(), None, "a photo of a {}."])
def test_not_an_array(prompts):
    with pytest.raises(TypeError, match=f"prompts must be an array .* got {type(prompts).__name__}"):
        checked_prompts(prompts, PROTOTYPES)


def test_bad_rows_are_named():
    long = PROMPTS.copy()
    long[1, 1] *= 2
    with pytest.raises(UnitLengthError, match=r"prompts\[1\] row 1 has length 2.*Fix: prompts /= numpy"):
        checked_prompts(long, PROTOTYPES)
    missing = PROMPTS.copy()
    missing[2, 0, 3] = np.nan
    with pytest.raises(ValueError, match=r"prompts\[2\] row 0 holds NaN"):
        checked_prompts(missing, PROTOTYPES)
    with pytest.raises(TypeError, match="floating-point"):
        checked_prompts(np.ones((3, 2, 4), int), PROTOTYPES)


def test_the_suggested_fix_works():
    assert checked_prompts(PROTOTYPES[:, None, :], PROTOTYPES).shape == (3, 1, 4)


def test_copied_to_the_library_of_the_prototypes():
    given = PROMPTS.copy()
    kept = checked_prompts(given, PROTOTYPES)
    given[:] = 0
    np.testing.assert_array_equal(kept, PROMPTS)
    there = checked_prompts(PROMPTS, torch.tensor(PROTOTYPES))
    assert isinstance(there, torch.Tensor)
    np.testing.assert_array_equal(there, PROMPTS)
    half = checked_prompts(torch.tensor(PROMPTS).half(), PROTOTYPES)
    assert isinstance(half, np.ndarray)
    assert half.dtype == np.float32


def test_a_method_checks_them_in_its_constructor():
    with pytest.raises(ValueError, match="prompts must have the shape"):
        TIMO(PROTOTYPES, prompts=PROMPTS[:2], support=(PROTOTYPES, np.arange(3)))


def test_prompts_in_another_order_give_a_warning():
    with pytest.warns(UserWarning, match=r"prompts of 100% of the classes are nearer to another class's prototype"):
        checked_prompts(np.roll(PROMPTS, 1, axis=0), PROTOTYPES)

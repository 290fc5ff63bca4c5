"""Damage by severity: it grows where the published constants do."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from corruption_data import sample_images
from zeroshift.data.corruptions import KINDS, SEVERITIES, Corruption, corrupt

UNEVEN = {224: {"glass_blur", "frost", "fog", "elastic_transform"}, 32: {"glass_blur", "frost", "elastic_transform"}}
"""Kinds whose published constants do not make every severity worse than the one before, by squared error."""


def samples(made_for: int) -> list[np.ndarray]:
    """Images to measure damage on; of 32 x 32 pixels there must be more, for a hard edge counts for much."""
    return sample_images(12, side=32) if made_for == 32 else sample_images()


def damage(kind: str, severity: int, made_for: int = 224) -> float:
    """Mean squared error over a set of images."""
    corruption = Corruption(kind, severity, made_for=made_for)
    return float(np.mean([(corruption(image).astype(float) - image) ** 2 for image in samples(made_for)]))


def shown(kind: str, severity: int, made_for: int) -> float:
    """How much of an image shows through: its correlation with the corrupted one, on average."""
    corruption = Corruption(kind, severity, made_for=made_for)
    return float(np.mean([np.corrcoef(corruption(x).ravel(), x.ravel())[0, 1] for x in samples(made_for)]))


@pytest.mark.parametrize(
    ("made_for", "kind"), [(size, kind) for size, uneven in UNEVEN.items() for kind in KINDS if kind not in uneven]
)
def test_damage_grows_with_severity(made_for, kind):
    damages = [damage(kind, severity, made_for) for severity in SEVERITIES]
    # ImageNet-C's snow of severity 3 is thicker than of 2 but fewer flakes pass its threshold: the two are about level.
    slack = 0.8 if (made_for, kind) == (224, "snow") else 1.0
    assert all(low * slack < high for low, high in itertools.pairwise(damages)), damages
    assert damages[4] > 1.5 * damages[0]


def test_damage_where_the_published_constants_do_not_grow():
    # Glass blur: 2 reaches further than 1 but once instead of twice, and so for 4 and 3.
    assert damage("glass_blur", 5) > damage("glass_blur", 3) > damage("glass_blur", 1)
    # Elastic transform: 1 and 2 tilt the whole image, 3 to 5 ripple it.
    ripples = [damage("elastic_transform", severity) for severity in (3, 4, 5)]
    assert ripples == sorted(ripples)
    assert damage("elastic_transform", 1) > ripples[-1]
    # Frost and fog dim the image as well as whiten it, so less and less of it shows rather than more and more error.
    for kind in ("frost", "fog"):
        assert max(shown(kind, severity, 224) for severity in (3, 5)) < shown(kind, 1, 224) - 0.1, kind


def test_damage_where_the_constants_for_small_images_do_not_grow():
    # Glass blur: 1 to 3 shuffle once and 4 and 5 twice, with more and more blur that evens the shuffling out.
    once, twice = ([damage("glass_blur", severity, 32) for severity in part] for part in ((1, 2, 3), (4, 5)))
    assert once == sorted(once, reverse=True)
    assert twice == sorted(twice, reverse=True)
    assert twice[-1] > 1.5 * once[0]
    # Elastic transform: the tilt, which moves pixels furthest, is strongest at severity 1 and weakest at 5.
    assert damage("elastic_transform", 1, 32) > damage("elastic_transform", 2, 32) > damage("elastic_transform", 5, 32)
    # Frost dims the image as well as whitens it.
    assert shown("frost", 1, 32) > shown("frost", 3, 32) > shown("frost", 5, 32) + 0.02


@pytest.mark.parametrize("kind", KINDS)
def test_small_images_are_spared_what_photographs_can_bear(kind):
    theirs, ours = (
        np.mean(
            [(corrupt(image, kind, 5, made_for=size).astype(float) - image) ** 2 for image in sample_images(side=32)]
        )
        for size in (224, 32)
    )
    assert ours < theirs

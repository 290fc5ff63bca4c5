"""Encoders of images alone: features compared with direct calls of transformers, and what they cannot be used for."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from encode.numpy_encoder import noise  # noqa: E402
from encode.tiny import SIDE, VISION_BUILDERS  # noqa: E402
from zeroshift.encode import ImageEncoder, load_encoder, load_image_encoder, registry  # noqa: E402

IMAGES = [noise(i, *size) for i, size in enumerate([(40, 90), (90, 40), (51, 37), (SIDE, SIDE)])]
CLASS_TOKEN = {"deit", "dinov2", "dinov2_with_registers", "dinov3_vit", "vit", "vit_msn"}


def test_every_type_of_the_family_is_tested():
    assert set(registry.get("vision").model_types) == set(VISION_BUILDERS)


@pytest.mark.parametrize("kind", VISION_BUILDERS)
def test_features_are_those_of_transformers(kind, tiny_folder):
    folder = tiny_folder(kind)
    encoder = load_image_encoder(folder, device="cpu")
    assert (encoder.family, encoder.source) == ("vision", f"tiny-{kind}")
    model = transformers.AutoModel.from_pretrained(folder).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    with torch.inference_mode():
        expected = []
        for image in IMAGES:
            output = model(**processor(images=image, return_tensors="pt"))
            # The class token is the first; networks without one average over the positions of the last layer.
            maps = output.last_hidden_state[0]
            row = maps[0] if kind in CLASS_TOKEN else maps.flatten(1).mean(1) if maps.ndim == 3 else maps.mean(0)
            expected.append((model.layernorm(row) if kind.startswith("convnext") else row).numpy())
    found = encoder.encode_images(IMAGES)
    assert found.shape == (len(IMAGES), encoder.dimension)
    unit = np.stack(expected) / np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(found, unit, rtol=0, atol=2e-6)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)


def test_the_revision_depends_on_the_weights(tiny_folder, tmp_path):
    first = load_image_encoder(tiny_folder("dinov2"), device="cpu")
    copied = shutil.copytree(tiny_folder("dinov2"), tmp_path / "elsewhere")
    again = load_image_encoder(copied, device="cpu")
    assert first.key() == again.key()
    other = load_image_encoder(tiny_folder("dinov2_with_registers"), device="cpu")
    assert first.key() != other.key()
    assert first.revision != load_image_encoder(tiny_folder("vit"), device="cpu").revision


def test_an_encoder_with_text_can_be_a_second(tiny_folder, tiny_encoder):
    second = load_image_encoder(tiny_folder("clip"), device="cpu", batch_size=3)
    assert isinstance(second, ImageEncoder)
    assert second.batch_size == 3
    np.testing.assert_array_equal(second.encode_images(IMAGES[:1]), tiny_encoder("clip").encode_images(IMAGES[:1]))


def test_an_encoder_without_text_cannot_be_the_first(tiny_folder):
    with pytest.raises(ValueError, match=r"encodes images alone, and prototypes need text. Fix: .*--second-encoder"):
        load_encoder(tiny_folder("dinov2"), device="cpu")
    with pytest.raises(ValueError, match=r"efficientnet-lite0 \(EfficientNet-Lite0\) encodes images alone"):
        load_encoder("efficientnet-lite0", device="cpu")


def test_weights_that_are_missing_are_refused(tiny_folder, tmp_path):
    from safetensors.torch import load_file, save_file

    copied = shutil.copytree(tiny_folder("dinov2"), tmp_path / "copied")
    tensors = load_file(copied / "model.safetensors")
    del tensors["layernorm.weight"]
    save_file(tensors, copied / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"its weights lack layernorm.weight: it was made for another task"):
        load_image_encoder(copied, device="cpu")


def test_repr_names_model_and_dimension(tiny_folder):
    assert repr(load_image_encoder(tiny_folder("dinov2"), device="cpu")) == "VisionEncoder('tiny-dinov2', d=32)"

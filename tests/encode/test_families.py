"""Each family compared with direct calls of its transformers model, tokenizer and image processor."""

from __future__ import annotations

import json
import math
import shutil

import numpy as np
import pytest
from PIL import Image

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from encode.numpy_encoder import noise  # noqa: E402
from encode.tiny import BUILDERS, siglip2_of_fixed_size  # noqa: E402
from zeroshift.encode import registry  # noqa: E402
from zeroshift.encode.families.base import ProcessorPreprocessing, preprocessing_from_processor  # noqa: E402
from zeroshift.encode.families.transformers_models import canonical_text  # noqa: E402
from zeroshift.encode.preprocessing import PixelPreprocessing  # noqa: E402

FAMILIES = list(BUILDERS)
MODEL = {
    "clip": "CLIPModel",
    "siglip": "SiglipModel",
    "siglip2": "Siglip2Model",
    "blip": "BlipForImageTextRetrieval",
    "align": "AlignModel",
    "altclip": "AltCLIPModel",
    "chinese_clip": "ChineseCLIPModel",
    "metaclip": "MetaClip2Model",
}
SHAPES = {"tall": (40, 90), "wide": (90, 40), "odd": (51, 37), "tiny": (7, 5), "right": (32, 32)}
IMAGES = [noise(i, *size) for i, size in enumerate(SHAPES.values())]
PROMPTS = ["a photo of a Cat.", "dog", "A dog, a pet."]
AS_READ = {
    # What SigLIP's paper says of its text: lower case without punctuation; of the second only lower case.
    "siglip": ["a photo of a cat", "dog", "a dog a pet"],
    "siglip2": ["a photo of a cat.", "dog", "a dog, a pet."],
}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def own(family, tiny_folder):
    """Model, tokenizer and image processor, as transformers loads them."""
    folder = tiny_folder(family)
    model = getattr(transformers, MODEL[family]).from_pretrained(folder).float().eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return model, tokenizer, transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")


def tokens(family, tokenizer, prompts):
    if family in AS_READ:
        read_as = dict(zip(PROMPTS, AS_READ[family], strict=True))
        full = {"padding": "max_length", "max_length": 16, "truncation": True}
        return {"input_ids": tokenizer([read_as[p] for p in prompts], return_tensors="pt", **full)["input_ids"]}
    return dict(tokenizer(prompts, padding=True, return_tensors="pt"))


def unit(features):
    return (features / features.norm(dim=-1, keepdim=True)).numpy()


def close(found, expected, atol=1e-6):
    np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


def test_features_are_those_of_transformers(family, own, tiny_encoder):
    model, tokenizer, processor = own
    encoder = tiny_encoder(family)
    with torch.inference_mode():
        # One at a time: what is compared with has neither padding nor neighbours.
        images = [image_features(model, processor(images=image, return_tensors="pt")) for image in IMAGES]
        texts = [text_features(model, tokens(family, tokenizer, [prompt])) for prompt in PROMPTS]
    close(encoder.encode_images(IMAGES), unit(torch.cat(images)))
    close(encoder.encode_texts(PROMPTS), unit(torch.cat(texts)))
    assert encoder.dimension == images[0].shape[1]


def image_features(model, inputs):
    if isinstance(model, transformers.BlipForImageTextRetrieval):  # has no method of its own for them
        return model.vision_proj(model.vision_model(**inputs).last_hidden_state[:, 0])
    return model.get_image_features(**inputs).pooler_output


def text_features(model, inputs):
    if isinstance(model, transformers.BlipForImageTextRetrieval):
        inputs.pop("token_type_ids", None)
        return model.text_proj(model.text_encoder(**inputs).last_hidden_state[:, 0])
    return model.get_text_features(**inputs).pooler_output


def test_scores_are_those_of_the_whole_model(family, own, tiny_encoder):
    model, tokenizer, processor = own
    encoder = tiny_encoder(family)
    inputs = {**tokens(family, tokenizer, PROMPTS), **processor(images=IMAGES, return_tensors="pt")}
    with torch.inference_mode():
        if family == "blip":
            inputs.pop("token_type_ids", None)
            expected = model(**inputs, use_itm_head=False).itm_score.numpy()
            scale = 1.0  # BLIP's own score is the cosine
        else:
            expected = model(**inputs).logits_per_image.numpy()
            scale = encoder.logit_scale
    found = scale * encoder.encode_images(IMAGES) @ encoder.encode_texts(PROMPTS).T + (encoder.logit_bias or 0.0)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * max(scale, 1))
    assert np.ptp(expected) > 0.05  # else everything would be close to everything


def test_scale_and_bias(family, tiny_encoder):
    encoder = tiny_encoder(family)
    scale = {"align": 1 / 0.05, "blip": 100.0}.get(family, math.exp(3.3))
    assert encoder.logit_scale == pytest.approx(scale, rel=1e-6)
    assert encoder.logit_bias == (-5.0 if family.startswith("siglip") else None)


def test_the_scale_is_not_narrowed_with_the_weights(tiny_folder):
    for family, scale in (("clip", math.exp(3.3)), ("align", 20.0)):
        narrow = registry.load(str(tiny_folder(family)), device="cpu", dtype="bfloat16")
        assert narrow.logit_scale == pytest.approx(scale, rel=1e-6)
        assert narrow.describe()["dtype"] == "bfloat16"
        assert narrow.model.dtype == torch.bfloat16
        rows = narrow.encode_images(IMAGES[:2])
        assert rows.dtype == np.float32
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)


def test_blips_scale_is_documented():
    assert "100" in registry.get("blip").note
    from zeroshift.encode.families.transformers_models import BLIPEncoder

    assert "is not published" in BLIPEncoder.__doc__


def test_pixel_values_are_the_processors_to_the_last_bit(family, own, tiny_encoder, monkeypatch):
    encoder, processor = tiny_encoder(family), own[2]
    seen = []
    original = type(encoder)._image_features
    monkeypatch.setattr(
        type(encoder), "_image_features", lambda self, batch: seen.append(batch) or original(self, batch)
    )
    for image in IMAGES:
        encoder.encode_images([image])
        made = processor(images=image, return_tensors="np")
        np.testing.assert_array_equal(seen[-1][0][0].numpy(), made["pixel_values"][0])
        if isinstance(encoder.preprocessing, PixelPreprocessing):
            (pixels,) = encoder.preprocessing(image)
            assert pixels.dtype == np.uint8
            np.testing.assert_array_equal(encoder.preprocessing.values(pixels), made["pixel_values"][0])
    assert isinstance(encoder.preprocessing, ProcessorPreprocessing if family == "siglip2" else PixelPreprocessing)


def test_a_processor_with_other_steps_is_called_directly(tiny_folder):
    class Mirrors(transformers.CLIPImageProcessorPil):
        def __call__(self, images, **options):
            return super().__call__(images.transpose(Image.Transpose.FLIP_LEFT_RIGHT), **options)

    for kind, expected in ((transformers.CLIPImageProcessorPil, PixelPreprocessing), (Mirrors, ProcessorPreprocessing)):
        processor = kind.from_pretrained(tiny_folder("clip"))
        preprocessing = preprocessing_from_processor(processor, side=32)
        assert type(preprocessing) is expected
        assert preprocessing.size == (32, 32)
        made = preprocessing(IMAGES[0])[0]
        values = preprocessing.values(made) if expected is PixelPreprocessing else made
        np.testing.assert_array_equal(values, processor(IMAGES[0], return_tensors="np")["pixel_values"][0])


def test_ready_is_the_end_of_the_preprocessing(family, tiny_encoder):
    preprocessing = tiny_encoder(family).preprocessing
    height, width = preprocessing.size
    assert (height, width) == (32, 32)
    image = noise(0, width, height)
    if family != "align":  # it enlarges, then crops: even an image of the right size changes
        for one, other in zip(preprocessing(image), preprocessing.to_pixels(image), strict=True):
            np.testing.assert_array_equal(one, other)
    assert json.loads(json.dumps(preprocessing.describe())) == preprocessing.describe()


def test_single_images_equal_a_batch(family, tiny_encoder):
    encoder = tiny_encoder(family)
    close(np.concatenate([encoder.encode_images([p]) for p in IMAGES]), encoder.encode_images(IMAGES))
    close(np.concatenate([encoder.encode_texts([p]) for p in PROMPTS]), encoder.encode_texts(PROMPTS))


def test_grey_images_arrays_and_files(family, tiny_encoder, tmp_path):
    encoder, grey = tiny_encoder(family), noise(3, 41, 33).convert("L")
    rgb = grey.convert("RGB")
    rgb.save(tmp_path / "grey.png")
    expected = encoder.encode_images([rgb])
    for same in (grey, np.asarray(grey), np.asarray(rgb), tmp_path / "grey.png", str(tmp_path / "grey.png")):
        np.testing.assert_array_equal(encoder.encode_images([same]), expected)


def test_text_as_each_family_reads_it(family, tiny_encoder):
    encoder = tiny_encoder(family)
    same = {"siglip": True, "siglip2": False, "altclip": False}.get(family, False)
    pair = encoder.encode_texts(["a cat", "A Cat."])
    assert np.allclose(*pair, atol=1e-6) is same
    lower = encoder.encode_texts(["a cat", "A CAT"])
    # AltCLIP's tokenizer alone tells capitals from small letters.
    assert np.allclose(*lower, atol=1e-6) is (family != "altclip")


def test_the_second_siglip_of_fixed_size_keeps_punctuation(tmp_path):
    encoder = registry.load(str(siglip2_of_fixed_size(tmp_path / "fixed")), device="cpu")
    assert encoder.family == "siglip"
    plain, stop, capital = encoder.encode_texts(["a cat", "a cat.", "A CAT."])
    assert not np.allclose(plain, stop, atol=1e-3)
    close(stop, capital)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("A photo of a St.  Bernard, a type of pet.", "a photo of a st bernard a type of pet"),
        ("  It's\tgood!\n", "its good"),
        ("hot_dog-stand", "hot dogstand"),
        ("...", ""),
        ("Ärger, naïve", "ärger naïve"),
    ],
)
def test_canonical_text(given, text):
    assert canonical_text(given) == text


COUNTS = {"clip": 5, "metaclip": 5, "siglip": 3, "siglip2": 5, "altclip": 4, "blip": 5, "align": 5, "chinese_clip": 5}
"""Tokens of "a cat.", counted by hand: CLIP and BERT put a sign at both ends, the others one at the end; SigLIP drops
the stop, and to SigLIP 2 a blank is a token."""


def cats(count):
    return " ".join(["cat"] * count)


def test_token_counts(family, tiny_encoder):
    encoder = tiny_encoder(family)
    assert encoder.count_tokens(["a cat."]) == [COUNTS[family]]
    signs = encoder.count_tokens(["a"])[0] - 1
    assert encoder.count_tokens(["dog", cats(60)])[1] == signs + (119 if family == "siglip2" else 60)
    assert encoder.text_length == {"clip": 24, "metaclip": 24, "siglip": 16, "siglip2": 16, "altclip": 30}.get(
        family, 40
    )


def test_long_prompts_are_truncated_and_counted(family, tiny_encoder):
    encoder = tiny_encoder(family)
    fits = {"siglip": 15, "siglip2": 8, "altclip": 29, "clip": 22, "metaclip": 22}.get(family, 38)
    prompts = ["dog", cats(fits), cats(fits + 1), cats(100)]
    message = rf"2 of 4 prompts are longer than the {encoder.text_length} tokens the model reads.*Fix: shorten"
    with pytest.warns(UserWarning, match=message):
        rows = encoder.encode_texts(prompts)
    np.testing.assert_allclose(rows[2:], rows[[1, 1]], atol=1e-6)
    assert encoder.count_too_long(prompts) == 2
    np.testing.assert_array_equal(encoder.encode_texts(prompts, warn=False), rows)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "siglip2"])  # has no bytes
def test_float_and_byte_pixels_give_equal_features(family, tiny_encoder):
    encoder = tiny_encoder(family)
    (pixels,) = encoder.preprocessing(IMAGES[0])
    batch = np.stack([pixels, pixels[:, ::-1]])
    # A line through the table, where bytes are looked up: rounding, which weights of this size magnify.
    close(encoder.encode_pixels((batch.astype(np.float32),)), encoder.encode_pixels((batch,)), atol=1e-5)
    halves = batch.astype(np.float32) + 0.5
    assert not np.allclose(encoder.encode_pixels((halves,)), encoder.encode_pixels((batch,)), atol=1e-5)


def test_images_of_one_pixel_and_very_long_images(family, tiny_encoder):
    rows = tiny_encoder(family).encode_images([Image.new("RGB", (1, 1), "red"), noise(0, 400, 9)])
    assert rows.shape == (2, tiny_encoder(family).dimension)


@pytest.mark.parametrize(
    ("family", "published"),
    [
        # As the files of OpenAI's models have it, older than the names transformers uses now.
        (
            "clip",
            {
                "crop_size": 32, "do_center_crop": True, "do_normalize": True, "do_resize": True, "resample": 3,
                "feature_extractor_type": "CLIPFeatureExtractor", "size": 32,
                "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711],
            },
        ),
        # ALIGN scales to -1..1 by an offset of its own, and normalises nothing.
        (
            "align",
            {
                "crop_size": {"height": 32, "width": 32}, "do_center_crop": True, "do_normalize": False,
                "do_rescale": True, "do_resize": True, "image_processor_type": "EfficientNetImageProcessor",
                "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "include_top": False, "resample": 2,
                "rescale_factor": 1 / 127.5, "rescale_offset": True, "size": {"height": 38, "width": 38},
            },
        ),
    ],
)  # fmt: skip
def test_settings_as_published_models_have_them(family, published, tiny_folder, tmp_path):
    shutil.copytree(tiny_folder(family), tmp_path / family)
    (tmp_path / family / "preprocessor_config.json").write_text(json.dumps(published))
    encoder = registry.load(str(tmp_path / family))
    own = transformers.AutoImageProcessor.from_pretrained(tmp_path / family, backend="pil")
    assert isinstance(encoder.preprocessing, PixelPreprocessing)
    for image in IMAGES:
        expected = own(images=image, return_tensors="np")["pixel_values"][0]
        np.testing.assert_array_equal(encoder.preprocessing.values(encoder.preprocessing(image)[0]), expected)


def test_a_processor_that_resizes_and_crops_does_not_crop_views(tiny_folder):
    """Views are cropped to the right size already: scaled and cropped again, they would lose their rims."""
    processor = transformers.AutoImageProcessor.from_pretrained(tiny_folder("align"), backend="pil")
    own = ProcessorPreprocessing(processor, side=32)
    view = noise(3, 32, 32)
    expected = processor(images=view, do_resize=False, do_center_crop=False, return_tensors="np")["pixel_values"][0]
    np.testing.assert_array_equal(own.to_pixels(view)[0], expected)
    assert not np.array_equal(own(view)[0], expected)

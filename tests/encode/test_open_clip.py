"""The open_clip adapter, against a stand-in for the package.

open_clip needs torchvision, which cannot be installed where these tests run. The stand-in has the few public calls the
adapter makes, with open_clip's own signatures and habits (models come in training mode, rows are cut and filled up by
the tokenizer); what it cannot show is that a published model gives the features its authors report.
"""

from __future__ import annotations

import math
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from zeroshift.encode.families.open_clip import OpenClipEncoder, parse_source  # noqa: E402

CONFIG = {
    "size": (8, 8),
    "mode": "RGB",
    "mean": (0.5, 0.25, 0.5),
    "std": (0.5, 0.25, 0.25),
    "interpolation": "bicubic",
    "resize_mode": "shortest",
    "fill_color": 0,
}
LENGTH, DIMENSION = 6, 5
SOURCE = "open_clip:ViT-B-32/laion2b_s34b_b79k"


class Model(torch.nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.visual = torch.nn.Linear(3 * 8 * 8, DIMENSION)
        self.text = torch.nn.Embedding(100, DIMENSION)
        # Felt in training mode only, in which open_clip hands its models over.
        self.dropout = torch.nn.Dropout(0.5)
        self.logit_scale = torch.nn.Parameter(torch.tensor(math.log(100.0)))
        self.logit_bias = torch.nn.Parameter(torch.tensor([-10.0])) if bias else None

    def encode_image(self, image: torch.Tensor, normalize: bool = False) -> torch.Tensor:
        return self.dropout(self.visual(image.flatten(1)))

    def encode_text(self, text: torch.Tensor, normalize: bool = False) -> torch.Tensor:
        return self.dropout(self.text(text).sum(dim=1))


class WrappedTokenizer:
    """Like open_clip's wrappers of other tokenizers: a call, and nothing that counts."""

    def __call__(self, texts: str | list[str], context_length: int | None = None) -> torch.Tensor:
        assert isinstance(texts, list)
        rows = [[1, *map(len, text.split()), 2] for text in texts]
        return torch.tensor([(row + [0] * LENGTH)[:LENGTH] for row in rows])


class SimpleTokenizer(WrappedTokenizer):
    """Like open_clip's own: `encode` gives the tokens between start and end."""

    def encode(self, text: str) -> list[int]:
        return [len(word) for word in text.split()]


class StandIn(ModuleType):
    def __init__(self) -> None:
        super().__init__("open_clip")
        self.config = CONFIG
        self.tokenizer: WrappedTokenizer = SimpleTokenizer()
        self.bias = False
        self.calls: list[tuple[str, Any]] = []
        self.failure: Exception | None = None

    def create_model_and_transforms(
        self, model_name: str, pretrained: str | None = None, precision: str = "fp32", device: str = "cpu"
    ) -> tuple[Model, None, None]:
        self.calls.append((model_name, pretrained))
        if self.failure is not None:
            raise self.failure
        return Model(self.bias).train(), None, None

    def get_tokenizer(self, model_name: str = "", context_length: int | None = None) -> WrappedTokenizer:
        self.calls.append((model_name, "tokenizer"))
        return self.tokenizer

    def get_model_preprocess_cfg(self, model: Model) -> dict[str, Any]:
        return self.config

    def list_models(self) -> list[str]:
        return ["RN50", "ViT-B-32", "ViT-L-14"]

    def list_pretrained_tags_by_model(self, model: str) -> list[str]:
        return ["openai", "laion2b_s34b_b79k"] if model == "ViT-B-32" else []

    def is_pretrained_cfg(self, model: str, tag: str) -> bool:
        return tag.lower().replace("-", "_") in self.list_pretrained_tags_by_model(model)


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn()
    monkeypatch.setitem(sys.modules, "open_clip", stand_in)
    return stand_in


def test_missing_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(ImportError, match=r"need the package open_clip .*Fix: pip install open_clip_torch, which"):
        OpenClipEncoder.load(SOURCE)


def test_features_are_the_models_own_at_unit_length(package):
    encoder = OpenClipEncoder.load(SOURCE, device="cpu")
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3, 8, 8), dtype=np.uint8)
    mean, std = (torch.tensor(CONFIG[name])[:, None, None] for name in ("mean", "std"))
    model = Model(bias=False).eval()
    images = model.encode_image((torch.from_numpy(pixels) / 255 - mean) / std)
    texts = model.encode_text(torch.tensor([[1, 1, 5, 2, 0, 0], [1, 3, 2, 0, 0, 0]]))
    for found, expected in (
        (encoder.encode_pixels((pixels,)), images),
        (encoder.encode_texts(["a photo", "cat"]), texts),
    ):
        np.testing.assert_allclose(found, torch.nn.functional.normalize(expected).detach(), atol=1e-6)


def test_describe_of_the_encoder(package):
    encoder = OpenClipEncoder.load(SOURCE, device="cpu")
    assert package.calls == [("ViT-B-32", "laion2b_s34b_b79k"), ("ViT-B-32", "tokenizer")]
    assert (encoder.family, encoder.source) == ("open_clip", SOURCE)
    assert (encoder.dimension, encoder.text_length) == (DIMENSION, LENGTH)
    assert encoder.logit_scale == pytest.approx(100, rel=1e-6)
    assert encoder.logit_bias is None
    assert encoder.revision.startswith("sha256:")


def test_logit_bias(package):
    package.bias = True
    encoder = OpenClipEncoder.load(SOURCE, device="cpu")
    assert encoder.logit_bias == -10


def test_the_scale_is_read_before_the_weights_are_narrowed(package):
    encoder = OpenClipEncoder.load(SOURCE, device="cpu", dtype="bfloat16")
    assert encoder.logit_scale == pytest.approx(100, rel=1e-6)
    assert encoder.model.visual.weight.dtype == torch.bfloat16
    assert encoder.encode_texts(["a cat"]).dtype == np.float32


def test_another_revision_is_refused(package):
    found = OpenClipEncoder.load(SOURCE, device="cpu").revision
    assert OpenClipEncoder.load(SOURCE, device="cpu", revision=found).revision == found
    with pytest.raises(ValueError, match=f"revision='main' was requested, but {SOURCE} has '{found}'. Fix: "):
        OpenClipEncoder.load(SOURCE, device="cpu", revision="main")
    package.bias = True
    assert OpenClipEncoder.load(SOURCE, device="cpu").revision != found


def test_a_model_on_the_hub_needs_no_name_of_weights(package):
    encoder = OpenClipEncoder.load("hf-hub:laion/some-model", device="cpu")
    assert package.calls == [("hf-hub:laion/some-model", None), ("hf-hub:laion/some-model", "tokenizer")]
    assert encoder.source == "hf-hub:laion/some-model"


def test_prompts_too_long_are_counted_by_open_clips_own_tokenizer(package):
    encoder = OpenClipEncoder.load(SOURCE, device="cpu")
    # Start and end count: four words are six tokens.
    assert encoder.count_tokens(["a b c d", "a b c d e"]) == [6, 7]
    with pytest.warns(UserWarning, match="1 of 2 prompts are longer than the 6 tokens"):
        encoder.encode_texts(["a b c d", "a b c d e"])


def test_tokens_are_not_counted_without_encode(package):
    package.tokenizer = WrappedTokenizer()
    encoder = OpenClipEncoder.load(SOURCE, device="cpu")
    assert encoder.count_tokens(["a b c d e f g h"]) == [0]
    assert encoder.encode_texts(["a b c d e f g h"]).shape == (1, DIMENSION)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        (SOURCE, ("ViT-B-32", "laion2b_s34b_b79k")),
        ("open_clip:ViT-B/32/openai", ("ViT-B-32", "openai")),
        ("open_clip:hf-hub:org/model", ("hf-hub:org/model", None)),
    ],
)
def test_how_a_source_is_read(source, names):
    assert parse_source(source) == names


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "open_clip:ViT-B-32",
            "source must be open_clip:ARCHITECTURE/WEIGHTS or hf-hub:ID; got 'open_clip:ViT-B-32'. Fix",
        ),
        ("open_clip:ViT-B-32/", "source must be "),
        (
            "open_clip:ViT-B-23/openai",
            "no architecture 'ViT-B-23'. Did you mean 'ViT-B-32'. Fix: open_clip.list_models",
        ),
        (
            "open_clip:ViT-B-32/opnai",
            "no weights 'opnai' for ViT-B-32; it has openai, laion.* Did you mean 'openai'.*Fix:",
        ),
        ("open_clip:RN50/openai", "no weights 'openai' for RN50; it has none. Fix: open_clip:RN50/WEIGHTS"),
    ],
)
def test_names_open_clip_does_not_have_are_refused(package, source, message):
    with pytest.raises(ValueError, match=message):
        OpenClipEncoder.load(source, device="cpu")
    assert package.calls == []


def test_weights_that_cannot_be_had_are_an_error_with_the_reason(package):
    package.failure = RuntimeError("no connection\nand more")
    with pytest.raises(OSError, match=r"could not load .* \(no connection\). Fix: check the name and the network"):
        OpenClipEncoder.load(SOURCE, device="cpu")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"resize_mode": "longest"}, "hf-hub:x has resize_mode='longest' with images of 8 x 8; .* Fix: use another"),
        ({"size": (4, 8)}, "resize_mode='shortest' with images of 4 x 8; zeroshift supports 'squash'"),
    ],
)
def test_other_ways_of_resizing_are_refused(package, change, message):
    package.config = {**CONFIG, **change}
    with pytest.raises(ValueError, match=message):
        OpenClipEncoder.load("hf-hub:x", device="cpu")

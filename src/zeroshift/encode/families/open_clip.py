"""Models of the open_clip library (Ilharco et al., 2021), an optional package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from zeroshift.encode.encoder import Encoder, choose_device, choose_dtype
from zeroshift.encode.preprocessing import PixelPreprocessing, affine_table
from zeroshift.suggest import did_you_mean

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

__all__ = ["OpenClipEncoder", "parse_source", "preprocessing_from_config"]

PREFIX, HUB_PREFIX = "open_clip:", "hf-hub:"

SPECIAL_TOKENS_PER_PROMPT = 2
"""A start and an end token, which a tokenizer's `encode` does not include."""


@dataclass(frozen=True)
class RoundedCrop(PixelPreprocessing):
    """Rounds the corner of the crop to even, as in torchvision, which open_clip's models were trained with."""

    def crop_image(self, image: Image) -> Image:
        assert self.crop is not None
        height, width = self.crop
        top, left = round((image.height - height) / 2), round((image.width - width) / 2)
        return image.crop((left, top, left + width, top + height))

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "crop_corner": "rounded to even"}


class OpenClipEncoder(Encoder):
    """A model of `open_clip.create_model_and_transforms` with its tokenizer and preprocessing."""

    family = "open_clip"

    def __init__(
        self,
        source: str,
        revision: str | None,
        model: Any,
        tokenizer: Any,
        preprocessing: PixelPreprocessing,
        *,
        device: Any,
        dtype: Any,
    ) -> None:
        from zeroshift.encode.families.base import check_revision, weights_digest

        self.source = source
        self.revision = weights_digest(model.state_dict())
        check_revision(revision, self.revision, source)
        # Before the weights are converted: in float16 a scale of 100 would become 99.98.
        self.logit_scale = float(model.logit_scale.detach().exp())
        bias = getattr(model, "logit_bias", None)
        self.logit_bias = None if bias is None else float(bias.detach())
        self.device, self.dtype = device, dtype
        # open_clip returns models in training mode.
        self.model = model.to(device=device, dtype=dtype).eval()
        self.tokenizer = tokenizer
        self.preprocessing = preprocessing
        # The tokenizer pads to the length the text encoder reads.
        self.text_length = int(tokenizer(["a"]).shape[1])
        self.dimension = int(self.encode_texts(["a"], warn=False).shape[1])

    @classmethod
    def load(
        cls, source: str, *, device: str = "auto", dtype: str = "auto", revision: str | None = None
    ) -> OpenClipEncoder:
        """`open_clip:ARCHITECTURE/WEIGHTS` from open_clip's own list, or `hf-hub:ID` for a model on the hub.

        `revision` is the hash the weights must have, as in `revision` of an encoder: open_clip itself always uses
        the newest.
        """
        open_clip = _import_open_clip()
        torch_device = choose_device(device)
        torch_dtype = choose_dtype(dtype, torch_device)
        name, weights = parse_source(source)
        if weights is not None:
            _check_known(open_clip, name, weights)
        try:
            model, _, _ = open_clip.create_model_and_transforms(name, pretrained=weights)
            tokenizer = open_clip.get_tokenizer(name)
        except (OSError, RuntimeError, ValueError) as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise OSError(
                f"open_clip could not load {source} ({reason}). Fix: check the name and the network; a model that "
                "was downloaded before is loaded from disk."
            ) from error
        preprocessing = preprocessing_from_config(open_clip.get_model_preprocess_cfg(model), source)
        return cls(source, revision, model, tokenizer, preprocessing, device=torch_device, dtype=torch_dtype)

    def count_tokens(self, prompts: Sequence[str]) -> list[int]:
        encode = getattr(self.tokenizer, "encode", None)
        if encode is None:
            # Wrappers of other libraries' tokenizers only return truncated and padded rows.
            return [0] * len(prompts)
        return [len(encode(prompt)) + SPECIAL_TOKENS_PER_PROMPT for prompt in prompts]

    def _text_features(self, prompts: Sequence[str]) -> torch.Tensor:
        return self.model.encode_text(self.tokenizer(list(prompts)).to(self.device))

    def _image_features(self, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return self.model.encode_image(batch[0])


def parse_source(source: str) -> tuple[str, str | None]:
    """The arguments of open_clip: an architecture and its weights, or a hub id and None.

    >>> parse_source("open_clip:ViT-B-32/laion2b_s34b_b79k")
    ('ViT-B-32', 'laion2b_s34b_b79k')
    >>> parse_source("hf-hub:laion/CLIP-ViT-B-32-laion2B-s34B-b79K")
    ('hf-hub:laion/CLIP-ViT-B-32-laion2B-s34B-b79K', None)
    """
    rest = source.removeprefix(PREFIX)
    if rest.startswith(HUB_PREFIX):
        return rest, None
    name, _, weights = rest.rpartition("/")
    if not name or not weights:
        raise ValueError(
            f"source must be {PREFIX}ARCHITECTURE/WEIGHTS or {HUB_PREFIX}ID; got {source!r}. "
            f"Fix: {PREFIX}ViT-B-32/laion2b_s34b_b79k; open_clip.list_pretrained() lists all."
        )
    # Papers write ViT-B/32, open_clip ViT-B-32.
    return name.replace("/", "-"), weights


def preprocessing_from_config(config: Mapping[str, Any], source: str) -> PixelPreprocessing:
    """The preprocessing in a model's configuration. `source` is named in errors.

    >>> config = {"size": (8, 8), "mean": (0.5,) * 3, "std": (0.5,) * 3, "resize_mode": "squash"}
    >>> preprocessing_from_config({**config, "interpolation": "bilinear"}, "a model")
    PixelPreprocessing(resize=('exact', 8, 8), crop=None, resample='bilinear')
    """
    size = config["size"]
    height, width = (size, size) if isinstance(size, int) else size
    table = affine_table(list(config["mean"]), list(config["std"]))
    # "random" is for training; open_clip then uses bicubic.
    resample = "bilinear" if config.get("interpolation") == "bilinear" else "bicubic"
    mode = config.get("resize_mode") or "shortest"
    if mode == "squash":
        return PixelPreprocessing(("exact", height, width), None, resample, table)
    if mode == "shortest" and height == width:
        return RoundedCrop(("shorter", height), (height, width), resample, table)
    raise ValueError(
        f"{source} has resize_mode={mode!r} with images of {height} x {width}; zeroshift supports 'squash', and "
        "'shortest' for square images. Fix: use another model."
    )


def _import_open_clip() -> ModuleType:
    try:
        import open_clip
    except ImportError as error:
        raise ImportError(
            f"open_clip models need the package open_clip ({error}). Fix: pip install open_clip_torch, which "
            "also installs torchvision."
        ) from error
    return open_clip


def _check_known(open_clip: ModuleType, name: str, weights: str) -> None:
    """Raise for unknown names, before open_clip fails or starts with random weights."""
    models = open_clip.list_models()
    if name not in models:
        raise ValueError(
            f"open_clip has no architecture {name!r}. {did_you_mean(name, models)}"
            "Fix: open_clip.list_models() lists them."
        )
    if not open_clip.is_pretrained_cfg(name, weights):
        tags = open_clip.list_pretrained_tags_by_model(name)
        raise ValueError(
            f"open_clip has no weights {weights!r} for {name}; it has {', '.join(tags) or 'none'}. "
            f"{did_you_mean(weights, tags)}Fix: {PREFIX}{name}/WEIGHTS with one of them."
        )

"""The dual encoders of the transformers library, one class per family: only what differs from `TransformersEncoder`."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from zeroshift.encode.families.base import TransformersEncoder
from zeroshift.features.feature_set import DEFAULT_LOGIT_SCALE

if TYPE_CHECKING:
    import torch

__all__ = [
    "ALIGNEncoder",
    "AltCLIPEncoder",
    "BLIPEncoder",
    "CLIPEncoder",
    "ChineseCLIPEncoder",
    "MetaCLIPEncoder",
    "SigLIP2Encoder",
    "SigLIPEncoder",
    "canonical_text",
]


class CLIPEncoder(TransformersEncoder):
    """CLIP, and models trained like it: OpenAI's, LAION's and MetaCLIP 1."""

    family = "clip"
    model_class = "CLIPModel"


NO_PUNCTUATION = str.maketrans("", "", string.punctuation)

SIGLIP2_TOKENIZERS = ("Gemma", "Siglip2")
"""Prefixes of the tokenizer classes of SigLIP 2, whose fixed-size models are otherwise like SigLIP's."""


SIGLIP2_MIN_VOCABULARY = 100_000
"""SigLIP 2 has a vocabulary of 256 000 words, SigLIP of 32 000."""


def canonical_text(text: str) -> str:
    """Text as SigLIP was trained on: lower case, no punctuation, single spaces for underscores and white space.

    >>> canonical_text("A photo of a St.  Bernard, a type of pet.")
    'a photo of a st bernard a type of pet'
    """
    # Underscores separate words, so they become spaces instead of being removed.
    return " ".join(text.replace("_", " ").lower().translate(NO_PUNCTUATION).split())


class SigLIPEncoder(TransformersEncoder):
    """Trained with a sigmoid loss: padding to full length without a mask, canonical text, and a logit bias."""

    family = "siglip"
    model_class = "SiglipModel"
    padding = "max_length"

    def prepare_text(self, prompt: str) -> str:
        # SigLIP 2 was trained on lower-case text with punctuation.
        if type(self.tokenizer).__name__.startswith(SIGLIP2_TOKENIZERS) or len(self.tokenizer) > SIGLIP2_MIN_VOCABULARY:
            return prompt.lower()
        return canonical_text(prompt)

    def text_inputs(self, encoded: Any) -> list[str]:
        return ["input_ids"]


class SigLIP2Encoder(SigLIPEncoder):
    """NaFlex, which keeps the aspect ratio. Inputs: patches, a padding mask, and the number of patches per side."""

    family = "siglip2"
    model_class = "Siglip2Model"

    def prepare_text(self, prompt: str) -> str:
        return prompt.lower()

    def _image_features(self, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        patches, mask, shapes = batch
        output = self.model.get_image_features(pixel_values=patches, pixel_attention_mask=mask, spatial_shapes=shapes)
        features: torch.Tensor = output.pooler_output
        return features

    def _side(self) -> int:
        vision = self.model.config.vision_config
        return int(vision.num_patches**0.5) * int(vision.patch_size)


class BLIPEncoder(TransformersEncoder):
    """BLIP for retrieval, without its matching head. Its temperature is not published; CLIP's logit scale is used."""

    family = "blip"
    model_class = "BlipForImageTextRetrieval"

    def text_inputs(self, encoded: Any) -> list[str]:
        return ["input_ids", "attention_mask"]

    def _text_features(self, prompts: Sequence[str]) -> torch.Tensor:
        states = self.model.text_encoder(**self._tokens(prompts)).last_hidden_state
        features: torch.Tensor = self.model.text_proj(states[:, 0])
        return features

    def _image_features(self, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        states = self.model.vision_model(pixel_values=batch[0]).last_hidden_state
        features: torch.Tensor = self.model.vision_proj(states[:, 0])
        return features

    def _scale_and_bias(self) -> tuple[float, float | None]:
        return DEFAULT_LOGIT_SCALE, None


class ALIGNEncoder(TransformersEncoder):
    """An EfficientNet and a BERT. Its temperature divides the cosines."""

    family = "align"
    model_class = "AlignModel"
    max_prompt_tokens = 64

    def _scale_and_bias(self) -> tuple[float, float | None]:
        return 1.0 / float(self.model.temperature.detach()), None


class AltCLIPEncoder(TransformersEncoder):
    """CLIP's image encoder with a multilingual text encoder."""

    family = "altclip"
    model_class = "AltCLIPModel"

    def _text_length(self) -> int:
        # XLM-RoBERTa counts positions from the padding index: two of them are never used.
        configured = self.model.config.text_config
        return min(super()._text_length(), configured.max_position_embeddings - configured.pad_token_id - 1)


class ChineseCLIPEncoder(TransformersEncoder):
    """For prompts and class names in Chinese."""

    family = "chinese_clip"
    model_class = "ChineseCLIPModel"


class MetaCLIPEncoder(TransformersEncoder):
    """MetaCLIP 2, with a multilingual tokenizer. (MetaCLIP 1 is of the family clip.)"""

    family = "metaclip"
    model_class = "MetaClip2Model"

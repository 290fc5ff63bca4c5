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
    "canonical",
]


class CLIPEncoder(TransformersEncoder):
    """Its tokenizer lower-cases; padding lies behind the end token, which sees only what is before it."""

    family = "clip"
    model_class = "CLIPModel"


NO_PUNCTUATION = str.maketrans("", "", string.punctuation)

SECOND_TOKENIZERS = ("Gemma", "Siglip2")
"""How the names of the tokenizers of SigLIP 2 begin; its fixed-size models are otherwise those of the first."""


SECOND_WORDS = 100_000
"""Its vocabulary has 256 000 words, that of the first 32 000."""


def canonical(text: str) -> str:
    """Lower case, punctuation removed, underscores and all white space one blank: the text SigLIP was trained on.

    >>> canonical("A photo of a St.  Bernard, a type of pet.")
    'a photo of a st bernard a type of pet'
    """
    # An underscore stands between words; dropped as other signs are, it would join them.
    return " ".join(text.replace("_", " ").lower().translate(NO_PUNCTUATION).split())


class SigLIPEncoder(TransformersEncoder):
    """Padding to full length, no attention mask, canonical text; a bias beside the logit scale."""

    family = "siglip"
    model_class = "SiglipModel"
    padding = "max_length"

    def prepare_text(self, prompt: str) -> str:
        # SigLIP 2 was trained on lower-cased text with its punctuation.
        if type(self.tokenizer).__name__.startswith(SECOND_TOKENIZERS) or len(self.tokenizer) > SECOND_WORDS:
            return prompt.lower()
        return canonical(prompt)

    def text_inputs(self, encoded: Any) -> list[str]:
        return ["input_ids"]


class SigLIP2Encoder(SigLIPEncoder):
    """The variant that keeps a picture's shape: patches, a mask of those that are padding, and how many each way."""

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
    """The temperature BLIP was trained with is not in its published files; CLIP's scale stands in for it."""

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
    family = "align"
    model_class = "AlignModel"
    longest_prompt = 64

    def _scale_and_bias(self) -> tuple[float, float | None]:
        return 1.0 / float(self.model.temperature.detach()), None


class AltCLIPEncoder(TransformersEncoder):
    family = "altclip"
    model_class = "AltCLIPModel"

    def _text_length(self) -> int:
        # XLM-RoBERTa numbers positions from the padding index on: two of them are never reached.
        configured = self.model.config.text_config
        return min(super()._text_length(), configured.max_position_embeddings - configured.pad_token_id - 1)


class ChineseCLIPEncoder(TransformersEncoder):
    family = "chinese_clip"
    model_class = "ChineseCLIPModel"


class MetaCLIPEncoder(TransformersEncoder):
    family = "metaclip"
    model_class = "MetaClip2Model"

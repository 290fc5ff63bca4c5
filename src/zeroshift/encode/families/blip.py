"""BLIP for image-text retrieval: the two towers of its contrastive part; the matching head is not used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from zeroshift.encode.families.base import TransformersEncoder
from zeroshift.features.feature_set import DEFAULT_LOGIT_SCALE

if TYPE_CHECKING:
    import torch

__all__ = ["BLIPEncoder"]


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

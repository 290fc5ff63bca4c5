"""Chinese-CLIP: prompts and class names in Chinese."""

from __future__ import annotations

from zeroshift.encode.families.base import TransformersEncoder

__all__ = ["ChineseCLIPEncoder"]


class ChineseCLIPEncoder(TransformersEncoder):
    family = "chinese_clip"
    model_class = "ChineseCLIPModel"

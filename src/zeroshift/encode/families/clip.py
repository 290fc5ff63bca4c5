"""CLIP, and what was trained as CLIP: OpenAI's, LAION's and MetaCLIP's models in its form."""

from __future__ import annotations

from zeroshift.encode.families.base import TransformersEncoder

__all__ = ["CLIPEncoder"]


class CLIPEncoder(TransformersEncoder):
    """Its tokenizer lower-cases; padding lies behind the end token, which sees only what is before it."""

    family = "clip"
    model_class = "CLIPModel"

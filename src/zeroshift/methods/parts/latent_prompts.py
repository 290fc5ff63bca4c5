"""Prompts as random linear functions of a short vector, so that a search without gradients has few dimensions."""

from __future__ import annotations

import math

import numpy as np

from zeroshift.arrays import to_numpy
from zeroshift.methods.parts.towers import PromptedText, PromptedVision

__all__ = ["LatentPrompts"]

PATCH_NUMBERS = 3072
"""What B2TPT's authors scale the image side's matrix with, whatever the encoder: the numbers of a patch of 32 pixels a
side, 3 x 32 x 32."""


class LatentPrompts:
    """The first `text_size` numbers of a latent vector make the words of the text prompt, the others visual tokens.

    Each is a random matrix times its part of the vector. The matrices are drawn once, from a seed, on the scale of what
    they stand in for: the words' embeddings have the standard deviation of `text.context`'s for latents of standard
    deviation `sigma`, the visual tokens are drawn after the weights of the patch embedding.
    """

    def __init__(
        self,
        text: PromptedText,
        vision: PromptedVision | None,
        *,
        text_size: int,
        vision_size: int,
        tokens: int,
        sigma: float,
        seed: int,
    ) -> None:
        for_text, for_vision = np.random.default_rng(seed).spawn(2)
        words = to_numpy(text.context)
        self._split = text_size
        self._words = words.shape
        self._to_words = for_text.normal(
            0.0, float(words.std()) / (math.sqrt(text_size) * sigma), size=(words.size, text_size)
        )
        self.size = text_size
        if vision is not None:
            self.size += vision_size
            ratio = PATCH_NUMBERS / vision_size
            self._tokens = (tokens, vision.width)
            self._to_tokens = for_vision.normal(
                vision.patches.mean * ratio,
                vision.patches.std * math.sqrt(ratio) * sigma,
                size=(tokens * vision.width, vision_size),
            )

    def words(self, latent: np.ndarray) -> np.ndarray:
        """(n, width): the text prompt's words."""
        return (self._to_words @ latent[: self._split]).reshape(self._words)

    def tokens(self, latent: np.ndarray) -> np.ndarray:
        """(tokens, width): the visual prompt."""
        return (self._to_tokens @ latent[self._split :]).reshape(self._tokens)

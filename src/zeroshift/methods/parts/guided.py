"""What TIMO and TIMO-S share: prompts, text weights chosen by images, and one linear head for text and Gaussians."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from zeroshift.arrays import Array, Home
from zeroshift.methods.parts.examples import example_prompts, example_support
from zeroshift.methods.parts.few_shot import FewShotMethod
from zeroshift.methods.parts.gaussian_classifier import LinearDiscriminant, linear_discriminant
from zeroshift.methods.parts.linear_head import LinearHead
from zeroshift.methods.parts.mutual_guidance import join_prompts
from zeroshift.methods.parts.prompts import checked_prompts
from zeroshift.methods.parts.weight_search import best_weight

__all__ = ["GuidedMethod"]

ALPHAS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1e3, 1e4)
"""Weights of the text tried on the validation set."""


class GuidedMethod(FewShotMethod):
    """A subclass's `_fit` ends with `_keep`."""

    array_parameters = ("prototypes", "prompts", "support", "validation")
    example_parameters: ClassVar[Mapping[str, Any]] = {"prompts": example_prompts, "support": example_support}

    prompts: Array

    def _validate(self) -> None:
        super()._validate()
        self.prompts = checked_prompts(self.prompts, self.prototypes)

    @property
    def text(self) -> Array:
        """The text weights (K, d) the images chose, of unit length."""
        return Home.of(self._text).copy(self._text)

    def _gaussians(self, prompts: Array, matching: Array, transferred: int) -> LinearDiscriminant:
        return linear_discriminant(*join_prompts(prompts, matching, transferred, self.support), self.n_classes)

    def _best_alpha(self, text: Array, gaussians: LinearDiscriminant) -> tuple[float, float]:
        """The text weight found on the validation set, and the accuracy it has there."""
        assert self.validation is not None
        return best_weight(self.validation, self.n_classes, ALPHAS, lambda x: (gaussians.scores(x), x @ text.T))

    def _keep(self, text: Array, gaussians: LinearDiscriminant, alpha: float) -> None:
        self._text = text
        # Text and Gaussians are linear both, so one product answers for the two.
        self._head = LinearHead(alpha * text + gaussians.weights, gaussians.offsets)

    def _predict_scores(self, features: Array) -> Array:
        return self._head.scores(features)

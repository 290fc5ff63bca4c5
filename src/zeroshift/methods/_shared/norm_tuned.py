"""Base class of methods that change the layer norms of the image encoder."""

from __future__ import annotations

from collections.abc import Callable

from zeroshift.arrays import Array, Backend
from zeroshift.methods._shared.image_method import VISION, ImageMethod
from zeroshift.methods._shared.towers import PromptedVision
from zeroshift.parameters import model_parameter

__all__ = ["NormTuned"]


class NormTuned(ImageMethod):
    """An online method that encodes images with weights and biases of its own in the layer norms, batch by batch."""

    vision: PromptedVision = model_parameter(VISION, "Image side of the encoder.")

    def _validate(self) -> None:
        super()._validate()
        if self.vision.norms is None:
            raise ValueError(
                f"vision has no layer norms that can be tuned; got {self.vision!r}. "
                "Fix: vision=zeroshift.encode.prompted_vision(encoder)."
            )

    def _prepare(self) -> None:
        backend = Backend.of(self.prototypes)
        self._initial_norms: Array = backend.asarray(self.vision.norms, backend.xp.float64)

    def _raw_features(self, images: Array, norms: Array) -> Array:
        """Features (B, d), not normalised, in float64."""
        backend = Backend.of(self.prototypes)
        return backend.asarray(self.vision.encode_with_norms(images, norms), backend.xp.float64)

    def _linearize(self, images: Array, norms: Array) -> tuple[Array, Callable[[Array], Array]]:
        """The raw features (B, d), and a function from a gradient with respect to them to that of the norms (P,)."""
        backend = Backend.of(self.prototypes)
        raw, pull_back = self.vision.linearize_norms(images, norms)
        return (
            backend.asarray(raw, backend.xp.float64),
            lambda upstream: backend.asarray(pull_back(upstream), backend.xp.float64),
        )

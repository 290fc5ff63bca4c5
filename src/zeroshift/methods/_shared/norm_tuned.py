"""Base classes of methods that change the layer norms of the image encoder."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from zeroshift.arrays import Array
from zeroshift.methods._shared.image_method import ImageMethod
from zeroshift.methods._shared.tuning import Optimizer, tune
from zeroshift.parameters import state


class NormTuned(ImageMethod):
    """An online method that encodes images with weights and biases of its own in the layer norms, batch by batch."""

    def _validate(self) -> None:
        super()._validate()
        if self.vision.norms is None:
            raise ValueError(
                f"vision has no layer norms that can be tuned; got {self.vision!r}. "
                "Fix: vision=zeroshift.encode.prompted_vision(encoder)."
            )

    def _prepare(self) -> None:
        self._initial_norms: Array = self.as_float64(self.vision.norms)

    def _raw_features(self, images: Array, norms: Array) -> Array:
        """Features (B, d), not normalised."""
        return self.as_float64(self.vision.encode_with_norms(images, norms))

    def _linearize(self, images: Array, norms: Array) -> tuple[Array, Callable[[Array], Array]]:
        """The raw features (B, d), and a function from a gradient with respect to them to that of the norms (P,)."""
        raw, pull_back = self.vision.linearize_norms(images, norms)
        return self.as_float64(raw), lambda upstream: self.as_float64(pull_back(upstream))


class NormStep(NamedTuple):
    """What steps on the layer norms lead to."""

    norms: Array
    """(P,)."""
    optimizer: Optimizer
    scores: Array
    """(B, K), before the last step."""


class NormDescent(NormTuned):
    """Each batch is predicted, and the layer norms take `steps` of an optimizer that stay for the next batches.

    A subclass says which optimizer (`_new_optimizer`), and what is descended (`_gradient`).
    """

    scored = "before"
    steps: int = 1

    _norms: Array = state(lambda self: self._initial_norms, saved_as="norms")
    _optimizer: Optimizer = state(
        lambda self: self._new_optimizer(),
        saved_as="",
        check=lambda self, optimizer: optimizer.check(self._norms, self.n_seen * self.steps),
    )

    @abstractmethod
    def _new_optimizer(self) -> Optimizer:
        """The optimizer before its first step."""

    @abstractmethod
    def _gradient(self, images: Array, norms: Array) -> tuple[Array, Array]:
        """The scores (B, K) of a batch under some layer norms, and the gradient of its loss (P,)."""

    def plan(self, images: Array) -> NormStep:
        optimizer = copy.copy(self._optimizer)
        norms, scores = tune(self._norms, partial(self._gradient, images), optimizer, self.steps)
        return NormStep(norms, optimizer, scores[-1])

    def learn(self, step: NormStep) -> None:
        self._norms, self._optimizer, _ = step

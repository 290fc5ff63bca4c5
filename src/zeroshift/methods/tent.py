"""Tent: entropy minimisation through the layer norms of the image encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from zeroshift.arrays import Array
from zeroshift.methods._shared.image_method import images_together
from zeroshift.methods._shared.norm_tuned import NormDescent, NormStep
from zeroshift.methods._shared.similarity import unit_rows
from zeroshift.methods._shared.tuning import SGD, AdamW, Optimizer, entropy_of_each, through_unit_rows
from zeroshift.parameters import Choice, Flag, Number, parameter
from zeroshift.zero_shot import logits


class Tent(NormDescent):
    """Lowers the mean entropy of the predictions of each batch by a step on the weights and biases of all layer norms
    of the image encoder. The changed layer norms stay for the next batches. A batch is predicted before its last step.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import Tent
    >>> from zeroshift.testing.examples import ExampleVision
    >>> tent = Tent(np.eye(2), vision=ExampleVision(np.eye(2)), logit_scale=5.0)
    >>> tent.adapt(np.array([[1.0, 0.0], [0.6, 0.8]])).round(3)
    array([[0.993, 0.007],
           [0.269, 0.731]])

    Notes
    -----
    Wang et al., *Tent: Fully Test-Time Adaptation by Entropy Minimization*, ICLR 2021, in the form that later papers
    compare on CLIP: the original tunes batch norms, of which a vision transformer has none. No labels are used. Step
    size and optimiser are the authors' for CIFAR-10-C; "sgd" with a rate of 2.5e-4 and batches of 64 are those for
    ImageNet-C. No procedure for that choice is published.

    Repeated steps may predict one class for everything; `reset` restores the encoder's own layer norms. `predict` uses
    the present ones. With `episodic` every batch starts from the encoder's own; then one step changes no answer.
    Gradients are computed a few images at a time, so memory does not grow with the batch. The encoder must have CLIP's
    vision transformer; residual networks, with batch norms, are not supported.
    """

    name = "tent"
    headline = "Lowers entropy through the image layer norms"
    needs = ("prototypes", "vision")
    state_size = "3 P: the P weights and biases of the layer norms (39 936 in ViT-B/16) with two moments"
    complexity = "up to 2 S passes of each image, S of them with gradients, S = steps"
    example_parameters: ClassVar[Mapping[str, Any]] = {"batch_size": 4}

    batch_size: int = images_together(200)
    rate: float = parameter(Number(low=0), "Step size.", default=1e-3)
    optimizer: str = parameter(
        Choice(("adam", "sgd")), 'Optimiser: "adam", or "sgd" with a Nesterov momentum of 0.9.', default="adam"
    )
    steps: int = parameter(Number(low=1, integer=True), "Steps per batch.", default=1)
    episodic: bool = parameter(Flag(), "Forget what was learned before every batch.", default=False)

    def _new_optimizer(self) -> Optimizer:
        if self.optimizer == "sgd":
            return SGD(self.rate, nesterov=True)
        return AdamW(self.rate, weight_decay=0.0)

    def _gradient(self, images: Array, norms: Array) -> tuple[Array, Array]:
        raw, pull_back = self._linearize(images, norms)
        scores = self._scores(raw)
        _, gradient = entropy_of_each(scores)
        to_unit = self.logit_scale * (gradient @ self.prototypes64) / len(scores)
        return scores, pull_back(through_unit_rows(to_unit, raw))

    def learn(self, step: NormStep) -> None:
        if not self.episodic:
            super().learn(step)

    def score(self, images: Array) -> Array:
        return self._scores(self._raw_features(images, self._norms))

    def _scores(self, raw: Array) -> Array:
        return logits(unit_rows(raw), self.prototypes64, self.logit_scale)

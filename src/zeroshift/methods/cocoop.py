"""CoCoOp: a prompt for each image, the learned context plus a learned function of the image's feature."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from zeroshift.arrays import Array, Backend, namespace
from zeroshift.methods._shared.prompt_tuned import PromptTuned
from zeroshift.methods._shared.trained_prompts import MOMENTUM, TrainedPrompts
from zeroshift.methods._shared.training import label_loss
from zeroshift.methods._shared.tuning import SGD, checked_start, logits_to_text
from zeroshift.methods._shared.two_layer_net import TwoLayerNet, checked_net
from zeroshift.parameters import Number, array_parameter, parameter
from zeroshift.zero_shot import logits

__all__ = ["CoCoOp", "ConditionalContext"]

REDUCTION = 16
"""Features have as many times the dimensions of the hidden layer."""


class ConditionalContext(NamedTuple):
    """The embeddings (n, width), the function of the feature that shifts them, and the loss of each step."""

    context: Array
    meta_net: TwoLayerNet
    losses: Array


class CoCoOp(TrainedPrompts, PromptTuned):
    """Learns the context words from labelled samples, and a small network whose output, a function of the image's
    feature, is added to every word. Each image is predicted with the text features of its own prompts.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import CoCoOp
    >>> from zeroshift.testing.examples import ExampleText, example_support
    >>> text = ExampleText(np.eye(2))
    >>> cocoop = CoCoOp(np.eye(2), text=text, support=example_support(np.eye(2)), logit_scale=5.0)
    >>> len(cocoop.losses), int(cocoop.predict(np.array([0.8, 0.6])).argmax())
    (60, 0)

    Notes
    -----
    Zhou et al., *Conditional Prompt Learning for Vision-Language Models*, CVPR 2022; written from the authors' code and
    compared with its outputs. Labels are used, of the classes themselves or of others: `epochs=0` trains nothing, and
    predicts with what was learned on other classes, given as `initial` and `meta_net`. No parameter is chosen
    on labels: one setting for all data. The network is not zero at first, so that training does not
    start from zero-shot. The authors train half of it in float16; here everything outside the text model is float64.
    They crop and flip the images at random in every epoch; here the features are given.

    Every image needs a pass of K prompts, in training and in prediction: a thousand times the cost of CoOp for a
    thousand images. With batches of one, the order of the samples matters.
    """

    name = "cocoop"
    headline = "Learns prompts that depend on the image"
    needs = ("prototypes", "text", "support")
    not_frozen = "each image has prompts of its own, which the text encoder encodes"
    state_size = "n w + h (d + w) for n words of width w and h = d / 16; and N d for N support samples"
    complexity = "a pass of K prompts per sample; the fit one with gradients per support sample and epoch"
    # A single batch, so that the order of the samples does not matter, and a network that rotates with the features.
    example_parameters: ClassVar[Mapping[str, Any]] = {"epochs": 2, "batch_size": 64, "meta_net": "meta_net"}

    epochs: int = parameter(Number(low=0, integer=True), "Passes over the support samples.", default=10)
    batch_size: int = parameter(
        Number(low=1, integer=True),
        "Support samples per step. An incomplete last batch is left out, unless it is the only one.",
        default=1,
    )
    initial: Array | None = array_parameter(
        "Embeddings (n, width) where training starts; those of the words of `text` by default.", default=None
    )
    meta_net: tuple[Array, Array, Array, Array] | None = array_parameter(
        "Where the training of the network starts: weights (h, d), biases (h,), weights (width, h), biases (width,). "
        "None draws them from `seed`, with h = d / 16.",
        default=None,
    )

    def _validate(self) -> None:
        super()._validate()
        if self.initial is not None:
            shape = tuple(self.text.context.shape)
            self.initial = checked_start("initial", self.initial, shape, "text.context")
        if self.meta_net is not None:
            fix = "method.learned_meta_net of a trained method"
            width = int(self.text.context.shape[1])
            self.meta_net = checked_net("meta_net", self.meta_net, self.dimension, width, fix)

    @property
    def context(self) -> Array:
        """The learned embeddings (n, width), without what is added for an image."""
        return Backend.of(self.prototypes).copy(self._trained.context)

    @property
    def learned_meta_net(self) -> TwoLayerNet:
        """The learned network."""
        return TwoLayerNet(*map(Backend.of(self.prototypes).copy, self._trained.meta_net))

    def _start(self) -> ConditionalContext:
        backend = Backend.of(self.prototypes)
        context = self._initial_context if self.initial is None else self.initial
        net = self._random_net() if self.meta_net is None else self.meta_net
        parts = [backend.copy(backend.asarray(array, backend.xp.float64)) for array in (context, *net)]
        return ConditionalContext(parts[0], TwoLayerNet(*parts[1:]), self._no_losses())

    def _random_net(self) -> TwoLayerNet:
        # The orders of the epochs are drawn from (seed, 1), (seed, 2), ...
        hidden = max(1, self.dimension // REDUCTION)
        return TwoLayerNet.random(
            np.random.default_rng([self.seed, 0]), self.dimension, hidden, self.text.context.shape[1]
        )

    def _train(self) -> ConditionalContext:
        backend = Backend.of(self.prototypes)
        context, net, losses = self._start()
        features, labels = backend.asarray(self.support[0], context.dtype), backend.index(self._labels)
        optimizers = [SGD(self.rate, momentum=MOMENTUM, weight_decay=self.weight_decay) for _ in (context, *net)]
        for number, rate, rows in self._steps():
            index = backend.index(rows)
            losses[number], gradients = self._gradients(context, net, features[index], labels[index])
            stepped = []
            for optimizer, parameter_, gradient in zip(optimizers, (context, *net), gradients, strict=True):
                optimizer.rate = rate
                stepped.append(optimizer.step(parameter_, gradient))
            context, net = stepped[0], TwoLayerNet(*stepped[1:])
        return ConditionalContext(context, net, losses)

    def _gradients(self, context: Array, net: TwoLayerNet, x: Array, labels: Array) -> tuple[float, list[Array]]:
        """The mean loss of a batch, and its gradients for the context and the network."""
        xp, n = namespace(x), x.shape[0]
        loss, total, below = 0.0, xp.zeros_like(context), []
        for i, shift in enumerate(net.outputs(x)):
            row = x[i : i + 1]
            text, pull_back = self._text_and_pull_back(context + shift)
            own, gradient = label_loss(logits(row, text, self.logit_scale), labels[i : i + 1])
            pulled = pull_back(logits_to_text(gradient, row, self.logit_scale)) / n
            loss, total = loss + float(own) / n, total + pulled
            below.append(xp.sum(pulled, axis=0))
        return loss, [total, *net.pull_back(x, xp.stack(below))[1]]

    def _predict_scores(self, features: Array) -> Array:
        backend = Backend.of(features)
        wide = backend.asarray(features, backend.xp.float64)
        scores = [
            logits(row[None, :], self._text_features(self._trained.context + shift), self.logit_scale)[0]
            for row, shift in zip(wide, self._trained.meta_net.outputs(wide), strict=True)
        ]
        return backend.asarray(backend.xp.stack(scores), features.dtype)

"""CoCoOp: a prompt for each image, the learned context plus a learned function of the image's feature."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from zeroshift.arrays import Array, namespace
from zeroshift.methods._shared.prompt_tuned import PromptTuned
from zeroshift.methods._shared.trained_prompts import TrainedPrompts
from zeroshift.methods._shared.training import label_loss
from zeroshift.methods._shared.tuning import joined, logits_to_text, parted
from zeroshift.methods._shared.two_layer_net import TwoLayerNet, checked_net
from zeroshift.parameters import Number, array_parameter, parameter
from zeroshift.zero_shot import logits

REDUCTION = 16
"""Features have as many times the dimensions of the hidden layer."""


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
        width = int(self.text.context.shape[1])
        if self.meta_net is not None:
            fix = "method.learned_meta_net of a trained method"
            self.meta_net = checked_net("meta_net", self.meta_net, self.dimension, width, fix)
        # The orders of the epochs are drawn from (seed, 1), (seed, 2), ...
        draw, hidden = np.random.default_rng([self.seed, 0]), max(1, self.dimension // REDUCTION)
        net = self.meta_net or TwoLayerNet.random(draw, self.dimension, hidden, width)
        self._first_parts = [self._start, *net]

    def _default_start(self) -> np.ndarray:
        return np.asarray(self.text.context)

    def _first_values(self) -> Array:
        return joined(map(self.as_float64, self._first_parts))

    def _parts(self, values: Array) -> tuple[Array, TwoLayerNet]:
        context, *net = parted(values, [part.shape for part in self._first_parts])
        return context, TwoLayerNet(*net)

    @property
    def context(self) -> Array:
        """The learned embeddings (n, width), without what is added for an image."""
        return self.as_own(self._parts(self._trained.values)[0])

    @property
    def learned_meta_net(self) -> TwoLayerNet:
        """Weights and biases of the learned network."""
        return TwoLayerNet(*map(self.as_own, self._parts(self._trained.values)[1]))

    def _gradient(self, rows: np.ndarray, values: Array) -> tuple[Array, Array]:
        (context, net), (x, labels) = self._parts(values), self._batch(rows)
        losses, gradients, n = [], [], len(x)
        for i, shift in enumerate(net.outputs(x)):
            row = x[i : i + 1]
            text, pull_back = self._linearize(context + shift)
            loss, slope = label_loss(logits(row, text, self.logit_scale), labels[i : i + 1])
            losses.append(loss)
            gradients.append(pull_back(logits_to_text(slope, row, self.logit_scale)) / n)
        xp = namespace(x)
        to_words = xp.stack(gradients)  # (n, words, width)
        _, to_net = net.pull_back(x, xp.sum(to_words, axis=1))
        return sum(losses) / n, joined([xp.sum(to_words, axis=0), *to_net])

    def _predict_scores(self, features: Array) -> Array:
        context, net = self._parts(self._trained.values)
        scores = [
            logits(row[None, :], self._text_features(context + shift), self.logit_scale)[0]
            for row, shift in zip(features, net.outputs(features), strict=True)
        ]
        return namespace(features).stack(scores)

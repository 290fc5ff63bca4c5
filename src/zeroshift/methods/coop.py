"""CoOp: the context of the prompt, learned from labelled samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from zeroshift.arrays import Array
from zeroshift.methods._shared.prompt_tuned import PromptTuned
from zeroshift.methods._shared.trained_prompts import TrainedPrompts
from zeroshift.methods._shared.training import label_loss
from zeroshift.methods._shared.tuning import logits_to_text
from zeroshift.parameters import Choice, Flag, array_parameter, parameter, state
from zeroshift.serialization import restoring
from zeroshift.zero_shot import logits

RANDOM_SPREAD = 0.02
"""Standard deviation of random initial embeddings."""


class CoOp(TrainedPrompts, PromptTuned):
    """Learns the embeddings of the context words from labelled samples: cross-entropy of their features with the text
    features of the prompts. The classifier is then fixed.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import CoOp
    >>> from zeroshift.testing.examples import ExampleText, example_support
    >>> text = ExampleText(np.eye(2))
    >>> coop = CoOp(np.eye(2), text=text, support=example_support(np.eye(2)), logit_scale=5.0)
    >>> bool(coop.losses[-1] < coop.losses[0])
    True
    >>> int(coop.predict(np.array([0.8, 0.6])).argmax())
    0

    Notes
    -----
    Zhou et al., *Learning to Prompt for Vision-Language Models*, IJCV 2022; written from the authors' code and compared
    with its outputs. Labels of the target classes are used. No parameter is chosen on labels: one setting for all data,
    the last epoch, and an unused validation set; the number of epochs depends on the number of samples per class, and
    is always 50 on ImageNet (a preset).

    Differences: the authors compute in float16 by default, in which small steps vanish; here everything outside the
    text model is float64. They crop and flip images randomly in each epoch; here the features are given, so that the
    image encoder is not needed. To use crops, pass the features of several crops as samples. With given words, their
    code ignores the option of one context per class; here each class starts with a copy. For random embeddings and for
    other places of the name, make `text` with `words="X X X X"` and with `position`; see
    `zeroshift.encode.prompted_text`.

    The gradient passes through the text model a few classes at a time, so memory does not grow with K.
    """

    name = "coop"
    headline = "Learns the prompt from labelled samples"
    needs = ("prototypes", "text", "support")
    linear = True
    state_size = "n w + K d for n words of width w, K n w + K d with one context per class; and N d for N samples"
    complexity = "O(K d) per sample; the fit a pass of K prompts with gradients per step"
    example_parameters: ClassVar[Mapping[str, Any]] = {"epochs": 4}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"imagenet": {"epochs": 50}}

    initial: Array | None = array_parameter(
        "Embeddings (n, width) where training starts, or (K, n, width), one context per class. None starts as "
        "`initialisation` says.",
        default=None,
    )
    initialisation: str = parameter(
        Choice(("words", "random")),
        'Where training starts: "words" is the context of `text`; "random" draws numbers of standard deviation 0.02.',
        default="words",
    )
    per_class: bool = parameter(Flag(), "Learn a context for each class, instead of one for all.", default=False)

    _text: Array = state(
        lambda self: self.prototypes64 if restoring() else self._text_features(self._trained.values),
        merge=lambda mine, theirs: mine,
    )

    @property
    def context(self) -> Array:
        """The learned embeddings (n, width), or (K, n, width)."""
        return self.as_own(self._trained.values)

    def _default_start(self) -> np.ndarray:
        shape = self.text.context.shape
        shape = (self.n_classes, *shape) if self.per_class else shape
        if self.initialisation == "random":
            # The orders of the epochs are drawn from (seed, 1), (seed, 2), ...
            return np.random.default_rng([self.seed, 0]).normal(scale=RANDOM_SPREAD, size=shape)
        return np.array(np.broadcast_to(self.text.context, shape))

    def _gradient(self, rows: np.ndarray, context: Array) -> tuple[Array, Array]:
        x, labels = self._batch(rows)
        text, pull_back = self._linearize(context)
        loss, slope = label_loss(logits(x, text, self.logit_scale), labels)
        return loss, pull_back(logits_to_text(slope, x, self.logit_scale))

    def _predict_scores(self, features: Array) -> Array:
        return logits(features, self._text, self.logit_scale)

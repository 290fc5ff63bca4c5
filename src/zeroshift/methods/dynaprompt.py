"""DynaPrompt: a buffer of prompts; those that suit an image are tuned on it and kept for the next images."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from zeroshift.arrays import Array, Backend, namespace, to_numpy
from zeroshift.methods._shared.prompt_tuned import OnlinePromptTuning
from zeroshift.methods._shared.tuning import checked_start, entropy_of_mean, logits_to_text, tune
from zeroshift.parameters import Choice, Number, array_parameter, parameter, state
from zeroshift.views import entropy
from zeroshift.zero_shot import logits, pseudo_class, softmax

DIGITS = 9
"""Ratings are rounded to this many digits, so that equal prompts tie whatever the rounding of a sum."""


class PromptBuffer(NamedTuple):
    """M prompts, as residuals of the initial context, and when each was last used."""

    residuals: Array
    """(M, n, width): prompt i has the context `initial context + residuals[i]`."""
    order: tuple[int, ...]
    """Indices of the prompts, the least recently used first."""
    uses: tuple[int, ...]
    """How often each prompt was chosen since it was last reset."""
    chosen: tuple[int, ...]
    """The prompts chosen for the last image."""
    head: Array
    """(K, d): the mean text features of those prompts; its logits are the mean of their logits."""

    def check_seen(self, n_seen: int) -> None:
        """ValueError unless the order names each prompt once, and the other numbers fit."""
        numbers, (order, uses, chosen) = list(range(len(self.residuals))), self[1:4]
        fits = sorted(order) == numbers and len(uses) == len(numbers) and set(chosen) <= set(numbers)
        if not fits or any(type(number) is not int or number < 0 for number in (*order, *uses, *chosen)):
            raise ValueError(f"order {order}, uses {uses} and chosen {chosen} do not fit {len(numbers)} prompts")


def rate_prompts(scores: Array, mode: str) -> tuple[np.ndarray, np.ndarray]:
    """How well each prompt suits an image, from the logits (M, V, K) of its views; view 0 is the image itself.

    Mean entropies (M,) over all views, and mean differences (M,) in confidence between the image and its other views,
    0 if there are none.
    """
    xp = namespace(scores)
    confidences = xp.max(scores, axis=2)
    if mode == "paper":  # the probability, in each view, of the class predicted for the image itself
        prompts = xp.arange(scores.shape[0], device=Backend.of(scores).device)
        confidences = softmax(scores)[prompts, :, pseudo_class(scores[:, 0, :])]
    # The mean difference of a single view from itself is 0.
    own, others = confidences[:, :1], confidences[:, 1:] if scores.shape[1] > 1 else confidences
    entropies, differences = to_numpy(entropy(scores).mean(axis=1)), to_numpy((own - others).mean(axis=1))
    return np.round(entropies, DIGITS), np.round(differences, DIGITS)


def select_prompts(entropies: np.ndarray, differences: np.ndarray, reference: int, mode: str) -> tuple[int, ...]:
    """Indices of the prompts for an image: those of lower entropy and larger difference than the reference, the least
    recently used prompt; and the reference. "released" has two errors of the authors' code: the rank by entropy cuts
    the list by difference, and indices of prompts are used as ranks.

    >>> entropies, differences = np.array([0.3, 0.9, 0.1, 0.2]), np.array([0.1, 0.2, 0.5, 0.4])
    >>> [select_prompts(entropies, differences, 0, mode) for mode in ("paper", "released")]
    [(2, 3, 0), (3, 0)]
    """
    if mode == "paper":
        better = (entropies < entropies[reference]) & (differences > differences[reference])
        return (*np.flatnonzero(better).tolist(), reference)
    by_entropy = np.argsort(-entropies, kind="stable").tolist()
    by_difference = np.argsort(-differences, kind="stable").tolist()
    rank = by_entropy.index(reference)
    lower_entropy = by_entropy[min(rank + 1, len(by_entropy) - 1) :]
    both = sorted(set(lower_entropy) & set(by_difference[:rank]))
    return (*(by_entropy[number] for number in both), reference)


class DynaPrompt(OnlinePromptTuning):
    """Keeps several prompts. For each image it tunes the least recently used prompt, and all prompts that are more
    confident than it and distinguish the image better from its views. Together they predict the image. They stay tuned.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import DynaPrompt
    >>> from zeroshift.testing.examples import ExampleText
    >>> text = ExampleText(np.eye(2))
    >>> dynaprompt = DynaPrompt(text.features(text.context), text=text, logit_scale=5.0, n_prompts=3)
    >>> views = np.array([[0.8, 0.6], [1.0, 0.0], [0.6, 0.8]])
    >>> dynaprompt.adapt_views(np.stack([views, views[:, ::-1]])).round(3)
    array([[0.734, 0.266],
           [0.265, 0.735]])
    >>> dynaprompt.buffer.chosen, dynaprompt.buffer.order  # the second image tuned prompts 0 and 1
    ((0, 1), (2, 0, 1))

    Notes
    -----
    Xiao et al., *DynaPrompt: Dynamic Test-Time Prompt Tuning*, ICLR 2025. The released script keeps 12 prompts, the
    default, the paper 10. A prompt is rated by its mean entropy over the views, and by how much more confident it is
    about the image than about the other views: by the probability of the class predicted for the image
    (`mode="paper"`), or by the largest logit of each view (`"released"`). The released code also cuts the list by this
    difference at the rank the reference prompt has by entropy, uses indices of prompts as ranks, and may choose a
    prompt twice. Prompts with equal ratings, as all have at first, keep their order; in the authors' code the device
    decides.

    AdamW starts again for each image and takes one step. Weight decay applies to the residuals of all prompts,
    gradients only to those chosen. A single feature is an image without other views; then only the least recently used
    prompt is tuned. With fewer than ten views the authors' code keeps none; here the most confident one is kept.
    `predict` uses the prompts chosen last; before the first image it is the zero-shot classifier.
    """

    name = "dynaprompt"
    headline = "Tunes several prompts along the stream"
    linear = True
    # Few prompts, because the common checks adapt to thousands of images.
    example_parameters: ClassVar[Mapping[str, Any]] = {"n_prompts": 3}
    state_size = "M n w + 3 K d, for n words of width w"
    complexity = "M + 2 C passes of K prompts per image, C of them with gradients, if C of M prompts are chosen"

    n_prompts: int = parameter(
        Number(low=1, integer=True),
        "Number of prompts M. When all were used, the least recently used one is reset to the initial context before "
        "each image. A single prompt is never reset.",
        default=12,
        sizes_state=True,
    )
    mode: str = parameter(
        Choice(("paper", "released")),
        "How prompts are chosen: as in the paper, or as in the authors' code.",
        default="paper",
    )
    view_ratio: float = parameter(
        Number(0, 1, above=True),
        "Share of the views kept, those of lowest mean entropy under the chosen prompts; at least one.",
        default=0.1,
    )
    weight_decay: float = parameter(
        Number(low=0),
        "Weight decay of AdamW: each image shrinks the residuals of all prompts by this share, times `rate`.",
        default=0.01,
    )
    residuals: Array | None = array_parameter(
        "Initial residuals (M, n, width) of the prompts, added to the embeddings of the n words; zeros if None.",
        default=None,
    )

    _buffer: PromptBuffer = state(lambda self: self._initial_buffer(), saved_as="")

    def _validate(self) -> None:
        super()._validate()
        if self.residuals is not None:
            shape = (self.n_prompts, *self.text.context.shape)
            self.residuals = checked_start("residuals", self.residuals, shape, f"numpy.zeros({shape}), the default")

    def _initial_buffer(self) -> PromptBuffer:
        residuals = self.zeros(self.n_prompts, *self.text.context.shape)
        if self.residuals is not None:
            residuals = self.as_float64(self.residuals)
        return PromptBuffer(residuals, tuple(range(self.n_prompts)), (0,) * self.n_prompts, (), self._initial_text)

    @property
    def buffer(self) -> PromptBuffer:
        """The present prompts and when each was last used; a copy."""
        now = self._buffer
        lists = {name: tuple(getattr(now, name)) for name in ("order", "uses", "chosen")}  # a file has lists
        return now._replace(residuals=self.as_own(now.residuals), head=self.as_own(now.head), **lists)

    def plan(self, views: Array) -> PromptBuffer:
        """The buffer after an image. A prompt chosen twice counts twice."""
        residuals, order, uses = self._buffer.residuals, list(self._buffer.order), list(self._buffer.uses)
        oldest = order[0]
        if self.n_prompts > 1 and 0 not in uses:
            residuals = Backend.of(residuals).copy(residuals)
            residuals[oldest, ...], uses[oldest] = 0.0, 0
        texts = [self._text_features(self._context(residual)) for residual in residuals]
        scores = namespace(residuals).stack([logits(views, text, self.logit_scale) for text in texts])
        chosen = select_prompts(*rate_prompts(scores, self.mode), oldest, self.mode)
        residuals, _ = tune(residuals, partial(self._gradient, views, scores, chosen), self._new_optimizer())
        for i in chosen:
            order.remove(i)
            order.append(i)
            uses[i] += 1
        head = sum(self._text_features(self._context(residuals[i, ...])) for i in chosen) / len(chosen)
        return PromptBuffer(residuals, tuple(order), tuple(uses), chosen, head)

    def _context(self, residual: Array) -> Array:
        return self._initial_context + residual if bool((residual != 0).any()) else self._initial_context

    def _gradient(self, views: Array, scores: Array, chosen: tuple[int, ...], residuals: Array) -> tuple[None, Array]:
        """Gradient of the mean loss of the chosen prompts on the views of lowest mean entropy."""
        xp = namespace(residuals)
        entropies = sum(entropy(scores[i, ...]) for i in chosen)
        kept = xp.argsort(entropies, stable=True)[: max(int(views.shape[0] * self.view_ratio), 1)]
        gradient = xp.zeros_like(residuals)
        for i in set(chosen):
            _, slope = entropy_of_mean(scores[i, ...][kept, :])
            below = logits_to_text(chosen.count(i) / len(chosen) * slope, views[kept, :], self.logit_scale)
            gradient[i, ...] = self._pull_back(self._context(residuals[i, ...]), below)
        return None, gradient

    def learn(self, buffer: PromptBuffer) -> None:
        self._buffer = buffer

    def score(self, views: Array) -> Array:
        return logits(views[:, 0, :], self._buffer.head, self.logit_scale)

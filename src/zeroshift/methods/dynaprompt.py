"""DynaPrompt: a buffer of prompts; those that suit an image are tuned on it and kept for the next images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from zeroshift.arrays import Array, Backend, Rows, as_floats, namespace, to_numpy
from zeroshift.method import ViewMethod
from zeroshift.methods._shared.prompt_tuned import PromptTuned
from zeroshift.methods._shared.tuning import AdamW, entropy_of_mean, logits_to_text
from zeroshift.parameters import Choice, Number, array_parameter, parameter, state
from zeroshift.views import entropy
from zeroshift.zero_shot import logits, pseudo_class, softmax

__all__ = ["DynaPrompt", "PromptBuffer", "PromptRatings", "checked_residuals", "rate_prompts", "select_prompts"]


@dataclass(frozen=True)
class PromptBuffer:
    """M prompts, as residuals of the initial context, and when each was last used. Updates return a new buffer."""

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

    def recycled(self) -> PromptBuffer:
        """The buffer with the least recently used prompt reset to the initial context, if all prompts were used.

        A single prompt is never reset.
        """
        if len(self.uses) == 1 or 0 in self.uses:
            return self
        oldest = self.order[0]
        residuals = Backend.of(self.residuals).copy(self.residuals)
        residuals[oldest, ...] = 0.0
        uses = tuple(0 if i == oldest else n for i, n in enumerate(self.uses))
        return replace(self, residuals=residuals, uses=uses)

    def updated(self, chosen: Sequence[int], residuals: Array, head: Array) -> PromptBuffer:
        """The buffer after an image that chose these prompts, in this order. A prompt chosen twice counts twice."""
        order, uses = list(self.order), list(self.uses)
        for i in chosen:
            order.remove(i)
            order.append(i)
            uses[i] += 1
        return PromptBuffer(residuals, tuple(order), tuple(uses), tuple(chosen), head)

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        values = {"order": list(self.order), "uses": list(self.uses), "chosen": list(self.chosen)}
        return {"residuals": self.residuals, "head": self.head}, values

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> PromptBuffer:
        """A buffer of the same size with what `state` returned; ValueError if it does not fit."""
        order, uses, chosen = (tuple(int(n) for n in values[name]) for name in ("order", "uses", "chosen"))
        numbers = range(len(self.order))
        if sorted(order) != list(numbers):
            raise ValueError(f"the order {order} does not name each of {len(numbers)} prompts once")
        if len(uses) != len(numbers) or min(uses) < 0 or not set(chosen) <= set(numbers):
            raise ValueError(f"uses {uses} and chosen {chosen} do not fit {len(numbers)} prompts")
        for name, own in (("residuals", self.residuals), ("head", self.head)):
            if arrays[name].shape != own.shape:
                raise ValueError(f"{name} has the shape {tuple(arrays[name].shape)}, not {tuple(own.shape)}")
        return PromptBuffer(arrays["residuals"], order, uses, chosen, arrays["head"])


def checked_residuals(residuals: Any, shape: tuple[int, ...], backend: Backend) -> Array:
    """A user's residuals (M, n, width), checked and copied to the library and device of the method."""
    residuals = as_floats("residuals", residuals)
    if tuple(residuals.shape) != shape:
        raise ValueError(
            f"residuals must have the shape (n_prompts, n_words, width) = {shape}; got {tuple(residuals.shape)}. "
            f"Fix: numpy.zeros({shape}) is the default."
        )
    if not np.isfinite(to_numpy(residuals)).all():
        raise ValueError("residuals holds NaN or infinity. Fix: drop or recompute them.")
    with backend.computing():
        return backend.copy(backend.asarray(residuals))


MODES = ("paper", "released")

DIGITS = 9
"""Ratings are rounded to this many digits, so that equal prompts tie whatever the rounding of a sum."""


class PromptRatings(NamedTuple):
    """How well each of the M prompts suits an image."""

    entropies: np.ndarray
    """Mean entropy (M,) over all views."""
    differences: np.ndarray
    """Mean difference (M,) in confidence between the image and its other views; 0 if there are none."""


def rate_prompts(scores: Array, mode: str) -> PromptRatings:
    """Ratings from the logits (M, V, K) of the views under each prompt; view 0 is the image itself."""
    xp = namespace(scores)
    confidences = _image_class_probabilities(scores) if mode == "paper" else xp.max(scores, axis=2)
    entropies = to_numpy(xp.mean(entropy(scores), axis=1))
    differences = np.zeros(len(entropies))
    if scores.shape[1] > 1:
        differences = to_numpy(confidences[:, 0] - xp.mean(confidences[:, 1:], axis=1))
    return PromptRatings(np.round(entropies, DIGITS), np.round(differences, DIGITS))


def _image_class_probabilities(scores: Array) -> Array:
    """Probabilities (M, V) that each prompt gives, in each view, to the class it predicts for the image itself."""
    classes = pseudo_class(scores[:, 0, :])
    prompts = namespace(scores).arange(scores.shape[0], device=Backend.of(scores).device)
    return softmax(scores)[prompts, :, classes]


def select_prompts(ratings: PromptRatings, reference: int, mode: str) -> tuple[int, ...]:
    """Indices of the prompts for an image. The last one is `reference`, the least recently used prompt.

    >>> ratings = PromptRatings(np.array([0.3, 0.9, 0.1, 0.2]), np.array([0.1, 0.2, 0.5, 0.4]))
    >>> select_prompts(ratings, 0, "paper"), select_prompts(ratings, 0, "released")
    ((2, 3, 0), (3, 0))
    """
    return _select_as_in_paper(ratings, reference) if mode == "paper" else _select_as_released(ratings, reference)


def _select_as_in_paper(ratings: PromptRatings, reference: int) -> tuple[int, ...]:
    """The prompts of lower entropy and larger difference than the reference, and the reference."""
    entropies, differences = ratings
    better = (entropies < entropies[reference]) & (differences > differences[reference])
    return (*np.flatnonzero(better).tolist(), reference)


def _select_as_released(ratings: PromptRatings, reference: int) -> tuple[int, ...]:
    """The same with two errors of the released code: the rank by entropy cuts the list by difference, and indices of
    prompts are used as ranks."""
    by_entropy = np.argsort(-ratings.entropies, kind="stable").tolist()
    by_difference = np.argsort(-ratings.differences, kind="stable").tolist()
    rank = by_entropy.index(reference)
    lower_entropy = by_entropy[min(rank + 1, len(by_entropy) - 1) :]
    both = sorted(set(lower_entropy) & set(by_difference[:rank]))
    return (*(by_entropy[number] for number in both), reference)


class DynaPrompt(PromptTuned, ViewMethod):
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
    protocol = "online"
    needs = ("prototypes", "views", "text")
    takes = ()
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
        Choice(MODES), "How prompts are chosen: as in the paper, or as in the authors' code.", default="paper"
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
            self.residuals = checked_residuals(self.residuals, shape, Backend.of(self.prototypes))

    def _initial_buffer(self) -> PromptBuffer:
        backend = Backend.of(self.prototypes)
        if self.residuals is None:
            residuals = backend.zeros((self.n_prompts, *self._initial_context.shape))
        else:
            residuals = backend.copy(backend.asarray(self.residuals, backend.xp.float64))
        return PromptBuffer(residuals, tuple(range(self.n_prompts)), (0,) * self.n_prompts, (), self._initial_text)

    @property
    def buffer(self) -> PromptBuffer:
        """The present prompts and when each was last used; a copy."""
        copy = Backend.of(self.prototypes).copy
        return replace(self._buffer, residuals=copy(self._buffer.residuals), head=copy(self._buffer.head))

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        return ((block, self._adapt_view(features)[None, :]) for block, features in rows.blocks(1))

    def _adapt_view(self, views: Array) -> Array:
        buffer = self._buffer.recycled()
        scores = self._scores(views, buffer.residuals)
        chosen = select_prompts(rate_prompts(scores, self.mode), buffer.order[0], self.mode)
        residuals = self._tuned_residuals(views, buffer.residuals, chosen, scores)
        head = self._head(residuals, chosen)
        answer = logits(views[:1, :], head, self.logit_scale)[0]
        with self._learning():
            self._buffer = buffer.updated(chosen, residuals, head)
        return answer

    def _scores(self, views: Array, residuals: Array) -> Array:
        """Logits (M, V, K) of the views under each prompt."""
        xp = namespace(residuals)
        # The text features of the initial context are known.
        initial = logits(views, self._initial_text, self.logit_scale)
        tuned = to_numpy(xp.any(residuals != 0, axis=(1, 2)))
        return xp.stack(
            [
                logits(views, self._prompt_features(residual), self.logit_scale) if is_tuned else initial
                for residual, is_tuned in zip(residuals, tuned, strict=True)
            ]
        )

    def _prompt_features(self, residual: Array) -> Array:
        """Text features (K, d) of a prompt."""
        return self._text_features(self._initial_context + residual)

    def _tuned_residuals(self, views: Array, residuals: Array, chosen: tuple[int, ...], scores: Array) -> Array:
        """The residuals after one step on the mean loss of the chosen prompts."""
        xp = namespace(residuals)
        entropies = xp.mean(xp.stack([entropy(scores[i, ...]) for i in chosen]), axis=0)
        kept = xp.argsort(entropies, stable=True)[: max(int(views.shape[0] * self.view_ratio), 1)]
        gradient = xp.zeros_like(residuals)
        for i in set(chosen):
            _, score_gradient = entropy_of_mean(scores[i, ...][kept, :])
            text_gradient = logits_to_text(score_gradient, views[kept, :], self.logit_scale)
            share = chosen.count(i) / len(chosen)
            context = self._initial_context + residuals[i, ...]
            gradient[i, ...] = self._context_gradient(context, share * text_gradient)
        return AdamW(self.rate, weight_decay=self.weight_decay).step(residuals, gradient)

    def _head(self, residuals: Array, chosen: tuple[int, ...]) -> Array:
        """Mean text features (K, d) of the chosen prompts."""
        xp = namespace(residuals)
        text = {i: self._prompt_features(residuals[i, ...]) for i in set(chosen)}
        return xp.mean(xp.stack([text[i] for i in chosen]), axis=0)

    def _predict_scores(self, features: Array) -> Array:
        return logits(features, self._buffer.head, self.logit_scale)

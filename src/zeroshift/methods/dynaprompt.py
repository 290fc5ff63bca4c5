"""DynaPrompt: a buffer of prompts, those that suit an image tuned on it and kept for the next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from zeroshift.arrays import Array, Home, Rows, is_array, namespace, to_numpy
from zeroshift.methods._shared.prompt_tuned import TEXT, PromptTuned
from zeroshift.methods._shared.towers import PromptedText
from zeroshift.methods._shared.tuning import AdamW, entropy_of_mean, logits_to_text
from zeroshift.methods._shared.whole_steps import WholeViews
from zeroshift.parameters import Choice, Number, array_parameter, model_parameter, parameter
from zeroshift.views import entropy
from zeroshift.zero_shot import logits, pseudo_class, softmax

__all__ = ["MODES", "DynaPrompt", "PromptBuffer", "Ratings", "checked_residuals", "choose", "ratings_of"]


# DynaPrompt's buffer: prompts as residuals of one set of words, and which of them was used when.


class PromptBuffer(NamedTuple):
    """Never changed: an image makes another one."""

    residuals: Array
    """(M, n, width): prompt i is the words plus `residuals[i]`."""
    order: tuple[int, ...]
    """The prompts' numbers, the least recently used first."""
    uses: tuple[int, ...]
    """How often each was chosen since it was last begun anew."""
    chosen: tuple[int, ...]
    """Those chosen for the last image."""
    head: Array
    """(K, d): the mean of the text features of those, which answers as the mean of their logits."""

    def renewed(self) -> PromptBuffer:
        """Where all were used, the least recently used begins anew, at the words themselves.

        A single prompt is never given up: it is tuned on and on.
        """
        if len(self.uses) == 1 or 0 in self.uses:
            return self
        first = self.order[0]
        residuals = Home.of(self.residuals).copy(self.residuals)
        residuals[first, ...] = 0.0
        uses = tuple(0 if i == first else n for i, n in enumerate(self.uses))
        return self._replace(residuals=residuals, uses=uses)

    def used(self, chosen: Sequence[int], residuals: Array, head: Array) -> PromptBuffer:
        """After an image that chose these, in their order; one chosen twice counts twice."""
        order, uses = list(self.order), list(self.uses)
        for i in chosen:
            order.remove(i)
            order.append(i)
            uses[i] += 1
        return PromptBuffer(residuals, tuple(order), tuple(uses), tuple(chosen), head)

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        values = {"order": list(self.order), "uses": list(self.uses), "chosen": list(self.chosen)}
        return {"residuals": self.residuals, "head": self.head}, values

    def restored(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> PromptBuffer:
        """What `state` gave; ValueError where it is not that of a buffer of this size."""
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


def checked_residuals(residuals: Any, shape: tuple[int, ...], home: Home) -> Array:
    """Residuals a user brings, (M, n, width), copied to where the method is."""
    if not is_array(residuals) or not namespace(residuals).isdtype(residuals.dtype, "real floating"):
        what = residuals.dtype if is_array(residuals) else type(residuals).__name__
        raise TypeError(
            f"residuals must be an array or tensor of floating-point numbers of shape {shape}; got {what}. "
            "Fix: numpy.asarray(residuals, dtype='float32')."
        )
    if tuple(residuals.shape) != shape:
        raise ValueError(
            f"residuals must have the shape (n_prompts, words, width) = {shape}; got {tuple(residuals.shape)}. "
            f"Fix: numpy.zeros({shape}) is what the prompts begin with otherwise."
        )
    if not np.isfinite(to_numpy(residuals)).all():
        raise ValueError("residuals holds NaN or infinity. Fix: drop or recompute them.")
    with home.computing():
        return home.copy(home.bring(residuals))


# Which of DynaPrompt's prompts suit an image: how sure each is of it, and how well it tells it from its views.


MODES = ("paper", "released")

DIGITS = 9
"""Ratings are compared to so many digits: prompts that are alike must tie, whatever the rounding of a sum."""


class Ratings(NamedTuple):
    """How each of the M prompts takes an image."""

    entropies: np.ndarray
    """(M,), the mean over all views."""
    differences: np.ndarray
    """(M,): how much surer, on average, a prompt is of the image than of its other views; 0 where there are none."""


def ratings_of(scores: Array, mode: str) -> Ratings:
    """Ratings from each prompt's logits of the views, (M, V, K) in all, view 0 the image itself."""
    xp = namespace(scores)
    sure = _of_the_same_class(scores) if mode == "paper" else xp.max(scores, axis=2)
    entropies = to_numpy(xp.mean(entropy(scores), axis=1))
    several = scores.shape[1] > 1
    differences = to_numpy(sure[:, 0] - xp.mean(sure[:, 1:], axis=1)) if several else np.zeros(len(entropies))
    return Ratings(np.round(entropies, DIGITS), np.round(differences, DIGITS))


def _of_the_same_class(scores: Array) -> Array:
    """The probability (M, V) each prompt gives, in each view, to the class it gives the image itself."""
    classes = pseudo_class(scores[:, 0, :])
    prompts = namespace(scores).arange(scores.shape[0], device=Home.of(scores).device)
    return softmax(scores)[prompts, :, classes]


def choose(ratings: Ratings, first: int, mode: str) -> tuple[int, ...]:
    """Numbers of the prompts an image is given to; `first`, the least recently used, is the last of them.

    >>> ratings = Ratings(np.array([0.3, 0.9, 0.1, 0.2]), np.array([0.1, 0.2, 0.5, 0.4]))
    >>> choose(ratings, 0, "paper"), choose(ratings, 0, "released")
    ((2, 3, 0), (3, 0))
    """
    return _surer_and_keener(ratings, first) if mode == "paper" else _as_released(ratings, first)


def _surer_and_keener(ratings: Ratings, first: int) -> tuple[int, ...]:
    """Those of lower entropy and larger difference than `first`, and it."""
    entropies, differences = ratings
    better = (entropies < entropies[first]) & (differences > differences[first])
    return (*np.flatnonzero(better).tolist(), first)


def _as_released(ratings: Ratings, first: int) -> tuple[int, ...]:
    """The same meant, with two slips: the rank by entropy cuts the list by difference, and numbers serve as ranks."""
    unsure = np.argsort(-ratings.entropies, kind="stable").tolist()
    keen = np.argsort(-ratings.differences, kind="stable").tolist()
    rank = unsure.index(first)
    surer = unsure[min(rank + 1, len(unsure) - 1) :]
    both = sorted(set(surer) & set(keen[:rank]))
    return (*(unsure[number] for number in both), first)


class DynaPrompt(PromptTuned, WholeViews):
    """Keeps several prompts and, for each image, tunes those that are surer of it, and tell it better from its views,
    than the one unused for longest, and that one. They answer the image together, and stay as they were tuned.

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
    >>> dynaprompt.buffer.chosen, dynaprompt.buffer.order  # the second image moved prompt 0 on, and used prompt 1
    ((0, 1), (2, 0, 1))

    Notes
    -----
    Xiao et al., *DynaPrompt: Dynamic Test-Time Prompt Tuning*, ICLR 2025. The released script keeps 12 prompts, the
    default, the paper 10. A prompt is rated by its mean entropy over the views, and by how much surer it is of the
    image than of the other views: the probability of the class the image is given (`mode="paper"`), or the largest
    logit of each (`"released"`). The released choice also cuts the list by this difference at the rank the reference
    prompt has by entropy, takes numbers of prompts for ranks, and may choose one prompt twice. Prompts that are rated
    alike, as all are at first, keep their order; in the authors' code the device decides.

    One step of a fresh AdamW for each image; weight decay reaches the residuals of all prompts, gradients only those
    chosen. A single feature is an image without other views: no prompt tells it from them, and the one unused for
    longest is tuned alone. Of fewer than ten views the authors' code keeps none; here the surest one is kept. `predict`
    answers with the prompts chosen last, and as zero-shot before there are any.
    """

    name = "dynaprompt"
    protocol = "online"
    needs = ("prototypes", "views", "text")
    takes = ()
    # Few prompts for the common checks, which adapt to thousands of images.
    example_parameters: ClassVar[Mapping[str, Any]] = {"n_prompts": 3}
    state_size = "M n w + 3 K d, for n words of width w"
    complexity = "M + 2 C passes of K prompts, C of them with gradients, C of M prompts chosen, for an image"

    text: PromptedText = model_parameter(
        TEXT, "The text side of the encoder, as `zeroshift.encode.prompted_text` makes it."
    )
    logit_scale: float = parameter(Number(low=0, above=True), "Scale of the logits; 100 for CLIP.", default=100.0)
    n_prompts: int = parameter(
        Number(low=1, integer=True),
        "Prompts kept, M. Once all were used, the one unused for longest begins anew at the words for each image; a single one never does.",
        default=12,
    )
    mode: str = parameter(
        Choice(MODES), "How prompts are chosen, as the paper says or as the authors' code does it.", default="paper"
    )
    view_ratio: float = parameter(
        Number(0, 1, above=True),
        "Share of the views kept, those of lowest mean entropy under the chosen prompts; at least one.",
        default=0.1,
    )
    rate: float = parameter(
        Number(low=0),
        "Of AdamW: the step size, and the share of every prompt's residual taken off for each image, times `rate`.",
        default=5e-3,
    )
    weight_decay: float = parameter(
        Number(low=0),
        "Of AdamW: the step size, and the share of every prompt's residual taken off for each image, times `rate`.",
        default=0.01,
    )
    residuals: Array | None = array_parameter(
        "What the prompts begin with, added to the embeddings of the n words; nothing.", default=None
    )

    def _validate(self) -> None:
        super()._validate()
        if self.residuals is not None:
            shape = (self.n_prompts, *self.text.context.shape)
            self.residuals = checked_residuals(self.residuals, shape, Home.of(self.prototypes))

    def _begin(self) -> None:
        home = Home.of(self.prototypes)
        if self.residuals is None:
            residuals = home.zeros((self.n_prompts, *self._words.shape))
        else:
            residuals = home.copy(home.bring(self.residuals, home.xp.float64))
        numbers = tuple(range(self.n_prompts))
        self._buffer = PromptBuffer(residuals, numbers, (0,) * self.n_prompts, (), self._initial)

    @property
    def buffer(self) -> PromptBuffer:
        """The prompts as they are now, and which of them was used when; a copy."""
        self._finish()
        copy = Home.of(self.prototypes).copy
        return self._buffer._replace(residuals=copy(self._buffer.residuals), head=copy(self._buffer.head))

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        for block, features in rows.blocks(1):
            scores = self._adapt_view(features)
            self.n_seen += 1
            self._finish()
            yield block, scores[None, :]

    def _adapt_view(self, views: Array) -> Array:
        self._finish()
        buffer = self._buffer.renewed()
        scores = self._scores(views, buffer.residuals)
        chosen = choose(ratings_of(scores, self.mode), buffer.order[0], self.mode)
        residuals = self._tuned(views, buffer.residuals, chosen, scores)
        head = self._head(residuals, chosen)
        self._decide(partial(self._keep, buffer.used(chosen, residuals, head)))
        return logits(views[:1, :], head, self.logit_scale)[0]

    def _keep(self, buffer: PromptBuffer) -> None:
        self._buffer = buffer

    def _scores(self, views: Array, residuals: Array) -> Array:
        """Logits of the views under each of the prompts, (M, V, K)."""
        xp = namespace(residuals)
        # The text features of prompts at the words themselves are known.
        plain = logits(views, self._initial, self.logit_scale)
        moved = to_numpy(xp.any(residuals != 0, axis=(1, 2)))
        return xp.stack([self._logits(views, r) if far else plain for r, far in zip(residuals, moved, strict=True)])

    def _logits(self, views: Array, residual: Array) -> Array:
        return logits(views, self._text_features(self._words + residual), self.logit_scale)

    def _tuned(self, views: Array, residuals: Array, chosen: tuple[int, ...], scores: Array) -> Array:
        """The residuals after the image's step against the mean loss of the chosen prompts."""
        xp = namespace(residuals)
        entropies = xp.mean(xp.stack([entropy(scores[i, ...]) for i in chosen]), axis=0)
        kept = xp.argsort(entropies, stable=True)[: max(int(views.shape[0] * self.view_ratio), 1)]
        gradient = xp.zeros_like(residuals)
        for i in set(chosen):
            _, to_logits = entropy_of_mean(scores[i, ...][kept, :])
            upstream = logits_to_text(to_logits, views[kept, :], self.logit_scale)
            share = chosen.count(i) / len(chosen)
            gradient[i, ...] = self._to_context(self._words + residuals[i, ...], share * upstream)
        return AdamW(self.rate, weight_decay=self.weight_decay).step(residuals, gradient)

    def _head(self, residuals: Array, chosen: tuple[int, ...]) -> Array:
        """The mean (K, d) of the chosen prompts' text features."""
        xp = namespace(residuals)
        text = {i: self._text_features(self._words + residuals[i, ...]) for i in set(chosen)}
        return xp.mean(xp.stack([text[i] for i in chosen]), axis=0)

    def _predict_scores(self, features: Array) -> Array:
        return logits(features, self._buffer.head, self.logit_scale)

    def _state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        return self._buffer.state()

    def _restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        self._buffer = self._buffer.restored(arrays, values)

"""DPE: text and visual prototypes that evolve together with the stream."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np

from zeroshift.arrays import Array, Home, Rows, namespace
from zeroshift.methods._shared.low_entropy_memory import Insertion, LowEntropyMemory
from zeroshift.methods._shared.similarity import exponential_kernel, inner_products, single_sample_stats, unit_rows
from zeroshift.methods._shared.tuning import AdamW, entropy_of_each, info_nce, through_unit_rows
from zeroshift.methods._shared.whole_steps import WholeViews
from zeroshift.parameters import Choice, Flag, Number, parameter
from zeroshift.views import average_views, entropy
from zeroshift.zero_shot import pseudo_class

__all__ = ["DPE", "DualPrototypes"]


# DPE's classifier: a text prototype for every class, and a visual one for every class that has been seen.


TEMPERATURE = 0.01
"""Of InfoNCE, between visual and text prototypes."""

EPSILON = 1e-3
"""Of AdamW, in place of the usual 1e-8: coordinates of a gradient far below it hardly move."""


@dataclass(frozen=True)
class DualPrototypes:
    """Scores are scaled cosines with the text prototypes, and `alpha` exp(-`beta` (1 - cosine)) with the visual ones.

    >>> import numpy as np
    >>> rows = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0]])
    >>> dual = DualPrototypes(rows, np.array([1]), logit_scale=5.0, alpha=2.0, beta=5.0)
    >>> dual.scores(np.array([[0.8, 0.6]])).round(6)
    array([[4.      , 3.270671]])
    """

    rows: Array
    """The text prototypes of all K classes, then the visual ones of C, (K + C, d), of any length: directions count.
    Together, because what is done to them is done to both."""
    classes: Array
    """The classes of the visual prototypes, (C,), none of them twice."""
    logit_scale: float
    alpha: float
    beta: float

    @property
    def n_classes(self) -> int:
        return int(self.rows.shape[0] - self.classes.shape[0])

    @cached_property
    def unit(self) -> Array:
        """The rows at unit length."""
        return unit_rows(self.rows)

    def scores(self, features: Array) -> Array:
        """(n, K) of features (n, d), of unit length or means of such."""
        return self._fused(features)[0]

    def loss(self, feature: Array, align: float) -> tuple[Array, Array]:
        """The entropy of the prediction of a feature (d,), and `align` times the InfoNCE from visual prototypes to the
        text prototypes of their classes; and the gradient of that with respect to `rows`."""
        fused, votes = self._fused(feature[None, :])
        loss, pulled = entropy_of_each(fused)
        to_cosines = [self.logit_scale * pulled, self.beta * votes * pulled[:, self.classes]]
        to_unit = namespace(feature).concat(to_cosines, axis=1).T * feature
        if align and self.classes.shape[0] > 1:  # among one class there is nothing to tell apart
            visual, text = self.unit[self.n_classes :, :], self.unit[self.classes, :]
            apart, to_visual, to_text = info_nce(visual, text, TEMPERATURE)
            loss = loss + align * apart
            to_unit[self.n_classes :, :] += align * to_visual
            to_unit[self.classes, :] += align * to_text
        return loss[0], through_unit_rows(to_unit, self.rows)

    def moved(self, feature: Array, align: float, rate: float) -> DualPrototypes:
        """These after one step of AdamW, of size `rate`, against the loss of a feature (d,)."""
        _, gradient = self.loss(feature, align)
        # A residual begins at zero, where a weight decay has nothing to take off.
        optimiser = AdamW(rate, eps=EPSILON, weight_decay=0.0)
        return replace(self, rows=optimiser.step(self.rows, gradient))

    def _fused(self, features: Array) -> tuple[Array, Array]:
        """Scores (n, K), and what the visual prototypes add to them, (n, C)."""
        cosines = inner_products(features, self.unit)
        fused = self.logit_scale * cosines[:, : self.n_classes]
        votes = self.alpha * exponential_kernel(cosines[:, self.n_classes :], self.beta)
        fused[:, self.classes] += votes
        return fused, votes


BLOCK_ROWS = 256


class DPE(WholeViews):
    """Beside the text prototypes it keeps visual ones, the means of each class's surest samples, and moves both one
    step towards a surer prediction of each sample and towards each other before it answers. The step is undone, but
    where the answer was sure the moved text prototypes join a running mean that takes the place of the first ones.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import DPE
    >>> dpe = DPE(np.eye(2), logit_scale=5.0)
    >>> dpe.adapt(np.array([[0.8, 0.6], [0.6, 0.8]])).round(3)
    array([[0.999, 0.001],
           [0.11 , 0.89 ]])

    Notes
    -----
    Zhang et al., *Dual Prototype Evolving for Test-Time Generalization of Vision-Language Models*, NeurIPS 2024. The
    sample enters the memory before it is answered, so a class seen for the first time is answered with the sample
    itself as its visual prototype. The defaults are the authors' for ImageNet; they set alpha, beta, the rate and the
    weight of the alignment by hand for each data set (`DPE.preset("dtd")`), with no procedure stated. They answer the
    image itself but for ImageNet-A, where they answer the surest views; they make views of the ImageNet family only,
    with AugMix, and prototypes from templates and sentences written by GPT-3. Here views and prototypes are those
    given.

    Their code divides entropies in nats by log2 K, so that a share of 0.1 is 14 % of the largest entropy: see
    `released`. Their residuals are half precision, in which the second moments of small gradients vanish; here
    everything is float64. Even in float32, the way they compute the entropy rounds the gradient of a sure prediction by
    more than there is of it, which moves the logit of the class answered by up to 1.3e-3. Their weight decay of 0.1
    does nothing, as a residual begins at zero and takes one step. Of fewer than ten views their code keeps none; here
    the surest one is kept.

    `predict` answers with the mean text prototypes and the samples kept, without a step.
    """

    name = "dpe"
    protocol = "online"
    state_size = "K (M + 1) d, M = capacity"
    complexity = "O(K M d + C^2 d) a sample, C <= K classes seen"
    gradient_steps = 1
    check_exceptions: ClassVar[Mapping[str, str]] = {
        "axes_do_not_matter": "AdamW scales its step along every axis by itself, so the axes are part of the method"
    }
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        dataset: {"alpha": alpha, "beta": beta, "rate": rate, "align": align, "final": final}
        for dataset, alpha, beta, rate, align, final in (
            ("imagenet", 6.0, 5.0, 6e-4, 0.5, "image"),
            ("imagenet_a", 6.0, 5.0, 3e-4, 2.5, "views"),
            ("imagenetv2", 3.0, 8.0, 5e-4, 0.5, "image"),
            ("imagenet_r", 3.0, 8.0, 6e-4, 0.0, "image"),
            ("imagenet_sketch", 7.0, 7.45, 6e-4, 0.2, "image"),
            ("caltech101", 15.0, 5.0, 6e-4, 0.2, "image"),
            ("dtd", 6.0, 3.0, 6e-4, 0.2, "image"),
            ("ucf101", 9.0, 8.0, 4e-4, 0.2, "image"),
            ("eurosat", 3.0, 8.0, 5e-5, 0.2, "image"),
            ("fgvc_aircraft", 6.0, 2.0, 6e-4, 0.2, "image"),
            ("food101", 3.0, 1.0, 2e-4, 0.2, "image"),
            ("oxford_flowers", 2.5, 5.0, 1e-4, 0.2, "image"),
            ("oxford_pets", 4.0, 7.0, 5e-5, 0.2, "image"),
            ("stanford_cars", 3.0, 7.0, 1e-4, 1.5, "image"),
            ("sun397", 6.0, 3.0, 2e-4, 0.2, "image"),
        )
    }

    logit_scale: float = parameter(Number(low=0, above=True), "Scale of the logits; 100 for CLIP.", default=100.0)
    alpha: float = parameter(Number(low=0), "Weight of the visual prototypes.", default=6.0)
    beta: float = parameter(Number(low=0), "Sharpness of their kernel exp(-beta (1 - cosine)).", default=5.0)
    rate: float = parameter(Number(low=0), "Step size of AdamW.", default=6e-4)
    align: float = parameter(
        Number(low=0),
        "Weight of the contrastive loss between visual and text prototypes, beside the entropy of the prediction.",
        default=0.5,
    )
    capacity: int = parameter(
        Number(low=0, integer=True), "Samples kept a class; 0 does without visual prototypes.", default=3
    )
    gate: float = parameter(
        Number(0, 1), "Entropy, as a share of the largest, below which an answer is sure.", default=0.1
    )
    view_ratio: float = parameter(
        Number(0, 1, above=True),
        "Share of the views `adapt_views` keeps, those of lowest entropy; at least one.",
        default=0.1,
    )
    final: str = parameter(
        Choice(("image", "views")),
        'What is answered where there are views: the "image" itself, view 0, or its surest "views", chosen anew.',
        default="image",
    )
    released: bool = parameter(
        Flag(),
        "Divide entropies by log2 K, as the authors' code does, and not by ln K, their largest value.",
        default=False,
    )

    def _begin(self) -> None:
        home = Home.of(self.prototypes)
        self._text = unit_rows(home.bring(self.prototypes, home.xp.float64))
        self._n_sure = 0
        self._memory = LowEntropyMemory(home, self.n_classes, self.capacity, self.dimension)

    @property
    def n_sure(self) -> int:
        """Samples whose answers were sure, so that the text prototypes evolved with them."""
        self._finish()
        return self._n_sure

    @property
    def text_prototypes(self) -> Array:
        """The text prototypes as they have evolved, (K, d), of unit length."""
        self._finish()
        with Home.of(self.prototypes).computing():
            return unit_rows(self._text)

    @property
    def bank_counts(self) -> Array:
        """Samples kept a class, (K,)."""
        self._finish()
        home = Home.of(self.prototypes)
        return home.xp.asarray(self._memory.counts, device=home.device)

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        for block, features in rows.blocks(1):
            scores, write = self._learned(features)
            self._commit(write)
            yield block, scores

    def _adapt_view(self, views: Array) -> Array:
        self._finish()
        scores, write = self._learned(views)
        self._decide(write)
        return scores[0]

    def _learned(self, views: Array) -> tuple[Array, partial[None]]:
        """Scores (1, K) of an image by its views (V, d), and how to keep what was learned on the way."""
        entry, feature = self._entry(views)
        moved = self._prototypes(entry, feature).moved(feature, self.align, self.rate)
        text = moved.unit[: self.n_classes, :]
        shown = views[:1, :]
        if self.final == "views" and views.shape[0] > 1:
            shown = average_views(views, text, self.logit_scale, ratio=self.view_ratio).features[None, :]
        scores = moved.scores(shown)
        n_sure, mean = self._n_sure, self._text
        if self._sure(scores):
            n_sure += 1
            mean = (n_sure * mean + text) / (n_sure + 1)
        return scores, partial(self._write, entry, feature, mean, n_sure)

    def _entry(self, views: Array) -> tuple[Insertion | None, Array]:
        """Where the image enters the memory, if it does, and what stands for it, (d,)."""
        text = unit_rows(self._text)
        if views.shape[0] == 1:
            one = single_sample_stats(views, text, self.logit_scale)
            return self._memory.plan_one(one.k, one.entropy), Home.of(views).copy(views[0])
        seen = average_views(views, text, self.logit_scale, ratio=self.view_ratio)
        return self._memory.plan_one(int(pseudo_class(seen.logits)), float(seen.entropy)), seen.features

    def _sure(self, scores: Array) -> bool:
        largest = math.log2(self.n_classes) if self.released else math.log(self.n_classes)
        return float(entropy(scores)[0]) < self.gate * largest

    def _write(self, entry: Insertion | None, feature: Array, text: Array, n_sure: int) -> None:
        if entry is not None:
            self._memory.insert(entry, feature)
        self._text, self._n_sure = text, n_sure

    def _prototypes(self, entry: Insertion | None = None, feature: Array | None = None) -> DualPrototypes:
        """Both kinds of prototypes as they are, or as they will be once a feature (d,) has entered the memory."""
        xp = namespace(self._text)
        counts, sums = self._memory.counts, xp.sum(self._memory.features, axis=1)
        if entry is not None:
            own = xp.asarray(self._memory.features[entry.k], copy=True)
            own[entry.slot] = feature
            sums[entry.k] = xp.sum(own, axis=0)
            counts[entry.k] += not np.isfinite(self._memory.entropies[entry.k, entry.slot])
        home = Home.of(self._text)
        held = np.flatnonzero(counts)
        classes = home.index(held)
        visual = sums[classes] / home.bring(counts[held, None], home.xp.float64)
        rows = xp.concat([self._text, visual])
        return DualPrototypes(rows, classes, self.logit_scale, self.alpha, self.beta)

    def _predict_scores(self, features: Array) -> Array:
        return self._prototypes().scores(features)

    @property
    def _predict_rows(self) -> int:
        return BLOCK_ROWS

    def _state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        return {"text": self._text, **self._memory.arrays()}, {"n_sure": self._n_sure}

    def _restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        if tuple(arrays["text"].shape) != (self.n_classes, self.dimension):
            raise ValueError(f"text prototypes of shape {tuple(arrays['text'].shape)} were saved")
        self._memory.restore(arrays)
        self._text, self._n_sure = arrays["text"], int(values["n_sure"])

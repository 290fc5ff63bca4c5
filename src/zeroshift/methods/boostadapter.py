"""BoostAdapter: TDA's caches, joined for one prediction by the confident views of the image itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from zeroshift.arrays import Array, Backend, to_numpy
from zeroshift.methods._shared.similarity import exponential_kernel
from zeroshift.methods.tda import TDA
from zeroshift.parameters import Choice, Number, Optional, parameter
from zeroshift.views import observe_views
from zeroshift.zero_shot import Observation, observe, quantize

FIRST_RANK = 2.0**30
"""Rank of the first sample in the negative cache. Ranks are compared to thirty bits."""

OUT_OF_DISTRIBUTION = ("imagenet_a", "imagenetv2", "imagenet_r", "imagenet_sketch")
DELTAS = {
    "imagenet_a": 3, "imagenet_r": 3, "food101": 3, "stanford_cars": 3, "caltech101": 2, "fgvc_aircraft": 2,
    "imagenetv2": 1, "imagenet_sketch": 1, "sun397": 1, "dtd": 0, "eurosat": 0, "oxford_flowers": 0, "oxford_pets": 0,
    "ucf101": 0,
}  # fmt: skip


def _preset(dataset: str, of_tda: Mapping[str, Any]) -> dict[str, Any]:
    if dataset not in DELTAS:
        return dict(of_tda)
    feature = "average" if dataset in OUT_OF_DISTRIBUTION else "image"
    return {**of_tda, "delta": DELTAS[dataset], "view_feature": feature}


class ObservedViews(NamedTuple):
    """One sample (see `Observation`), and those of its views that may vote, in the order of their entropies."""

    features: Array
    logits: Array
    y: Array
    k: Array
    entropy: Array
    views: Array
    """(1, m, d)."""
    classes: np.ndarray
    """(1, m)."""
    entropies: np.ndarray
    """(1, m)."""


class BoostAdapter(TDA):
    """TDA whose positive cache is joined, for one prediction, by the confident views of the image to predict: each is
    an entry of the class it is predicted as, so that an image also votes for itself. The negative cache keeps the
    newest samples of each class. Without views it is TDA with that negative cache.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import BoostAdapter
    >>> method = BoostAdapter(np.eye(2), logit_scale=5.0, view_ratio=0.5, view_feature="image")
    >>> views = np.array([[0.8, 0.6], [0.96, 0.28]])
    >>> method.adapt_views_scores(views).round(6)
    array([7.452298, 3.      ])

    Notes
    -----
    Zhang et al., *BoostAdapter: Improving Vision-Language Test-Time Adaptation via Regional Bootstrapping*, NeurIPS
    2024, from the authors' code. The share `view_ratio` of the views, those of lowest entropy, may enter the cache of
    one prediction, which has `delta` more places per class; afterwards they are forgotten. Where it is full they
    displace entries of higher entropy, for that prediction only. With fewer than 1 / `view_ratio` views none enters.

    The authors use TDA's weights for each data set and set `delta` by hand; they average the kept views on variants of
    ImageNet and use the image itself elsewhere (`presets`). No procedure is stated for any of these. The first-in,
    first-out rule of the negative cache is that of their code, whose paper does not mention it. `released` is as in
    TDA.
    """

    name = "boostadapter"
    headline = "TDA, and the views of an image vote for it"
    complexity = "O(K (M+ + M-) d + K^2 M-) per sample, and O(V K d) for V views"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        dataset: _preset(dataset, of_tda) for dataset, of_tda in TDA.presets.items()
    }

    delta: int | None = parameter(
        Optional(Number(low=0, integer=True)),
        "Places per class, in addition to `positive_capacity`, for views of the image that is predicted; None lets no "
        "view vote.",
        default=3,
    )
    view_feature: str = parameter(
        Choice(("average", "image")),
        'What of an image with views is stored and predicted: the "average" of the views kept, or the "image" itself, '
        "its first view.",
        default="average",
    )

    def observe_views(self, views: Array) -> ObservedViews:
        backend = Backend.of(views)
        each = observe(views, self.prototypes64, self.logit_scale)
        entropies = quantize(to_numpy(each.entropy))
        n_kept = int(views.shape[0] * self.view_ratio)
        kept = np.argsort(entropies, kind="stable")[: max(1, n_kept)]
        one = Observation(*(part[:1] for part in each))
        if self.view_feature == "average":
            one = observe_views(views[backend.index(kept)], self.prototypes64, self.logit_scale, 1.0)
        kept = kept[:n_kept]
        classes = to_numpy(each.k)[kept]
        return ObservedViews(*one, views[backend.index(kept)][None], classes[None], entropies[kept][None])

    def _negative_rank(self, x: Observation) -> float:
        # Ranks fall from sample to sample: of those in a full class the first is replaced.
        return FIRST_RANK - self._n_seen

    def answer(self, x: Observation | ObservedViews, step: Observation) -> Array:
        scores = self.score(Observation(*x[:5]))
        if not isinstance(x, ObservedViews) or self.delta is None or not self.positive_capacity:
            return scores
        return scores + self.positive_alpha * self._boost(x.features, x.views[0], x.classes[0], x.entropies[0])

    def _boost(self, x: Array, views: Array, classes: np.ndarray, entropies: np.ndarray) -> Array:
        """What the votes for one sample (1, d) change by if its views (m, d), in order of their entropies, join the
        positive cache: (1, K)."""
        cache = self._positive
        change = np.zeros(self.n_classes)
        for k in set(classes.tolist()):
            # The samples of the class, then its views, sorted by entropy; of equal ones the first to come is first.
            slots = np.flatnonzero(cache.rows[k])
            slots = slots[np.argsort(cache.arrivals[k, slots], kind="stable")]
            joining = np.flatnonzero(classes == k)
            order = np.argsort(np.concatenate([cache.entropies[k, slots], entropies[joining]]), kind="stable")
            kept = np.zeros(len(order), dtype=bool)
            kept[order[: self.positive_capacity + (self.delta or 0)]] = True
            displaced = cache.entries[self._index(cache.rows[k, slots[~kept[: len(slots)]]])]
            joining = views[self._index(joining[kept[len(slots) :]])]
            change[k] = self._kernels(x, joining) - self._kernels(x, displaced)
        return self.as_own(change)[None, :]

    def _index(self, numbers: np.ndarray) -> Array:
        return Backend.of(self.prototypes).index(numbers)

    def _kernels(self, x: Array, samples: Array) -> float:
        return float(exponential_kernel(samples @ x[0], self.positive_beta).sum())

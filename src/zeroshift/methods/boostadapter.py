"""BoostAdapter: TDA's caches, joined for one prediction by the confident views of the image itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from zeroshift.arrays import Array, Backend, to_numpy
from zeroshift.methods._shared.similarity import exponential_kernel, inner_products
from zeroshift.methods.tda import TDA
from zeroshift.parameters import Choice, Number, Optional, parameter
from zeroshift.views import average_views
from zeroshift.zero_shot import confidence, log_softmax, logits, pseudo_class, quantize

__all__ = ["BoostAdapter"]

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

    def _negative_ranks(self, entropies: Any) -> Any:
        # Ranks fall from sample to sample: of those in a full class the first is replaced.
        return (FIRST_RANK - self._n_seen - np.arange(np.size(entropies))).reshape(np.shape(entropies))

    def _adapt_view(self, views: Array) -> Array:
        backend = Backend.of(views)
        scores = logits(views, self._text, self.logit_scale)
        log_y = log_softmax(scores)
        entropies = quantize(-to_numpy(confidence(log_y)))
        n_kept = int(views.shape[0] * self.view_ratio)
        kept = np.argsort(entropies, kind="stable")[: max(1, n_kept)]
        if self.view_feature == "average":
            one = average_views(views[backend.index(kept)], self._text, self.logit_scale, ratio=1.0)
            x, own_scores, probabilities, entropy = one.features, one.logits, one.probabilities, float(one.entropy)
        else:
            x, own_scores, probabilities, entropy = views[0], scores[0], backend.xp.exp(log_y[0]), float(entropies[0])
        key = self._to_cache_dtype(x[None, :])
        self._learn_one(key[0], int(pseudo_class(own_scores[None, :])[0]), entropy, probabilities)
        answer = self._add_votes(own_scores[None, :], key)
        if n_kept and self.delta is not None and self.positive_capacity:
            classes = to_numpy(pseudo_class(scores[backend.index(kept)]))
            answer = answer + self._boost(key, views[backend.index(kept)], classes, entropies[kept])
        return answer[0]

    def _boost(self, key: Array, views: Array, classes: np.ndarray, entropies: np.ndarray) -> Array:
        """What the votes for one sample (1, d) change by if its views (m, d), in order of their entropies, join the
        positive cache: (1, K)."""
        memory, backend = self._positive.memory, Backend.of(key)
        places = memory.capacity + (self.delta or 0)
        displaced: list[int] = []
        joining: list[int] = []
        for k in dict.fromkeys(classes.tolist()):
            # The slots of the class, then its views, sorted by entropy; of equal ones the first to come is first.
            slots = np.flatnonzero(np.isfinite(memory.entropies[k]))
            slots = slots[np.argsort(memory.arrivals[k, slots], kind="stable")]
            views_of_k = np.flatnonzero(classes == k)
            order = np.argsort(np.concatenate([memory.entropies[k, slots], entropies[views_of_k]]), kind="stable")
            kept = np.zeros(len(order), dtype=bool)
            kept[order[:places]] = True
            displaced += (k * memory.capacity + slots[~kept[: len(slots)]]).tolist()
            joining += views_of_k[kept[len(slots) :]].tolist()
        change = backend.zeros((1, self.n_classes), key.dtype)
        if joining:
            one_hot = np.zeros((len(joining), self.n_classes))
            one_hot[np.arange(len(joining)), classes[joining]] = 1.0
            keys = self._to_cache_dtype(views[backend.index(np.array(joining))])
            weights = exponential_kernel(inner_products(key, keys), self.positive_beta)
            change = change + weights @ backend.asarray(one_hot, key.dtype)
        if displaced:
            change = change + self._positive.votes(key, without=displaced) - self._positive.votes(key)
        return self.positive_alpha * change

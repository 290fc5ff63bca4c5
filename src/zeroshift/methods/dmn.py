"""DMN: dual memory networks, the training-free zero-shot variant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np

from zeroshift.arrays import Array, Home, Rows, to_numpy
from zeroshift.low_entropy import average_views
from zeroshift.methods.parts.kernel_bank import KernelBank
from zeroshift.methods.parts.single import look_at_one
from zeroshift.methods.parts.whole_steps import WholeViews
from zeroshift.parameters import Constraint, Number
from zeroshift.zero_shot import confidence, log_softmax, logits, pseudo_class, softmax

__all__ = ["DMN"]

BLOCK_ROWS = 256

WORK_NUMBERS = 4_000_000
"""Cosines with all entries held at once."""


class DMN(WholeViews):
    """Each class remembers its surest samples beside its prototype, and answers a sample with their mean, weighed by
    how near they are to it. The posterior of these class vectors is averaged with the zero-shot posterior.

    Parameters
    ----------
    prototypes : (K, d) array or tensor
        One unit-length text embedding a class.
    logit_scale : float
        Scale of the logits; 100 for CLIP.
    memory_size : int
        Samples remembered a class.
    beta : float
        Sharpness of the kernel exp(-beta (1 - cosine)).
    text_weight, memory_weight : float
        Weights of the two posteriors; not both 0.
    view_ratio : float
        Share of the views `adapt_views` keeps, those of lowest entropy; at least one.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import DMN
    >>> DMN(np.eye(2), logit_scale=5.0, text_weight=0.0).adapt(np.array([0.8, 0.6])).round(6)
    array([0.874236, 0.125764])

    Notes
    -----
    Zhang et al., *Dual Memory Networks: A Versatile Adaptation Approach for Vision-Language Models*, CVPR 2024: the
    zero-shot variant, which has no static memory of labelled samples. `adapt_scores` gives the weighted mean of the two
    posteriors. The authors' code searches `memory_weight` on the test labels and reports the best; here it is 1 for
    all data. They also encode 32 views of each image: the surest 3 choose class and entropy, while the image itself,
    view 0, is remembered and predicted.

    The authors add 1e-8 to probabilities before taking logarithms for the entropy; here it is exact. Entropies and the
    zero-shot posterior are computed in float64, the memory in the prototypes' precision.
    """

    name = "dmn"
    protocol = "online"
    state_size = "K (M + 1) (d + M + 1), in the prototypes' precision"
    complexity = "O(K M (d + M)) a sample"
    constraints: ClassVar[Mapping[str, Constraint]] = {
        "logit_scale": Number(low=0, above=True),
        "memory_size": Number(low=1, integer=True),
        "beta": Number(low=0),
        "text_weight": Number(low=0),
        "memory_weight": Number(low=0),
        "view_ratio": Number(0, 1, above=True),
    }

    logit_scale: float
    memory_size: int
    beta: float
    text_weight: float
    memory_weight: float

    def __init__(
        self,
        prototypes: Array,
        *,
        logit_scale: float = 100.0,
        memory_size: int = 50,
        beta: float = 5.5,
        text_weight: float = 1.0,
        memory_weight: float = 1.0,
        view_ratio: float = 0.1,
    ) -> None:
        super().__init__(
            prototypes,
            logit_scale=logit_scale,
            memory_size=memory_size,
            beta=beta,
            text_weight=text_weight,
            memory_weight=memory_weight,
            view_ratio=view_ratio,
        )

    def _validate(self) -> None:
        if self.text_weight + self.memory_weight == 0:
            raise ValueError(
                "text_weight and memory_weight are both 0, which leaves nothing to predict with. "
                "Fix: memory_weight=0 for the zero-shot posterior, text_weight=0 for the memory alone."
            )

    def _begin(self) -> None:
        home = Home.of(self.prototypes)
        self._text = home.bring(self.prototypes, home.xp.float64)
        self._bank = KernelBank(self.prototypes, self.memory_size, self.beta)

    @property
    def bank_counts(self) -> Array:
        """Samples remembered a class, (K,)."""
        self._finish()
        home = Home.of(self.prototypes)
        return home.xp.asarray(self._bank.memory.counts, device=home.device)

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        for block, features in rows.blocks(self._predict_rows):
            if features.shape[0] == 1:
                yield block, self._adapt_one(features)
                continue
            log_y = log_softmax(logits(features, self._text, self.logit_scale))
            classes, entropies = to_numpy(pseudo_class(log_y)), -to_numpy(confidence(log_y))
            answer, keep = self._learned(features, Home.of(log_y).xp.exp(log_y), classes, entropies)
            self._commit(keep, features.shape[0])
            yield block, answer

    def _adapt_one(self, features: Array) -> Array:
        """One sample enters before it is predicted, so there is nothing to plan: learn, then predict."""
        one = look_at_one(features, self._text, self.logit_scale)
        keys = self._own(features)
        entry = self._bank.memory.entry(one.k, one.entropy)
        if entry is None:
            self.n_seen += 1
        else:
            self._commit(partial(self._bank.enter, entry, keys[0]))
        return self._fused(softmax(one.logits), self._bank.read(keys))

    def _adapt_view(self, views: Array) -> Array:
        self._finish()
        surest = average_views(views[None, ...], self._text, self.logit_scale, ratio=self.view_ratio)
        classes, entropies = to_numpy(pseudo_class(surest.probabilities)), to_numpy(surest.entropy)
        image = views[:1, :]
        text = softmax(logits(image, self._text, self.logit_scale))
        answer, keep = self._learned(image, text, classes, entropies)
        self._decide(keep)
        return answer[0]

    def _learned(
        self, features: Array, text: Array, classes: np.ndarray, entropies: np.ndarray
    ) -> tuple[Array, partial[None]]:
        """Scores (n, K), and how to keep what was learned on the way."""
        keys = self._own(features)
        plan = self._bank.memory.plan(classes, entropies)
        reading = self._bank.follow(plan, keys)
        return self._fused(text, reading.cosines), partial(self._bank.keep, plan, keys, reading)

    def _own(self, features: Array) -> Array:
        """A copy in the precision of the bank: a step keeps it until it is written."""
        return Home.of(self.prototypes).xp.astype(features, self.prototypes.dtype, copy=True)

    def _predict_scores(self, features: Array) -> Array:
        keys = Home.of(self.prototypes).bring(features, self.prototypes.dtype)
        return self._fused(softmax(logits(features, self._text, self.logit_scale)), self._bank.read(keys))

    def _fused(self, text: Array, cosines: Array) -> Array:
        home = Home.of(text)
        memory = softmax(self.logit_scale * home.bring(cosines, text.dtype))
        total = self.text_weight + self.memory_weight
        return (self.text_weight / total) * text + (self.memory_weight / total) * memory

    def _probabilities(self, scores: Array) -> Array:
        return scores  # a mean of two posteriors

    @property
    def _predict_rows(self) -> int:
        return max(1, min(BLOCK_ROWS, WORK_NUMBERS // (self.n_classes * (1 + self.memory_size))))

    def _state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        return self._bank.arrays(), {}

    def _restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        self._bank.restore(arrays)

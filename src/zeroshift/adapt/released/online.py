"""Online ADAPT as released."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from zeroshift.adapt.released.base import ReleasedADAPT
from zeroshift.adapt.statistics import class_means
from zeroshift.adapt.views import images_at_once
from zeroshift.arrays import Array, Home, Rows, namespace, to_numpy
from zeroshift.low_entropy import average_views
from zeroshift.zero_shot import confidence, log_softmax, pseudo_class

__all__ = ["ReleasedOnlineADAPT"]


class Seen(NamedTuple):
    """Samples as the zero-shot classifier sees them: (n, d), (n, K), (n,) and (n,)."""

    features: Array
    probabilities: Array
    classes: np.ndarray
    confidences: np.ndarray


class ReleasedOnlineADAPT(ReleasedADAPT):
    """Online ADAPT as released: a class's mean moves only when a sample enters its bank, that sample counted twice; a
    sample that enters no bank is scored with the bank similarities of the last one that did.

    Parameters
    ----------
    prototypes, logit_scale, bank_size, alpha
        As for `OnlineADAPT`.
    scale : float
        The authors' fusion constant, which they set by hand for each data set (`ReleasedOnlineADAPT.preset("dtd")`).
        There is no honest default, so it must be given.
    view_ratio : float
        Share of the views `adapt_views` keeps, those of lowest entropy; at least one.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift import ReleasedOnlineADAPT
    >>> adapter = ReleasedOnlineADAPT(np.eye(3, 8), logit_scale=10.0, **ReleasedOnlineADAPT.preset("dtd"))
    >>> adapter.adapt_scores(np.eye(3, 8)[[0, 1, 2]]).argmax(axis=1)
    array([0, 1, 2])

    Notes
    -----
    `adapt_scores` gives the released code's own unnormalised scores; `adapt` gives their softmax, which before any
    learning is the zero-shot posterior. The scores multiply raw logits, so they make sense only where cosines between
    features and prototypes are positive, as CLIP's are. `predict` uses each sample's own bank similarities.

    Of views, the mean of the surest stands for the image, as released: not of unit length, of the class of its own
    logits, with the mean of the views' softmaxes for probabilities and the entropy of that mean.
    """

    name = "adapt_released_online"
    protocol = "online"
    state_size = "K L d + d^2"
    complexity = "O(K d) a sample; an insertion O(K L d^2 + d^3) more"

    def __init__(
        self,
        prototypes: Array,
        *,
        scale: float,
        logit_scale: float = 100.0,
        bank_size: int = 16,
        alpha: float = 0.9,
        view_ratio: float = 0.1,
    ) -> None:
        super().__init__(
            prototypes,
            scale=scale,
            logit_scale=logit_scale,
            bank_size=bank_size,
            alpha=alpha,
            view_ratio=view_ratio,
        )

    def _begin(self) -> None:
        super()._begin()
        self._last_similarity = Home.of(self.prototypes).zeros((1, self.n_classes))

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        for row in range(len(rows)):
            at = slice(row, row + 1)
            yield at, self._step(self._seen(rows[at]))

    def _adapt_view_scores(self, images: Rows) -> Iterator[tuple[slice, Array]]:
        for block, views in images.blocks(images_at_once(images, self._wide_prototypes)):
            means = average_views(views, self._wide_prototypes, self.logit_scale, ratio=self.view_ratio)
            # The class is that of the mean logits, which need not be that of the mean probabilities.
            classes, confidences = to_numpy(pseudo_class(means.logits)), -to_numpy(means.entropy)
            seen = Seen(means.features, means.probabilities, classes, confidences)
            for row in range(views.shape[0]):
                one = Seen(*(array[row : row + 1] for array in seen))
                yield slice(block.start + row, block.start + row + 1), self._step(one)

    def _seen(self, features: Array) -> Seen:
        log_y = log_softmax(self._logits(features))
        classes, confidences = to_numpy(pseudo_class(log_y)), to_numpy(confidence(log_y))
        return Seen(features, namespace(log_y).exp(log_y), classes, confidences)

    def _step(self, seen: Seen) -> Array:
        """Learn from one sample, then score it (1, K)."""
        before = (self._means, self._precision, self._head, self._last_similarity)
        counted = self.n_seen
        self._bank.forget_undo()
        try:
            self._learn(seen)
            scores = self._fused(seen.features, self._last_similarity)
            self.n_seen += 1
        except BaseException:
            if self.n_seen == counted:
                # Interrupted, or out of memory: as if the sample had never come.
                self._bank.undo()
                self._means, self._precision, self._head, self._last_similarity = before
            raise
        return scores

    def _learn(self, seen: Seen) -> None:
        features, probabilities, classes, confidences = seen
        xp = namespace(features)
        plan = self._bank.plan(classes, confidences)
        if len(plan) == 0:
            return
        k = int(classes[0])
        p = probabilities[0, k]
        self._bank.enter(plan, features, probabilities[:, k], confidences)
        weighted_sum, weight = self._bank.sums()
        moved = class_means(
            (weighted_sum[k] + p * features[0])[None, :],
            (weight[k] + p)[None],
            self._wide_prototypes[k : k + 1],
            self.alpha,
            None,
        )
        self._means = xp.concat([self._means[:k], moved, self._means[k + 1 :]], axis=0)
        self._refresh()
        self._last_similarity = self._similarity(features)

    def _state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        arrays, values = super()._state()
        return {**arrays, "last_similarity": self._last_similarity}, values

    def _restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        super()._restore(arrays, values)
        self._last_similarity = arrays["last_similarity"]

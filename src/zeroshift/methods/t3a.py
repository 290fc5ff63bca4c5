"""T3A: test-time classifier adjustment, on the classifier the prototypes make."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np

from zeroshift.arrays import Array, Home, Rows, namespace, to_numpy
from zeroshift.methods.parts.dropped_supports import DroppedSupports
from zeroshift.methods.parts.memory import Entry
from zeroshift.methods.parts.rows import unit_rows
from zeroshift.methods.parts.single import inner_products, look_at_one
from zeroshift.methods.parts.supports import AllSupports, Changes, Offered, SurestSupports
from zeroshift.methods.parts.whole_steps import WholeSteps
from zeroshift.parameters import Constraint, Flag, Number, Optional
from zeroshift.zero_shot import look, softmax

__all__ = ["T3A"]

BLOCK_ROWS = 256


class T3A(WholeSteps):
    """Replaces each prototype by the mean direction of its class's supports: the prototype itself and the samples
    given to the class by the zero-shot classifier, of which those of lowest entropy are kept.

    Parameters
    ----------
    prototypes : (K, d) array or tensor
        One unit-length text embedding a class.
    logit_scale : float
        Scale of the logits; 100 for CLIP. It decides the entropies, those of the prototypes included.
    filter_size : int or None
        Supports kept a class; None keeps all.
    batch_size : int
        Samples that join the supports together, before any of them is predicted. A call's last batch may be smaller.
    released : bool
        Where `filter_size` is None, drop with every batch each class's support of highest entropy, as the authors' code
        does for its "keep all" (-1). Nothing else changes.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import T3A
    >>> T3A(np.eye(2)).adapt_scores(np.array([[0.8, 0.6], [0.6, 0.8]])).round(6)
    array([[0.948683, 0.6     ],
           [0.822192, 0.948683]])

    Notes
    -----
    Iwasawa and Matsuo, *Test-Time Classifier Adjustment Module for Model-Agnostic Domain Generalization*, NeurIPS 2021.
    The authors adjust the last linear layer of a trained network; that the prototypes times `logit_scale` take its
    place, without a bias, is ours. So are the probabilities, the softmax of `logit_scale` times the scores: the
    authors' code predicts by the scores alone, cosines with the new class vectors. The authors try
    `filter_size` 1, 5, 20, 50, 100 and all, and use batches of 32.

    A prototype is a support like any other, with the entropy of the classifier's answer to it: next to none at a scale
    of 100, so that it stays, but at a scale of 1 samples may displace it. Computed in float64, the supports kept in the
    prototypes' precision.
    """

    name = "t3a"
    protocol = "online"
    state_size = "K M d; K d where all are kept (released: N d, it grows)"
    complexity = "O(K d + M d) a sample"
    constraints: ClassVar[Mapping[str, Constraint]] = {
        "logit_scale": Number(low=0, above=True),
        "filter_size": Optional(Number(low=1, integer=True)),
        "batch_size": Number(low=1, integer=True),
        "released": Flag(),
    }

    logit_scale: float
    filter_size: int | None
    batch_size: int
    released: bool

    def __init__(
        self,
        prototypes: Array,
        *,
        logit_scale: float = 100.0,
        filter_size: int | None = 20,
        batch_size: int = 1,
        released: bool = False,
    ) -> None:
        super().__init__(
            prototypes, logit_scale=logit_scale, filter_size=filter_size, batch_size=batch_size, released=released
        )

    def _begin(self) -> None:
        home = Home.of(self.prototypes)
        self._text = home.bring(self.prototypes, home.xp.float64)
        self._supports: SurestSupports | AllSupports | DroppedSupports
        if self.filter_size is None:
            self._supports = AllSupports(self.prototypes)
        else:
            self._supports = SurestSupports(self.prototypes, self.filter_size)
        # The classifier's weights, scaled prototypes, are its own first samples.
        first = self._offered(self._text, self.logit_scale**2)
        changes = self._supports.changes(first, self.n_classes)
        self._vectors = home.zeros((self.n_classes, self.dimension))
        self._vectors[home.index(changes.classes)] = self._unit(changes.sums)
        changes.keep()
        if self.filter_size is None and self.released:
            self._supports = DroppedSupports(first, self.n_classes)

    @property
    def means(self) -> Array:
        """The class vectors (K, d), of unit length; zero for a class without any support."""
        self._finish()
        return Home.of(self.prototypes).copy(self._vectors)

    def _offered(self, features: Array, scale: float) -> Offered:
        seen = look(features, self._text, scale)
        return Offered(unit_rows(features), to_numpy(seen.classes), -to_numpy(seen.confidences))

    def _unit(self, sums: Array) -> Array:
        home = Home.of(self.prototypes)
        return unit_rows(home.bring(sums, home.xp.float64))

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        home = Home.of(self.prototypes)
        # Whole batches in every block, so that blocks do not show in the answer.
        for block, features in rows.blocks(max(1, BLOCK_ROWS // self.batch_size) * self.batch_size):
            if features.shape[0] == 1 and isinstance(self._supports, SurestSupports):
                yield block, self._adapt_one(features, self._supports)
                continue
            changes = self._supports.changes(self._offered(features, self.logit_scale), self.batch_size)
            scores = self._predict_scores(features)
            if not len(changes.classes):
                self.n_seen += features.shape[0]
            else:
                vectors = self._unit(changes.sums)
                scores = _over_time(scores, features @ vectors.T, changes)
                final = {k: change for change, k in enumerate(changes.classes.tolist())}
                places, chosen = (home.index(np.array(list(part))) for part in (final, final.values()))
                self._commit(partial(self._keep, changes.keep, places, vectors[chosen]), features.shape[0])
            yield block, scores

    def _keep(self, supports: partial[None], classes: Array, vectors: Array) -> None:
        supports()
        self._vectors[classes] = vectors

    def _adapt_one(self, features: Array, supports: SurestSupports) -> Array:
        """One sample joins before it is predicted, so there is no story to tell: learn, then predict."""
        one = look_at_one(features, self._text, self.logit_scale)
        entry = supports.entry(one.k, one.entropy)
        if entry is None:
            self.n_seen += 1
        else:
            self._commit(partial(self._enter, supports, entry, unit_rows(features)[0]))
        return self._predict_scores(features)

    def _enter(self, supports: SurestSupports, entry: Entry, feature: Array) -> None:
        self._vectors[entry.k] = self._unit(supports.enter(entry, feature))[0]

    def _predict_scores(self, features: Array) -> Array:
        return inner_products(features, self._vectors)

    def _probabilities(self, scores: Array) -> Array:
        return softmax(self.logit_scale * scores)

    def _state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        return {"vectors": self._vectors, **self._supports.arrays()}, {}

    def _restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        if tuple(arrays["vectors"].shape) != tuple(self._vectors.shape):
            raise ValueError(f"vectors of shape {tuple(arrays['vectors'].shape)}, not {tuple(self._vectors.shape)}")
        self._supports.restore(arrays)
        self._vectors = arrays["vectors"]


def _over_time(before: Array, changed: Array, changes: Changes) -> Array:
    """Scores (n, K) where a class's column is, from the start of each change on, that of the change (n, c)."""
    n, classes = before.shape
    source = np.tile(np.arange(classes), (n, 1))
    for change, (start, k) in enumerate(zip(changes.starts.tolist(), changes.classes.tolist(), strict=True)):
        source[start:, k] = classes + change
    xp = namespace(before)
    return xp.take_along_axis(xp.concat([before, changed], axis=1), Home.of(before).index(source), axis=1)

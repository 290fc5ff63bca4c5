"""T3A: test-time classifier adjustment, on the classifier the prototypes make."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from zeroshift.arrays import Array, Home, Rows, namespace, to_numpy
from zeroshift.methods._shared.low_entropy_memory import Entry, LowEntropyMemory
from zeroshift.methods._shared.similarity import inner_products, look_at_one, unit_rows
from zeroshift.methods._shared.whole_steps import WholeSteps
from zeroshift.parameters import Flag, Number, Optional, parameter
from zeroshift.zero_shot import look, softmax

__all__ = ["T3A", "AllSupports", "Changes", "DroppedSupports", "Offered", "SurestSupports"]


# T3A's support sets: which samples stand for a class after each batch, and the sums of them.
#
# Which stay depends on zero-shot entropies alone, so all changes in a run of batches are known before any is
# predicted.


class Offered(NamedTuple):
    """Unit features (n, d) in order, their pseudo-classes and entropies (n,)."""

    features: Array
    classes: np.ndarray
    entropies: np.ndarray


class Changes(NamedTuple):
    """New sums of classes, in order; a class's last one stays."""

    starts: np.ndarray
    """First row of the batch each came with, (c,)."""
    classes: np.ndarray
    sums: Array
    """(c, d)."""
    keep: partial[None]
    """Store what stays; until then nothing is changed, and doing it again changes nothing more."""


def _entered(rows: np.ndarray, classes: np.ndarray, n: int, batch_size: int) -> tuple[np.ndarray, ...]:
    """(start, last row, class) wherever rows (e,) of a batch entered a class, in order."""
    n_classes = int(classes.max(initial=0)) + 1
    batches, entered = np.divmod(np.unique(rows // batch_size * n_classes + classes), n_classes)
    starts = batches * batch_size
    return starts, np.minimum(starts + batch_size, n) - 1, entered


class SurestSupports:
    """At most `size` supports a class, those of lowest entropy."""

    def __init__(self, prototypes: Array, size: int) -> None:
        classes, width = prototypes.shape
        self._home = Home.of(prototypes)
        self._memory = LowEntropyMemory(self._home, classes, size, width, dtype=prototypes.dtype)

    def changes(self, offered: Offered, batch_size: int) -> Changes:
        memory = self._memory
        features = self._home.bring(offered.features, memory.features.dtype)
        plan = memory.plan(offered.classes, offered.entropies)
        if not len(plan.rows):
            return Changes(plan.rows, plan.rows, features[:0, :], partial(memory.note_all, plan))
        joined = plan.slots // memory.capacity
        starts, last, classes = _entered(plan.rows, joined, plan.n_rows, batch_size)
        when = last[:, None]
        old = plan.old_leaves.reshape(-1, memory.capacity)[classes] > when
        new = (plan.rows <= when) & (when < plan.leaves) & (joined == classes[:, None])
        # From the entries each time, so that nothing drifts.
        held = self._as_numbers(old)[:, None, :] @ memory.features[self._home.index(classes)]
        sums = held[:, 0, :] + self._as_numbers(new) @ features[self._home.index(plan.rows)]
        return Changes(starts, classes, sums, partial(memory.keep, plan, features))

    def entry(self, k: int, entropy: float) -> Entry | None:
        """Where one sample enters, None where it is not sure enough."""
        return self._memory.entry(k, entropy)

    def enter(self, entry: Entry, feature: Array) -> Array:
        """Store one unit feature (d,): the new sum (1, d) of its class. Doing it again changes nothing."""
        self._memory.enter(entry, feature)
        return self._home.xp.sum(self._memory.features[entry.k], axis=0, keepdims=True)

    def _as_numbers(self, mask: np.ndarray) -> Array:
        return self._home.bring(mask.astype(np.float64), self._memory.features.dtype)

    def arrays(self) -> dict[str, Array]:
        return self._memory.arrays()

    def restore(self, arrays: Mapping[str, Array]) -> None:
        self._memory.restore(arrays)


class AllSupports:
    """Every support ever offered: their sums are all that is needed."""

    def __init__(self, prototypes: Array) -> None:
        self._home = Home.of(prototypes)
        self._sums = self._home.zeros(tuple(prototypes.shape))

    def changes(self, offered: Offered, batch_size: int) -> Changes:
        n = len(offered.classes)
        starts, last, classes = _entered(np.arange(n), offered.classes, n, batch_size)
        there = (np.arange(n) <= last[:, None]) & (offered.classes == classes[:, None])
        added = self._home.bring(there.astype(np.float64)) @ offered.features
        sums = self._sums[self._home.index(classes)] + added
        final = {k: change for change, k in enumerate(classes.tolist())}
        places, chosen = (self._home.index(np.array(list(part))) for part in (final, final.values()))
        return Changes(starts, classes, sums, partial(self._keep, places, sums[chosen]))

    def _keep(self, classes: Array, sums: Array) -> None:
        self._sums[classes] = sums

    def arrays(self) -> dict[str, Array]:
        return {"sums": self._sums}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        if tuple(arrays["sums"].shape) != tuple(self._sums.shape):
            raise ValueError(f"sums of shape {tuple(arrays['sums'].shape)}, not {tuple(self._sums.shape)}, were saved")
        self._sums = arrays["sums"]


# What T3A's released code does when it is told to keep all supports.


class DroppedSupports:
    """With every batch, each class loses its support of highest entropy, be it the only one."""

    def __init__(self, first: Offered, n_classes: int) -> None:
        self._home, self._n_classes = Home.of(first.features), n_classes
        self._held = first

    def changes(self, offered: Offered, batch_size: int) -> Changes:
        home, held = self._home, self._held
        starts: list[int] = []
        changed: list[int] = []
        sums: list[Array] = []
        for start in range(0, len(offered.classes), batch_size):
            batch = slice(start, start + batch_size)
            features = home.xp.concat([held.features, offered.features[batch, :]], axis=0)
            classes = np.concatenate([held.classes, offered.classes[batch]])
            entropies = np.concatenate([held.entropies, offered.entropies[batch]])
            order = np.lexsort((entropies, classes))
            dropped = order[np.append(classes[order][1:] != classes[order][:-1], True)]
            kept = np.setdiff1d(np.arange(len(classes)), dropped)
            for k in np.unique(classes).tolist():
                members = kept[classes[kept] == k]
                if not np.array_equal(members, np.flatnonzero(held.classes == k)):
                    starts.append(start)
                    changed.append(k)
                    sums.append(home.xp.sum(features[home.index(members), :], axis=0))
            held = Offered(features[home.index(kept), :], classes[kept], entropies[kept])
        together = home.xp.stack(sums) if sums else held.features[:0, :]
        return Changes(
            np.array(starts, dtype=np.int64), np.array(changed, dtype=np.int64), together, partial(self._keep, held)
        )

    def _keep(self, held: Offered) -> None:
        self._held = held

    def arrays(self) -> dict[str, Array]:
        """What to save."""
        return {
            "features": self._held.features,
            "classes": self._home.xp.asarray(self._held.classes, device=self._home.device),
            "entropies": self._home.bring(self._held.entropies, self._home.xp.float64),
        }

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Take up what `arrays` gave."""
        classes, entropies = to_numpy(arrays["classes"]), to_numpy(arrays["entropies"])
        n, width = arrays["features"].shape
        if classes.shape != (n,) or entropies.shape != (n,) or width != self._held.features.shape[1]:
            raise ValueError(f"{n} supports of width {width}, {classes.shape} classes and {entropies.shape} entropies")
        if n and not 0 <= classes.min() <= classes.max() < self._n_classes:
            raise ValueError(f"classes of supports must be from 0 to {self._n_classes - 1}")
        self._held = Offered(arrays["features"], classes.copy(), entropies.copy())


BLOCK_ROWS = 256


class T3A(WholeSteps):
    """Replaces each prototype by the mean direction of its class's supports: the prototype itself and the samples
    given to the class by the zero-shot classifier, of which those of lowest entropy are kept.

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

    logit_scale: float = parameter(
        Number(low=0, above=True),
        "Scale of the logits; 100 for CLIP. It decides the entropies, those of the prototypes included.",
        default=100.0,
    )
    filter_size: int | None = parameter(
        Optional(Number(low=1, integer=True)), "Supports kept a class; None keeps all.", default=20
    )
    batch_size: int = parameter(
        Number(low=1, integer=True),
        "Samples that join the supports together, before any of them is predicted. A call's last batch may be smaller.",
        default=1,
    )
    released: bool = parameter(
        Flag(),
        "Where `filter_size` is None, drop with every batch each class's support of highest entropy, as the authors' code does for its \"keep all\" (-1). Nothing else changes.",
        default=False,
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

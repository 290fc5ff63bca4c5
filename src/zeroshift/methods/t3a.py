"""T3A: test-time classifier adjustment, with the prototypes as the classifier."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from zeroshift.arrays import Array, Backend, Rows, namespace, to_numpy
from zeroshift.frozen import Expression
from zeroshift.method import Method
from zeroshift.methods._shared.low_entropy_memory import LowEntropyMemory, MemoryInsertion, check_memory
from zeroshift.methods._shared.similarity import inner_products, single_sample_stats, unit_rows
from zeroshift.parameters import Flag, Number, Optional, parameter, state
from zeroshift.state_checks import check_lengths, check_seen
from zeroshift.zero_shot import softmax, zero_shot_stats

__all__ = ["T3A", "AllSupports", "ConfidentSupports", "DroppingSupports", "PseudoLabelled", "SupportChanges"]

BLOCK_ROWS = 256


class PseudoLabelled(NamedTuple):
    """Unit features (n, d) in order, with their pseudo-classes and entropies (n,)."""

    features: Array
    classes: np.ndarray
    entropies: np.ndarray


class SupportChanges(NamedTuple):
    """New sums of classes in order, computed before anything is stored. The last sum of a class stays."""

    starts: np.ndarray
    """First row of the batch that caused each change, (c,)."""
    classes: np.ndarray
    """The class of each change, (c,)."""
    sums: Array
    """(c, d)."""
    apply: Callable[[], None]
    """Stores the samples."""

    def last(self) -> tuple[np.ndarray, np.ndarray]:
        """The classes that change, and the number of the last change of each."""
        last = {k: change for change, k in enumerate(self.classes.tolist())}
        return np.array(list(last)), np.array(list(last.values()))


class T3A(Method):
    """Replaces each prototype by the mean direction of its class's supports: the prototype itself and the samples that
    the zero-shot classifier assigns to the class, of which those with the lowest entropy are kept.

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
    The authors adjust the last linear layer of a trained network; that the prototypes times `logit_scale` replace it,
    without a bias, is ours. So are the probabilities, the softmax of `logit_scale` times the scores: the authors' code
    predicts by the scores alone, cosines with the new class vectors. The authors try `filter_size` 1, 5, 20, 50, 100
    and all, and use batches of 32.

    A prototype is a support like any other, with the entropy of its own zero-shot prediction: nearly 0 at a scale of
    100, so that it stays, but at a scale of 1 samples may replace it. Computed in float64; the supports are kept in the
    precision of the prototypes.
    """

    name = "t3a"
    headline = "Prototypes become means of sure samples"
    protocol = "online"
    state_size = "K M d; K d if all are kept (released: N d, which grows)"
    complexity = "O(K d + M d) per sample"

    logit_scale: float = parameter(
        Number(low=0, above=True),
        "Scale of the logits; 100 for CLIP. It determines the entropies, also those of the prototypes.",
        default=100.0,
    )
    filter_size: int | None = parameter(
        Optional(Number(low=1, integer=True)), "Supports kept per class; None keeps all.", default=20, sizes_state=True
    )
    batch_size: int = parameter(
        Number(low=1, integer=True),
        "Samples that become supports together, before any of them is predicted. The last batch of a call may be "
        "smaller.",
        default=1,
    )
    released: bool = parameter(
        Flag(),
        "If `filter_size` is None, drop the support with the highest entropy of each class with every batch, as the "
        'authors\' code does for its "keep all" (-1). Without effect otherwise.',
        default=False,
    )

    _vectors: Array = state(
        lambda self: self._prototype_vectors(),
        check=lambda self, vectors: check_lengths("vectors", vectors, unit=True),
    )
    _supports: ConfidentSupports | AllSupports | DroppingSupports = state(
        lambda self: self._prototype_supports(),
        saved_as="",
        check=lambda self, supports: supports.check(self.n_classes + self.n_seen),
    )

    def _prepare(self) -> None:
        backend = Backend.of(self.prototypes)
        self._text = backend.asarray(self.prototypes, backend.xp.float64)

    def _empty_supports(self) -> ConfidentSupports | AllSupports:
        if self.filter_size is None:
            return AllSupports(self.prototypes)
        return ConfidentSupports(self.prototypes, self.filter_size)

    def _pseudo_labelled_prototypes(self) -> PseudoLabelled:
        # The classifier's weights are scaled prototypes, and each of them is classified by all.
        return self._pseudo_label(self._text, self.logit_scale**2)

    def _prototype_supports(self) -> ConfidentSupports | AllSupports | DroppingSupports:
        first = self._pseudo_labelled_prototypes()
        if self.filter_size is None and self.released:
            return DroppingSupports(first, self.n_classes)
        supports = self._empty_supports()
        supports.plan(first, self.n_classes).apply()
        return supports

    def _prototype_vectors(self) -> Array:
        backend = Backend.of(self.prototypes)
        changes = self._empty_supports().plan(self._pseudo_labelled_prototypes(), self.n_classes)
        vectors = backend.zeros((self.n_classes, self.dimension))
        vectors[backend.index(changes.classes)] = self._directions(changes.sums)
        return vectors

    @property
    def means(self) -> Array:
        """The class vectors (K, d), of unit length; zero for a class without support."""
        return Backend.of(self.prototypes).copy(self._vectors)

    def _pseudo_label(self, features: Array, scale: float) -> PseudoLabelled:
        stats = zero_shot_stats(features, self._text, scale)
        return PseudoLabelled(unit_rows(features), to_numpy(stats.classes), -to_numpy(stats.confidences))

    def _directions(self, sums: Array) -> Array:
        backend = Backend.of(self.prototypes)
        return unit_rows(backend.asarray(sums, backend.xp.float64))

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        # Blocks contain whole batches, so that scores do not depend on the blocks.
        for block, features in rows.blocks(max(1, BLOCK_ROWS // self.batch_size) * self.batch_size):
            if features.shape[0] == 1 and isinstance(self._supports, ConfidentSupports):
                yield block, self._adapt_one(features, self._supports)
            else:
                yield block, self._adapt_block(features)

    def _adapt_block(self, features: Array) -> Array:
        backend = Backend.of(self.prototypes)
        changes = self._supports.plan(self._pseudo_label(features, self.logit_scale), self.batch_size)
        vectors = self._directions(changes.sums)
        scores = _scores_over_time(self._predict_scores(features), features, vectors, changes)
        with self._learning(features.shape[0]):
            changes.apply()
            if len(changes.classes):
                classes, last = (backend.index(numbers) for numbers in changes.last())
                self._vectors[classes] = vectors[last]
        return scores

    def _adapt_one(self, features: Array, supports: ConfidentSupports) -> Array:
        """A single sample becomes a support before it is predicted: learn, then predict."""
        one = single_sample_stats(features, self._text, self.logit_scale)
        insertion = supports.plan_one(one.k, one.entropy)
        feature = None if insertion is None else unit_rows(features)[0]
        with self._learning():
            if insertion is not None:
                self._vectors[one.k] = self._directions(supports.insert(insertion, feature))[0]
        return self._predict_scores(features)

    def _predict_scores(self, features: Array) -> Array:
        return inner_products(features, self._vectors)

    def _frozen(self, x: Expression) -> Expression:
        return x.linear(self.logit_scale * self._vectors).softmax()

    def _probabilities(self, scores: Array) -> Array:
        return softmax(self.logit_scale * scores)


def _scores_over_time(scores: Array, features: Array, vectors: Array, changes: SupportChanges) -> Array:
    """Scores (n, K), in which a class's column comes from its newest vector (c, d) at each sample's turn."""
    if not len(changes.classes):
        return scores
    xp = namespace(scores)
    n, classes = scores.shape
    column = np.tile(np.arange(classes), (n, 1))
    for change, (start, k) in enumerate(zip(changes.starts.tolist(), changes.classes.tolist(), strict=True)):
        column[start:, k] = classes + change
    candidates = xp.concat([scores, features @ vectors.T], axis=1)
    return xp.take_along_axis(candidates, Backend.of(scores).index(column), axis=1)


class ConfidentSupports:
    """At most `size` supports per class, those with the lowest entropy.

    Which stay depends on zero-shot entropies alone, so all changes by several batches are known before any prediction.
    """

    def __init__(self, prototypes: Array, size: int) -> None:
        classes, width = prototypes.shape
        self._backend = Backend.of(prototypes)
        self._memory = LowEntropyMemory(self._backend, classes, size, width, dtype=prototypes.dtype)

    def plan(self, samples: PseudoLabelled, batch_size: int) -> SupportChanges:
        memory = self._memory
        features = self._backend.asarray(samples.features, memory.features.dtype)
        plan = memory.plan(samples.classes, samples.entropies)
        if not len(plan.rows):
            return SupportChanges(plan.rows, plan.rows, features[:0, :], lambda: memory.record_plan(plan))
        entered = plan.slots // memory.capacity
        starts, last, classes = _changed_classes(plan.rows, entered, plan.n_rows, batch_size)
        turn = last[:, None]
        old = plan.old_replaced_at.reshape(-1, memory.capacity)[classes] > turn
        new = (plan.rows <= turn) & (turn < plan.replaced_at) & (entered == classes[:, None])
        # Summed from the supports each time, so that rounding errors do not accumulate.
        old_sums = self._as_numbers(old)[:, None, :] @ memory.features[self._backend.index(classes)]
        sums = old_sums[:, 0, :] + self._as_numbers(new) @ features[self._backend.index(plan.rows)]
        return SupportChanges(starts, classes, sums, lambda: memory.apply(plan, features))

    def plan_one(self, k: int, entropy: float) -> MemoryInsertion | None:
        """Where one sample will enter, or None if it will not."""
        return self._memory.plan_one(k, entropy)

    def insert(self, insertion: MemoryInsertion, feature: Array) -> Array:
        """Store one unit feature (d,) and return the new sum (1, d) of its class."""
        self._memory.insert(insertion, feature)
        return self._backend.xp.sum(self._memory.features[insertion.k], axis=0, keepdims=True)

    def _as_numbers(self, mask: np.ndarray) -> Array:
        return self._backend.asarray(mask.astype(np.float64), self._memory.features.dtype)

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        return self._memory.state()

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        self._memory.restore(arrays, values)

    def check(self, n_offered: int) -> None:
        """ValueError if there are more supports than were offered."""
        check_memory(self._memory, n_offered)


class AllSupports:
    """All samples so far, as the sums of their classes."""

    def __init__(self, prototypes: Array) -> None:
        self._backend = Backend.of(prototypes)
        self._sums = self._backend.zeros(tuple(prototypes.shape))

    def plan(self, samples: PseudoLabelled, batch_size: int) -> SupportChanges:
        n = len(samples.classes)
        starts, last, classes = _changed_classes(np.arange(n), samples.classes, n, batch_size)
        included = (np.arange(n) <= last[:, None]) & (samples.classes == classes[:, None])
        new_sums = self._backend.asarray(included.astype(np.float64)) @ samples.features
        sums = self._sums[self._backend.index(classes)] + new_sums

        def apply() -> None:
            changed, final = (self._backend.index(numbers) for numbers in changes.last())
            self._sums[changed] = sums[final]

        changes = SupportChanges(starts, classes, sums, apply)
        return changes

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        return {"sums": self._sums}, {}

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        saved, own = tuple(arrays["sums"].shape), tuple(self._sums.shape)
        if saved != own:
            raise ValueError(f"sums has shape {saved}, not {own}")
        self._sums = arrays["sums"]

    def check(self, n_offered: int) -> None:
        """ValueError if the sums are longer than those of so many features."""
        check_lengths("sums", self._sums / n_offered)


class DroppingSupports:
    """The released code's "keep all": with every batch, each class loses its support with the highest entropy, even if
    it is the only one."""

    def __init__(self, initial: PseudoLabelled, n_classes: int) -> None:
        self._backend, self._n_classes = Backend.of(initial.features), n_classes
        self._kept = initial

    def plan(self, samples: PseudoLabelled, batch_size: int) -> SupportChanges:
        backend, kept = self._backend, self._kept
        starts: list[int] = []
        changed: list[int] = []
        sums: list[Array] = []
        for start in range(0, len(samples.classes), batch_size):
            batch = slice(start, start + batch_size)
            features = backend.xp.concat([kept.features, samples.features[batch, :]], axis=0)
            classes = np.concatenate([kept.classes, samples.classes[batch]])
            entropies = np.concatenate([kept.entropies, samples.entropies[batch]])
            order = np.lexsort((entropies, classes))
            dropped = order[np.append(classes[order][1:] != classes[order][:-1], True)]
            remaining = np.setdiff1d(np.arange(len(classes)), dropped)
            for k in np.unique(classes).tolist():
                members = remaining[classes[remaining] == k]
                if not np.array_equal(members, np.flatnonzero(kept.classes == k)):
                    starts.append(start)
                    changed.append(k)
                    sums.append(backend.xp.sum(features[backend.index(members), :], axis=0))
            kept = PseudoLabelled(features[backend.index(remaining), :], classes[remaining], entropies[remaining])
        after = kept

        def apply() -> None:
            self._kept = after

        stacked = backend.xp.stack(sums) if sums else kept.features[:0, :]
        return SupportChanges(np.array(starts, dtype=np.int64), np.array(changed, dtype=np.int64), stacked, apply)

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        return {
            "features": self._kept.features,
            "classes": self._backend.xp.asarray(self._kept.classes, device=self._backend.device),
            "entropies": self._backend.asarray(self._kept.entropies, self._backend.xp.float64),
        }, {}

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        classes, entropies = to_numpy(arrays["classes"]), to_numpy(arrays["entropies"])
        n, width = arrays["features"].shape
        if classes.shape != (n,) or entropies.shape != (n,) or width != self._kept.features.shape[1]:
            raise ValueError(f"{n} supports of width {width}, {classes.shape} classes and {entropies.shape} entropies")
        if n and not 0 <= classes.min() <= classes.max() < self._n_classes:
            raise ValueError(f"the classes of the supports must be from 0 to {self._n_classes - 1}")
        self._kept = PseudoLabelled(arrays["features"], classes.copy(), entropies.copy())

    def check(self, n_offered: int) -> None:
        """ValueError if there are more supports than were offered."""
        check_lengths("features", self._kept.features)
        check_seen("the number of supports", len(self._kept.classes), n_offered)


def _changed_classes(rows: np.ndarray, classes: np.ndarray, n: int, batch_size: int) -> tuple[np.ndarray, ...]:
    """First row, last row and class of every (batch, class) that rows (e,) with these classes enter, in order."""
    n_classes = int(classes.max(initial=0)) + 1
    batch_size = min(batch_size, n)
    batches, entered = np.divmod(np.unique(rows // batch_size * n_classes + classes), n_classes)
    starts = batches * batch_size
    return starts, np.minimum(starts + batch_size, n) - 1, entered

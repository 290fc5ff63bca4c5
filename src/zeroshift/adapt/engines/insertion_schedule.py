"""All insertions of a block of rows: the sums, means and scatter changes after each of them.

Which samples enter depends only on the zero-shot posterior, so all of this is known before the first prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from zeroshift.adapt.bank import NEW, InsertionPlan, KnowledgeBank
from zeroshift.adapt.engines.class_statistics import ClassSums
from zeroshift.adapt.statistics import AdaptSettings, class_means
from zeroshift.arrays import Array, Backend, namespace, to_numpy
from zeroshift.threads import Threads

__all__ = ["InsertionSchedule", "build_schedule"]


class InsertionSchedule(NamedTuple):
    """E insertions. NumPy arrays for decisions; arrays of the method's library and device for computations."""

    classes: np.ndarray
    entered: Array
    """(E, d): samples that enter."""
    entered_weights: Array
    """(E,): their weights."""
    replaced: Array
    """(E, d): samples they replace; zero if none."""
    replaced_weights: Array
    """(E,): the weights of the replaced samples."""
    weighted_sums: Array
    """(E, d): sum p x of the class after each insertion."""
    weights: Array
    """(E,): sum p of the class after each insertion."""
    means: Array
    """(E, d): mean of the class after each insertion."""
    means_before: Array
    """(E, d): mean of the class before each insertion."""
    centres: Array
    """(E, d): unweighted mean of the entries of the class before each insertion."""
    held: np.ndarray
    """(E,): how many entries that are."""
    present: np.ndarray
    """(E, 4): which of the four squares of `class_statistics.scatter_rows` the insertion changes the scatter by."""
    row_ends: np.ndarray
    """(E,): how many of the changes have been made after each insertion."""
    sizes: np.ndarray
    """(E,): bank entries after each insertion."""
    traces: np.ndarray
    """(E,): trace of the scatter after each insertion."""
    accumulated: float
    """Sum of the squared lengths of all changes."""
    cone_across: Array
    """(E,): cone of the class after each insertion, slightly too wide because it is computed without the bank. Zero on
    a GPU, which uses no cones."""
    cone_along: Array
    """(E,): the other half of the cone."""

    def changes(self, start: int, stop: int) -> tuple[Array, np.ndarray]:
        """Vectors u (r, d) and signs s of the changes s u u^T of the scatter by insertions `start` to `stop`.

        The additions of an insertion come before its removals, as in `class_statistics.scatter_rows`.
        """
        own = slice(start, stop)
        parts = (self.entered, self.replaced, self.centres, self.means_before, self.means)
        return _scatter_rows([part[own] for part in parts], self.held[own], self.present[own])


def build_schedule(
    plan: InsertionPlan,
    features: Array,
    log_y: Array,
    bank: KnowledgeBank,
    sums: ClassSums,
    trace: float,
    prototypes: Array,
    settings: AdaptSettings,
    threads: Threads,
) -> InsertionSchedule:
    """`features` and `log_y` are the offered rows; `trace` is the scatter's before the first insertion."""
    backend = Backend.of(prototypes)
    xp = backend.xp
    k = backend.index(plan.classes)
    entered, weights = features[backend.index(plan.rows)], bank.inserted_weights(plan, log_y)
    replaced, replaced_weights = _replaced_samples(plan, features, log_y, bank)
    history = _ClassHistory.of(plan, sums.counts)
    weight_after = sums.weights[k] + history.within_class((weights - replaced_weights)[:, None])[:, 0]
    count = backend.asarray(history.counts.astype(np.float64))
    shape, d = entered.shape, entered.shape[1]
    sum_after, centre, mean_after, mean_before = (
        xp.empty(shape, dtype=xp.float64, device=backend.device) for _ in range(4)
    )

    def follow(start: int) -> None:
        """Sums and means after each insertion, for some of the dimensions."""
        of = slice(start, start + part)
        gained, lost, bases = entered[:, of], replaced[:, of], prototypes[:, of][k]
        sum_after[:, of] = sums.weighted_sums[:, of][k] + history.within_class(
            weights[:, None] * gained - replaced_weights[:, None] * lost
        )
        exchanged = gained - lost
        total = sums.totals[:, of][k] + history.within_class(exchanged) - exchanged
        centre[:, of] = total / xp.clip(count, min=1.0)[:, None]
        if settings.update_mean:
            after = class_means(sum_after[:, of], weight_after, bases, settings.alpha, settings.beta)
            mean_after[:, of], mean_before[:, of] = after, history.previous(after, sums.means[:, of][k])
        else:
            mean_after[:, of] = mean_before[:, of] = bases

    part = d if backend.on_gpu else DIMENSIONS
    threads.map(follow, range(0, d, part))
    held, moved = history.counts, settings.update_mean & (history.counts > 0)
    present = np.stack([moved, np.ones_like(moved), moved, plan.replaced != NEW], axis=1)

    def measure(start: int) -> tuple[Array, np.ndarray, Array | None]:
        """The squared lengths of some of the changes and their signs, and what their cones need: a GPU uses none."""
        own = slice(start, start + events)
        vectors = [values[own] for values in (entered, replaced, centre, mean_before, mean_after)]
        rows, signs = _scatter_rows(vectors, held[own], present[own])
        cones = None if backend.on_gpu else _cone_distances(entered, sum_after, weight_after, history, sums, k, own)
        return xp.sum(rows * rows, axis=1), signs, cones

    events = len(plan) if backend.on_gpu else EVENTS
    squares, signs, cone_inputs = zip(*threads.map(measure, range(0, len(plan), events)), strict=True)
    n_rows = int(present.sum())
    for_cones = [] if backend.on_gpu else [xp.reshape(xp.concat(list(cone_inputs), axis=1), (-1,))]
    host = to_numpy(xp.concat([*squares, *for_cones]))
    lengths, cone_host = host[:n_rows], host[n_rows:].reshape(-1, len(plan))
    event = np.repeat(np.arange(len(plan)), present.sum(axis=1))
    steps = np.bincount(event, weights=np.concatenate(signs) * lengths, minlength=len(plan))
    across, along = np.zeros((2, len(plan))) if backend.on_gpu else _cones(plan, history, cone_host, sums)
    return InsertionSchedule(
        classes=plan.classes,
        entered=entered,
        entered_weights=weights,
        replaced=replaced,
        replaced_weights=replaced_weights,
        weighted_sums=sum_after,
        weights=weight_after,
        means=mean_after,
        means_before=mean_before,
        centres=centre,
        held=held,
        present=present,
        row_ends=np.cumsum(present.sum(axis=1)),
        sizes=sums.size + np.cumsum(plan.replaced == NEW),
        traces=trace + np.cumsum(steps),
        accumulated=float(lengths.sum()),
        cone_across=backend.asarray(across),
        cone_along=backend.asarray(along),
    )


DIMENSIONS = 64
"""Dimensions in which sums and means are followed together on a CPU, where they should stay in the caches."""

EVENTS = 256
"""Insertions whose changes of the scatter are computed together on a CPU, where they should stay in the caches."""


class _ClassHistory(NamedTuple):
    """For every insertion: entries of its class before it, and the previous insertion into the class (-1: none)."""

    counts: np.ndarray
    last: np.ndarray
    order: np.ndarray
    first: np.ndarray
    """Sorted by class: the position of the first insertion into the class."""

    @classmethod
    def of(cls, plan: InsertionPlan, counts: np.ndarray) -> _ClassHistory:
        order = np.argsort(plan.classes, kind="stable")
        by_class = plan.classes[order]
        first = np.searchsorted(by_class, by_class)
        joined = np.concatenate([[0], np.cumsum(plan.replaced[order] == NEW)])
        position = np.arange(len(order))
        held, last = np.empty(len(order), dtype=np.int64), np.empty(len(order), dtype=np.int64)
        held[order] = counts[by_class] + joined[position] - joined[first]
        last[order] = np.where(position > first, order[position - 1], -1)
        return cls(held, last, order, first)

    def within_class(self, steps: Array) -> Array:
        """Running sums (E, c) over the insertions into the same class, including the present one."""
        backend = Backend.of(steps)
        xp = backend.xp
        sorted_steps = steps[backend.index(self.order)]
        if backend.on_gpu:  # along the rows of the transpose, which is ten times as fast
            running = xp.cumulative_sum(sorted_steps.T.contiguous(), axis=1, include_initial=True).T
        else:
            running = xp.cumulative_sum(sorted_steps, axis=0, include_initial=True)
        first = backend.index(self.first)
        own = running[1:] - running[first]
        back = np.empty_like(self.order)
        back[self.order] = np.arange(len(self.order))
        return own[backend.index(back)]

    def previous(self, after: Array, base: Array) -> Array:
        """The value of the class before each insertion: `after` the previous insertion into it, or `base`."""
        backend = Backend.of(after)
        xp = backend.xp
        last = backend.index(np.maximum(self.last, 0))
        has = backend.index(self.last >= 0)
        return xp.where(has[:, None], after[last], base)


def _replaced_samples(plan: InsertionPlan, features: Array, log_y: Array, bank: KnowledgeBank) -> tuple[Array, Array]:
    """The replaced samples and their weights: from the bank or from an earlier row; zero if nothing is replaced."""
    backend = Backend.of(features)
    xp = backend.xp
    index = backend.index
    place = index(plan.classes), index(plan.slots)
    replaced, replaced_weights = bank.features[place], bank.weights[place]
    earlier = np.flatnonzero(plan.replaced >= 0)
    if len(earlier):
        rows = index(plan.replaced[earlier])
        replaced[index(earlier)] = features[rows]
        replaced_weights[index(earlier)] = xp.exp(log_y[rows, index(plan.classes[earlier])])
    replaces = backend.asarray((plan.replaced != NEW).astype(np.float64))
    return replaced * replaces[:, None], replaced_weights * replaces


def _scatter_rows(vectors: Sequence[Array], held: np.ndarray, present: np.ndarray) -> tuple[Array, np.ndarray]:
    """`class_statistics.scatter_rows` for several insertions: rows and signs.

    `vectors`: samples that enter and are replaced, centres of the entries, means before and after, each (E, d).
    """
    entered, replaced, centres, means_before, means_after = vectors
    backend = Backend.of(entered)
    root = backend.asarray(np.sqrt(held.astype(np.float64)))[:, None]
    four = backend.xp.stack(
        [
            root * (centres - means_after),
            entered - means_after,
            root * (centres - means_before),
            replaced - means_after,
        ],
        axis=1,
    )
    signs = np.broadcast_to([1.0, 1.0, -1.0, -1.0], present.shape)[present]
    flat = backend.xp.reshape(four, (-1, four.shape[2]))
    return flat[backend.index(np.flatnonzero(present))], signs


def _cone_distances(
    entered: Array,
    sum_after: Array,
    weight_after: Array,
    history: _ClassHistory,
    sums: ClassSums,
    classes: Array,
    own: slice,
) -> Array:
    """Five numbers (5, e) for the insertions `own`: distance across m of the new sample from the new centre, distance
    across m between old and new centre, position along m of the new sample and of the new centre, and the weight of the
    class."""
    xp = namespace(entered)
    m, k, x, weight_own = sums.direction, classes[own], entered[own], weight_after[own]
    centre = sum_after[own] / weight_own[:, None]
    last = Backend.of(entered).index(np.maximum(history.last[own], 0))
    has = Backend.of(entered).index(history.last[own] >= 0)
    weight = xp.where(has, weight_after[last], sums.weights[k])
    before = xp.where(has[:, None], sum_after[last], sums.weighted_sums[k])
    before /= xp.where(weight > 0, weight, xp.ones_like(weight))[:, None]
    return xp.stack([_across(x - centre, m), _across(centre - before, m), x @ m, centre @ m, weight_own])


def _across(vectors: Array, m: Array) -> Array:
    """Length of the part of each vector orthogonal to m."""
    xp = namespace(vectors)
    along = vectors @ m
    return xp.sqrt(xp.clip(xp.sum(vectors * vectors, axis=1) - along * along, min=0.0))


def _cones(
    plan: InsertionPlan, history: _ClassHistory, distances: np.ndarray, sums: ClassSums
) -> tuple[np.ndarray, np.ndarray]:
    """Cones widened by the distance the centre moved: upper bounds that do not need the bank's entries."""
    base_across, base_along = sums.cones_on_host(plan.classes)
    own, moved, entered_along, centre, weight = distances
    width, lowest = np.empty(len(plan)), np.empty(len(plan))
    for e, last in enumerate(history.last.tolist()):
        if history.counts[e] == 0:
            width[e], lowest[e] = own[e], entered_along[e]
            continue
        held = (width[last], lowest[last]) if last >= 0 else (base_across[e], base_along[e])
        width[e] = max(held[0] + moved[e], own[e])
        lowest[e] = min(held[1], entered_along[e])
    return weight * width, weight * np.maximum(centre - lowest, 0.0)

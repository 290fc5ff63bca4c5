"""The life of the bank over rows known ahead: after every insertion the sums, means and scatter change it brings.

What enters depends on the zero-shot posterior alone, so all of this is known before a single prediction.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from zeroshift.adapt.bank import NEW, InsertionPlan, KnowledgeBank
from zeroshift.adapt.engines.class_statistics import ClassSums
from zeroshift.adapt.statistics import AdaptSettings, class_means
from zeroshift.arrays import Array, Home, namespace, to_numpy

__all__ = ["InsertionSchedule", "insertion_schedule"]

ROWS_PER_INSERTION = 4
"""Squares an insertion adds to or takes from the scatter, at most."""


class InsertionSchedule(NamedTuple):
    """E insertions. On the host: what decides; at home: what is computed with."""

    classes: np.ndarray
    entered: Array
    """(E, d) samples that entered, and (E,) their weights."""
    entered_weights: Array
    left: Array
    """(E, d) samples they replaced (zero where none), and (E,) their weights."""
    left_weights: Array
    weighted_sums: Array
    """(E, d), (E,), (E, d): the class's sums and mean after the insertion."""
    weights: Array
    means: Array
    rows: Array
    """(R, d): the squares of the scatter's changes, additions of an insertion before its removals."""
    signs: np.ndarray
    row_ends: np.ndarray
    """(E,): how many rows are in force after each insertion."""
    sizes: np.ndarray
    """(E,): bank entries after it."""
    traces: np.ndarray
    """(E,): trace of the scatter after it."""
    accumulated: float
    """Sum of all squares that came and went."""
    cone_across: Array
    """(E,), (E,): the class's cone after it, a little wider than need be: nobody looks at the bank for it."""
    cone_along: Array


def insertion_schedule(
    plan: InsertionPlan,
    features: Array,
    log_y: Array,
    bank: KnowledgeBank,
    sums: ClassSums,
    trace: float,
    prototypes: Array,
    rule: AdaptSettings,
) -> InsertionSchedule:
    """`features` and `log_y` are the offered rows; `trace` is the scatter's before the first insertion."""
    home = Home.of(prototypes)
    xp = home.xp
    k = home.index(plan.classes)
    entered, weights = features[home.index(plan.rows)], bank.entrants(plan, log_y)
    left, left_weights = _replaced(plan, features, log_y, bank)
    before = _Before.of(plan, sums.counts)

    within = before.within_class
    sum_after = sums.weighted_sums[k] + within(weights[:, None] * entered - left_weights[:, None] * left)
    weight_after = sums.weights[k] + within((weights - left_weights)[:, None])[:, 0]
    exchanged = entered - left
    total_before = sums.totals[k] + within(exchanged) - exchanged
    count = home.bring(before.counts.astype(np.float64))
    centre = total_before / xp.clip(count, min=1.0)[:, None]
    if rule.update_mean:
        mean_after = class_means(sum_after, weight_after, prototypes[k], rule.alpha, rule.beta)
        mean_before = before.previous(mean_after, sums.means[k])
    else:
        mean_after = mean_before = prototypes[k]

    rows, signs, kept = _scatter_rows(entered, left, centre, count, mean_before, mean_after, before, plan, rule)
    cone_inputs = _cone_distances(entered, sum_after, weight_after, before, sums, k)
    host = to_numpy(xp.concat([xp.sum(rows * rows, axis=1), *cone_inputs]))
    lengths, cone_host = host[: len(signs)], host[len(signs) :].reshape(5, len(plan))
    event = np.repeat(np.arange(len(plan)), kept.sum(axis=1))
    steps = np.bincount(event, weights=signs * lengths, minlength=len(plan))
    across, along = _cones(plan, before, cone_host, sums)
    return InsertionSchedule(
        classes=plan.classes,
        entered=entered,
        entered_weights=weights,
        left=left,
        left_weights=left_weights,
        weighted_sums=sum_after,
        weights=weight_after,
        means=mean_after,
        rows=rows,
        signs=signs,
        row_ends=np.cumsum(kept.sum(axis=1)),
        sizes=sums.size + np.cumsum(plan.replaced == NEW),
        traces=trace + np.cumsum(steps),
        accumulated=float(lengths.sum()),
        cone_across=home.bring(across),
        cone_along=home.bring(along),
    )


class _Before(NamedTuple):
    """For every insertion: entries the class held before it, and the class's previous insertion (-1: none here)."""

    counts: np.ndarray
    last: np.ndarray
    order: np.ndarray
    first: np.ndarray
    """In class order: where the class's insertions begin."""

    @classmethod
    def of(cls, plan: InsertionPlan, counts: np.ndarray) -> _Before:
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
        """Running sums (E, c) over each class's own insertions, this one included."""
        home = Home.of(steps)
        xp = home.xp
        sorted_steps = steps[home.index(self.order)]
        running = xp.cumulative_sum(sorted_steps, axis=0, include_initial=True)
        first = home.index(self.first)
        own = running[1:] - running[first]
        back = np.empty_like(self.order)
        back[self.order] = np.arange(len(self.order))
        return own[home.index(back)]

    def previous(self, after: Array, base: Array) -> Array:
        """What the class had before each insertion: `after` its previous one, or `base`."""
        home = Home.of(after)
        xp = home.xp
        last = home.index(np.maximum(self.last, 0))
        has = home.index(self.last >= 0)
        return xp.where(has[:, None], after[last], base)


def _replaced(plan: InsertionPlan, features: Array, log_y: Array, bank: KnowledgeBank) -> tuple[Array, Array]:
    """The samples that give way and their weights: of the bank, or entered by an earlier row; zero where none does."""
    home = Home.of(features)
    xp = home.xp
    index = home.index
    place = index(plan.classes), index(plan.slots)
    left, left_weights = bank.features[place], bank.weights[place]
    earlier = np.flatnonzero(plan.replaced >= 0)
    if len(earlier):
        rows = index(plan.replaced[earlier])
        left[index(earlier)] = features[rows]
        left_weights[index(earlier)] = xp.exp(log_y[rows, index(plan.classes[earlier])])
    given = home.bring((plan.replaced != NEW).astype(np.float64))
    return left * given[:, None], left_weights * given


def _scatter_rows(
    entered: Array,
    left: Array,
    centre: Array,
    count: Array,
    mean_before: Array,
    mean_after: Array,
    before: _Before,
    plan: InsertionPlan,
    rule: AdaptSettings,
) -> tuple[Array, np.ndarray, np.ndarray]:
    """`changes.scatter_rows` for all insertions: rows, signs, and (E, 4) which of the four each insertion has."""
    home = Home.of(entered)
    xp = home.xp
    root = xp.sqrt(count)[:, None]
    four = xp.stack(
        [root * (centre - mean_after), entered - mean_after, root * (centre - mean_before), left - mean_after], axis=1
    )
    moved = rule.update_mean & (before.counts > 0)
    kept = np.stack([moved, np.ones_like(moved), moved, plan.replaced != NEW], axis=1)
    signs = np.broadcast_to([1.0, 1.0, -1.0, -1.0], kept.shape)[kept]
    flat = xp.reshape(four, (-1, four.shape[2]))
    return flat[home.index(np.flatnonzero(kept))], signs, kept


def _cone_distances(
    entered: Array, sum_after: Array, weight_after: Array, before: _Before, sums: ClassSums, k: Array
) -> list[Array]:
    """Five numbers an insertion: the newcomer's distance across m from the new centre, the centre's own move across m,
    the newcomer's and the centre's place along m, and the class's weight."""
    xp = namespace(entered)
    m = sums.direction
    centre = sum_after / weight_after[:, None]
    weight = sums.weights[k]
    base = sums.weighted_sums[k] / xp.where(weight > 0, weight, xp.ones_like(weight))[:, None]
    moved = centre - before.previous(centre, base)
    apart = entered - centre
    return [_across(apart, m), _across(moved, m), entered @ m, centre @ m, weight_after]


def _across(vectors: Array, m: Array) -> Array:
    xp = namespace(vectors)
    along = vectors @ m
    return xp.sqrt(xp.clip(xp.sum(vectors * vectors, axis=1) - along * along, min=0.0))


def _cones(
    plan: InsertionPlan, before: _Before, distances: np.ndarray, sums: ClassSums
) -> tuple[np.ndarray, np.ndarray]:
    """Widen each class's cone by what moved: an upper bound that needs none of the entries."""
    base_across, base_along = sums.cones_on_host(plan.classes)
    own, moved, newcomer, centre, weight = distances
    width, lowest = np.empty(len(plan)), np.empty(len(plan))
    for e, last in enumerate(before.last.tolist()):
        if before.counts[e] == 0:
            width[e], lowest[e] = own[e], newcomer[e]
            continue
        held = (width[last], lowest[last]) if last >= 0 else (base_across[e], base_along[e])
        width[e] = max(held[0] + moved[e], own[e])
        lowest[e] = min(held[1], newcomer[e])
    return weight * width, weight * np.maximum(centre - lowest, 0.0)

"""What ADAPT keeps of a stream: the knowledge bank, or running sums if the bank is off.

`KnowledgeBank` holds, for every class, the samples on which the zero-shot classifier is most confident. Which samples
enter depends only on the zero-shot posterior, never on the adapted prediction, so all insertions of a block of rows are
known before any of them is predicted. `SoftCounts` replaces the bank if `bank_size` is 0.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from zeroshift.adapt.statistics import bank_scatter, bank_sums, bank_term, soft_scatter
from zeroshift.arrays import Array, Backend, to_numpy
from zeroshift.state_checks import check_lengths, check_range
from zeroshift.zero_shot import confidence, pseudo_class, quantize

__all__ = ["HELD", "NEW", "InsertionPlan", "KnowledgeBank", "SoftCounts"]

RATIO_SLACK = 1e-9
"""Added before rounding down: 0.58 of 50 is 29, but 0.58 * 50 is a rounding error less."""

ROUNDED = 1e-8
"""Confidences that differ by more than this share are different after rounding (`quantize`)."""

FIRST_SLOTS = 4
"""Slots per class at the start. They double as samples arrive, up to the capacity."""

NEW, HELD = -2, -1
"""What an insertion replaces: nothing, or a sample held before the plan. Otherwise the number of an offered row."""


class InsertionPlan(NamedTuple):
    """Which offered rows enter which slot of which class, in order, and what each one replaces."""

    rows: np.ndarray
    classes: np.ndarray
    slots: np.ndarray
    replaced: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, start: int, stop: int) -> InsertionPlan:
        """Insertions `start` to `stop`."""
        return InsertionPlan(*(column[start:stop] for column in self))


class KnowledgeBank:
    """Samples with the probability of their own class and their confidence, in the same number of slots for each class.

    The first `pinned` slots of a class hold labelled support samples, which are never evicted. The `capacity` slots
    after them are filled in order. In a full bank, a sample of strictly higher confidence replaces, in place, the entry
    of lowest confidence (the first on a tie). Unused slots are zero, so sums can run over all slots.
    """

    def __init__(self, backend: Backend, classes: int, dimension: int, capacity: int) -> None:
        self.capacity = capacity
        self._backend = backend
        self._allocate(classes, dimension, pinned=0, slots=min(capacity, FIRST_SLOTS))
        self.pinned_counts: np.ndarray = np.zeros(classes, dtype=np.int64)
        self.sample_counts: np.ndarray = np.zeros(classes, dtype=np.int64)

    def _allocate(self, classes: int, dimension: int, pinned: int, slots: int) -> None:
        self.pinned = pinned
        self.features = self._backend.zeros((classes, pinned + slots, dimension))
        self.weights = self._backend.zeros((classes, pinned + slots))
        # In host memory, where insertions are decided.
        self.confidences: np.ndarray = np.zeros((classes, pinned + slots))

    @property
    def counts(self) -> np.ndarray:
        """Entries per class, including labelled samples."""
        return self.pinned_counts + self.sample_counts

    @property
    def size(self) -> int:
        return int(self.counts.sum())

    def occupied_in(self, classes: Any) -> np.ndarray:
        """True for every used slot of these classes, (n, slots)."""
        slot = np.arange(self.features.shape[1])
        held: np.ndarray = (slot >= self.pinned) & (slot < self.pinned + self.sample_counts[classes][:, None])
        return held | (slot < self.pinned_counts[classes][:, None]) if self.pinned else held

    @property
    def occupied(self) -> Array:
        """1.0 for every used slot, (K, slots)."""
        return self._backend.asarray(self.occupied_in(slice(None)).astype(np.float64))

    def slots_of(self, k: int) -> list[int]:
        """The used slots of class k."""
        first = self.pinned
        return [*range(self.pinned_counts[k]), *range(first, first + self.sample_counts[k])]

    def pin(self, features: Array, labels: np.ndarray) -> None:
        """Store labelled samples permanently, with probability 1 and the highest confidence. Call before `offer`."""
        classes, slots, dimension = self.features.shape
        self._allocate(classes, dimension, pinned=int(np.bincount(labels).max()), slots=slots)
        for row, k in enumerate(labels):
            slot = self.pinned_counts[k]
            self.features[k, slot, :] = features[row]
            self.weights[k, slot] = 1.0
            self.pinned_counts[k] += 1

    def offer(self, features: Array, log_posterior: Array) -> bool:
        """Offer rows in order, each to the bank of its pseudo-class. Returns whether any row entered."""
        confidences = to_numpy(confidence(log_posterior))
        plan = self.plan(to_numpy(pseudo_class(log_posterior)), confidences)
        if len(plan) > 0:
            self.insert(plan, features, self.inserted_weights(plan, log_posterior), confidences[plan.rows])
        return len(plan) > 0

    def plan(self, pseudo_classes: np.ndarray, confidences: np.ndarray) -> InsertionPlan:
        """The insertions that offering these rows causes. Changes nothing and needs no features."""
        rounded = quantize(confidences)
        present, place = np.unique(pseudo_classes, return_inverse=True)
        counts, held = self.sample_counts[present].tolist(), quantize(self.confidences[present, self.pinned :])
        # The lowest confidence of a full bank only rises, so a row below the present one cannot enter.
        lowest = np.where(self.sample_counts[present] < self.capacity, -np.inf, held.min(axis=1, initial=np.inf))
        possible = np.flatnonzero(rounded > lowest[place])
        heaps: list[list[tuple[float, int]] | None] = [None] * len(present)
        last_writer: dict[tuple[int, int], int] = {}
        rows, slots, replaced = [], [], []
        for row, k, row_confidence in zip(
            possible.tolist(), place[possible].tolist(), rounded[possible].tolist(), strict=True
        ):
            heap = heaps[k]
            if heap is None:
                # Lowest confidence on top, the first slot on a tie.
                heap = heaps[k] = [(c, self.pinned + slot) for slot, c in enumerate(held[k, : counts[k]].tolist())]
                heapq.heapify(heap)
            if len(heap) < self.capacity:
                slot, before = self.pinned + len(heap), NEW
                heapq.heappush(heap, (row_confidence, slot))
            elif row_confidence > heap[0][0]:
                slot = heap[0][1]
                heapq.heapreplace(heap, (row_confidence, slot))
                before = last_writer.get((k, slot), HELD)
            else:
                continue
            last_writer[k, slot] = row
            rows.append(row)
            slots.append(slot)
            replaced.append(before)
        entered = np.array(rows, dtype=np.int64)
        return InsertionPlan(
            entered,
            pseudo_classes[entered].astype(np.int64, copy=False),
            np.array(slots, dtype=np.int64),
            np.array(replaced, dtype=np.int64),
        )

    def find_slot(self, k: int, confidence: float) -> tuple[int, bool] | None:
        """Like `plan` for one row: its slot and whether that holds a sample now; None if the row does not enter."""
        n, first = int(self.sample_counts[k]), self.pinned
        if n < self.capacity:
            return first + n, False
        held = self.confidences[k, first : first + n]
        lowest = float(held.min())
        if confidence < lowest * (1.0 + ROUNDED):  # both are at most 0
            return None
        rounded = quantize(np.append(held, confidence))
        slot = int(rounded[:-1].argmin())
        return (first + slot, True) if rounded[-1] > rounded[slot] else None

    def inserted_weights(self, plan: InsertionPlan, log_posterior: Array) -> Array:
        """Own-class probability of each inserted row."""
        rows, classes = self._backend.index(plan.rows), self._backend.index(plan.classes)
        return self._backend.xp.exp(log_posterior[rows, classes])

    def insert(self, plan: InsertionPlan, features: Array, weights: Array, confidences: np.ndarray) -> None:
        """Carry out (part of) a plan. `features`: all offered rows; `weights`, `confidences`: of the inserted rows."""
        self.reserve_slots(plan)
        # If several rows enter one slot, only the last one stays.
        place = plan.classes * self.features.shape[1] + plan.slots
        kept = np.sort(len(plan) - 1 - np.unique(place[::-1], return_index=True)[1])
        k, slot = plan.classes[kept], plan.slots[kept]
        at = (self._backend.index(k), self._backend.index(slot))
        self.features[at] = features[self._backend.index(plan.rows[kept])]
        self.weights[at] = weights[self._backend.index(kept)]
        self.confidences[k, slot] = confidences[kept]
        np.maximum.at(self.sample_counts, k, slot - self.pinned + 1)

    def put(self, k: int, slot: int, x: Array, weight: Array | float, confidence: float) -> None:
        """Store one sample (d,) in a slot of class k, in place of what the slot holds."""
        while slot >= self.features.shape[1]:
            self.widen()
        self.features[k, slot] = x
        self.weights[k, slot] = weight
        self.confidences[k, slot] = confidence
        self.sample_counts[k] = max(int(self.sample_counts[k]), slot - self.pinned + 1)

    def reserve_slots(self, plan: InsertionPlan) -> None:
        """Add the slots a plan needs."""
        while len(plan) and plan.slots.max() >= self.features.shape[1]:
            self.widen()

    @property
    def can_widen(self) -> bool:
        """Whether there are fewer slots per class than the capacity."""
        return bool(self.features.shape[1] - self.pinned < self.capacity)

    def widen(self) -> None:
        """Double the slots, up to the capacity, so that memory grows with the samples held."""
        slots = self.features.shape[1] - self.pinned
        extra = min(2 * slots, self.capacity) - slots
        classes, _, dimension = self.features.shape
        xp = self._backend.xp
        wider = (
            xp.concat([self.features, self._backend.zeros((classes, extra, dimension))], axis=1),
            xp.concat([self.weights, self._backend.zeros((classes, extra))], axis=1),
            np.concatenate([self.confidences, np.zeros((classes, extra))], axis=1),
        )
        self.features, self.weights, self.confidences = wider

    def prune(self, ratio: float) -> None:
        """Drop the floor(ratio n) samples of lowest confidence of each class (the first on a tie); keep the order of
        the others."""
        for k, n in enumerate(self.sample_counts.tolist()):
            drop = math.floor(ratio * n + RATIO_SLACK)
            if drop == 0:
                continue
            held = slice(self.pinned, self.pinned + n)
            most_confident = np.argsort(quantize(self.confidences[k, held]), kind="stable")[drop:]
            keep = self.pinned + np.sort(most_confident)
            stay = slice(self.pinned, self.pinned + n - drop)
            for array, index in (
                (self.features, self._backend.index(keep)),
                (self.weights, self._backend.index(keep)),
                (self.confidences, keep),
            ):
                kept = array[k, index]
                array[k, held] = 0.0
                array[k, stay] = kept
            self.sample_counts[k] = n - drop

    def fill(self, features: Array, classes: Array, ranks: Array, weights: Array, confidences: Array) -> None:
        """Fill an empty bank: row i becomes sample number `ranks[i]` of class `classes[i]`."""
        k, slot = to_numpy(classes), self.pinned + to_numpy(ranks)
        self.sample_counts = np.bincount(k, minlength=len(self.sample_counts))
        while self.features.shape[1] - self.pinned < self.sample_counts.max():
            self.widen()
        place = self._backend.index(k), self._backend.index(slot)
        self.features[place] = features
        self.weights[place] = weights
        self.confidences[k, slot] = to_numpy(confidences)

    def sums(self) -> tuple[Array, Array]:
        return bank_sums(self.features, self.weights)

    def sums_with(self, features: Array, posterior: Array, *, include_empty: bool) -> tuple[Array, Array]:
        """The sums plus the present samples, weighted by `posterior`; empty classes only with `include_empty`."""
        weighted_sum, weight = self.sums()
        if not include_empty:
            posterior = posterior * self._backend.xp.astype(weight > 0, posterior.dtype)
        return weighted_sum + posterior.T @ features, weight + self._backend.xp.sum(posterior, axis=0)

    def scatter(self, means: Array, *, per_class: bool = False) -> Array:
        return bank_scatter(self.features, self.occupied, means, per_class=per_class)

    def term(self, features: Array) -> Array:
        return bank_term(features, self.features, self.weights)

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """The whole content, slot by slot."""
        xp, device = self._backend.xp, self._backend.device
        return {
            "bank_features": self.features,
            "bank_weights": self.weights,
            "bank_confidences": xp.asarray(self.confidences, device=device),
            "bank_pinned_counts": xp.asarray(self.pinned_counts, device=device),
            "bank_sample_counts": xp.asarray(self.sample_counts, device=device),
        }, {}

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        """Restore what `state` returned. Raises ValueError if it does not fit this bank."""
        classes, _, dimension = self.features.shape
        pinned_counts, sample_counts = (to_numpy(arrays[f"bank_{name}_counts"]) for name in ("pinned", "sample"))
        slots = arrays["bank_features"].shape[1] - self.pinned
        for name, shape in (("features", (dimension,)), ("weights", ()), ("confidences", ())):
            expected = (classes, self.pinned + slots, *shape)
            if tuple(arrays[f"bank_{name}"].shape) != expected:
                raise ValueError(f"bank_{name} has shape {tuple(arrays[f'bank_{name}'].shape)}, not {expected}")
        if not np.array_equal(pinned_counts, self.pinned_counts):
            raise ValueError("bank_pinned_counts do not agree with the support samples")
        if sample_counts.shape != (classes,) or (sample_counts < 0).any() or (sample_counts > slots).any():
            raise ValueError(f"bank_sample_counts must be {classes} numbers from 0 to {slots}")
        if slots > self.capacity:
            raise ValueError(f"the bank holds {slots} slots per class, more than bank_size = {self.capacity}")
        check_lengths("bank_features", arrays["bank_features"])
        check_range("bank_weights", arrays["bank_weights"], 0, 1)
        check_range("bank_confidences", arrays["bank_confidences"], -np.log(classes), 0)
        self.features = arrays["bank_features"]
        self.weights = arrays["bank_weights"]
        self.confidences = to_numpy(arrays["bank_confidences"]).copy()
        self.sample_counts = sample_counts.copy()
        unused = ~self.occupied_in(slice(None))
        if to_numpy(self.weights)[unused].any() or to_numpy(self.features)[unused].any():
            raise ValueError("bank_features and bank_weights must be zero in unused slots")


CANCELLATION = 1e-13
"""The scatter is a difference of moments. A trace below this share of theirs is the rounding error of zero."""


class SoftCounts:
    """Replaces the knowledge bank if it is off (Table 5, upper half): every sample counts with its zero-shot posterior.

    Holds the sums of y x (K, d), y (K,) and x x^T (d, d) over all samples seen. The scatter is a difference of these
    sums, so it loses most of its digits if the samples hardly differ (spread below about 1e-5 of unit length).
    """

    def __init__(self, backend: Backend, classes: int, dimension: int) -> None:
        self._backend = backend
        self.weighted_sum = backend.zeros((classes, dimension))
        self.weight = backend.zeros((classes,))
        self.second_moment = backend.zeros((dimension, dimension))
        self.size: int = 0
        self._before = (self.weighted_sum, self.weight)
        """The sums before the last call of `offer`."""

    @property
    def counts(self) -> np.ndarray:
        """Zero for every class: no sample is stored."""
        return np.zeros(self.weight.shape[0], dtype=np.int64)

    def pin(self, features: Array, labels: np.ndarray) -> None:
        """Count labelled samples with probability 1."""
        one_hot = np.eye(self.weight.shape[0])[labels]
        self._add(features, self._backend.asarray(one_hot))

    def offer(self, features: Array, log_posterior: Array) -> bool:
        self._before = (self.weighted_sum, self.weight)
        self._add(features, self._backend.xp.exp(log_posterior))
        return True

    def _add(self, features: Array, posterior: Array) -> None:
        self.weighted_sum = self.weighted_sum + posterior.T @ features
        self.weight = self.weight + self._backend.xp.sum(posterior, axis=0)
        self.second_moment = self.second_moment + features.T @ features
        self.size += int(features.shape[0])

    def sums(self) -> tuple[Array, Array]:
        return self.weighted_sum, self.weight

    def sums_with(self, features: Array, posterior: Array, *, include_empty: bool) -> tuple[Array, Array]:
        """The sums with `posterior` in place of the zero-shot posterior for the samples last offered."""
        weighted_sum, weight = self._before
        return weighted_sum + posterior.T @ features, weight + self._backend.xp.sum(posterior, axis=0)

    def scatter(self, means: Array, *, per_class: bool = False) -> Array:
        if per_class:
            raise NotImplementedError("per-class covariances need a bank")
        xp = self._backend.xp
        scatter = soft_scatter(self.second_moment, self.weighted_sum, self.weight, means)
        noise = CANCELLATION * float(xp.linalg.trace(self.second_moment))
        return scatter if float(xp.linalg.trace(scatter)) > noise else xp.zeros_like(scatter)

    def term(self, features: Array) -> Array:
        return self._backend.zeros((features.shape[0], self.weight.shape[0]))

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        return {
            "soft_weighted_sum": self.weighted_sum,
            "soft_weight": self.weight,
            "soft_second_moment": self.second_moment,
            "soft_size": self._backend.xp.asarray([self.size], device=self._backend.device),
        }, {}

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        for name, own in self.state()[0].items():
            if tuple(arrays[name].shape) != tuple(own.shape):
                raise ValueError(f"{name} has shape {tuple(arrays[name].shape)}, not {tuple(own.shape)}")
        self.weighted_sum = arrays["soft_weighted_sum"]
        self.weight = arrays["soft_weight"]
        self.second_moment = arrays["soft_second_moment"]
        self.size = int(arrays["soft_size"][0])
        check_range("soft_size", self.size, 0)
        check_range("soft_weight", self.weight, 0, self.size)

"""The order of a stream as information: the class of a sample is often that of the sample before.

A hidden Markov chain. With probability a, a sample has the class of the sample before; otherwise its class is drawn,
all classes alike. The prior of a sample is then a f + (1 - a) / K, with f the posterior of the sample before, and its
posterior is proportional to its evidence times that prior.

a is estimated without labels, from zero-shot posteriors alone: each sample adds its expected "stay" and "change" to two
sums. What a method has learned therefore cannot hide the order from the estimate. Where the order is random, a stays
near its prior and the filter changes next to nothing.

Everything here is NumPy in float64, whatever library a method uses: the recursion is a few operations on K numbers per
sample, which no GPU does faster. Nothing is changed in place. `observe` and `filter` return a new chain, which the
caller stores when the samples count as learned.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np

from zeroshift.arrays import Array, to_numpy
from zeroshift.state_checks import check_range, check_seen
from zeroshift.zero_shot import log_softmax

__all__ = ["STAY_PRIOR", "STAY_THRESHOLD", "LateAnswers", "StickyClasses", "smooth"]

STAY_PRIOR = (1.0, 30.0)
"""Fictitious stays and changes before the first sample: Beta(1, 30), a mean of 1/31."""

STAY_THRESHOLD = 0.0
"""Estimates of a up to this count as none: max(0, (a - threshold) / (1 - threshold)) is used."""


class StickyClasses:
    """The chain after some samples: how often classes stay, and the posteriors of the last sample.

    >>> y = np.full((200, 5), 0.05) + 0.75 * np.eye(5)[0]  # a stream of one class
    >>> chain = StickyClasses(5)
    >>> stay, chain = chain.observe(y)
    >>> answers, chain = chain.filter(np.log(y), stay)
    >>> np.exp(answers[[0, -1], 0]).round(3), round(chain.stay, 3)
    (array([0.8  , 0.955]), 0.492)
    """

    def __init__(
        self, n_classes: int, *, prior: tuple[float, float] = STAY_PRIOR, threshold: float = STAY_THRESHOLD
    ) -> None:
        self.prior = prior
        self.threshold = threshold
        self.stays = 0.0
        """Sum of the probabilities that a sample has the class of the one before."""
        self.changes = 0.0
        """Sum of the probabilities that its class was drawn."""
        self.follows = False
        """Whether the next sample follows one of this stream."""
        self.zero_shot = np.full(n_classes, 1.0 / n_classes)
        """Posterior (K,) of the last sample by the filter of zero-shot posteriors; uniform if there is none."""
        self.answer = self.zero_shot
        """The same by the filter of the method's evidence."""

    @property
    def stay(self) -> float:
        """The probability that the next sample has the class of the one before, from 0 to below 1."""
        estimate = self._estimate(self.stays, self.changes)
        return max(0.0, (estimate - self.threshold) / (1.0 - self.threshold))

    def _estimate(self, stays: float, changes: float) -> float:
        stays, changes = stays + self.prior[0], changes + self.prior[1]
        return stays / (stays + changes)

    def observe(self, y: np.ndarray) -> tuple[np.ndarray, StickyClasses]:
        """Count samples by their zero-shot posteriors `y` (n, K).

        Returns `stay` as it is before each sample, (n,), 0 where a sample follows none, and the chain after them. The
        first does not depend on later rows, nor on how a stream is divided into calls.
        """
        after = copy.copy(self)
        f, share, low = self.zero_shot.copy(), 1.0 / self.zero_shot.size, self.threshold
        stays, changes, follows = self.stays, self.changes, self.follows
        used = np.zeros(y.shape[0])
        for number, row in enumerate(y):
            a = self._estimate(stays, changes)
            drawn = (1.0 - a) * share
            same = a * float(f.dot(row))
            total = same + drawn
            if follows:
                used[number] = max(0.0, (a - low) / (1.0 - low))
                stays += same / total
                changes += drawn / total
            follows = True
            f *= a / total
            f += drawn / total
            f *= row
        after.stays, after.changes, after.follows, after.zero_shot = stays, changes, follows, f
        return used, after

    def filter(self, log_evidence: np.ndarray, stay: np.ndarray) -> tuple[np.ndarray, StickyClasses]:
        """Filtered log-posteriors (n, K) of samples, and the chain after them.

        `log_evidence` (n, K) is the logarithm of what each sample says about its class, up to a constant per row: the
        log-posterior of a classifier to which all classes are alike. A row without a finite maximum says nothing.
        `stay` (n,) is from `observe`.
        """
        log_e, e = _scaled(log_evidence)
        after = copy.copy(self)
        f, share, ones = self.answer.copy(), 1.0 / self.answer.size, np.ones(self.answer.size)
        priors, totals = np.empty_like(e), []
        for prior, row, a in zip(priors, e, stay.tolist(), strict=True):
            np.multiply(f, a, out=prior)
            prior += (1.0 - a) * share
            np.multiply(prior, row, out=f)
            total = float(f.dot(ones))  # never 0: the row has an entry 1, and every prior is positive
            f *= 1.0 / total
            totals.append(total)
        after.answer = f
        return log_e + np.log(priors) - np.log(totals)[:, None], after

    def merged(self, other: StickyClasses) -> StickyClasses:
        """The sums of both streams. The next sample follows neither stream's last one."""
        both = StickyClasses(self.answer.size, prior=self.prior, threshold=self.threshold)
        both.stays, both.changes = self.stays + other.stays, self.changes + other.changes
        return both

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        values = {"stays": self.stays, "changes": self.changes, "follows": self.follows}
        return {"zero_shot": self.zero_shot, "answer": self.answer}, values

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> StickyClasses:
        restored = copy.copy(self)
        for name in ("zero_shot", "answer"):
            posterior = _host(arrays[name])
            if posterior.shape != self.answer.shape:
                raise ValueError(f"{name} has shape {posterior.shape}, not {self.answer.shape}")
            check_range(name, posterior, 0.0, 1.0)
            check_range(f"the sum of {name}", float(posterior.sum()), 1.0, 1.0)
            setattr(restored, name, posterior)
        for name in ("stays", "changes"):
            count = values[name]
            if isinstance(count, bool) or not isinstance(count, int | float) or not 0 <= count < np.inf:
                raise ValueError(f"{name} must be a number of at least 0; it is {count!r}")
            setattr(restored, name, float(count))
        if not isinstance(values["follows"], bool):
            raise ValueError(f"follows must be true or false; it is {values['follows']!r}")
        restored.follows = values["follows"]
        return restored

    def check(self, n_seen: int) -> None:
        """ValueError if no stream of `n_seen` samples leads to these sums."""
        check_seen("stays + changes", self.stays + self.changes, n_seen)


class LateAnswers:
    """Fixed-lag smoothing: the samples whose answers wait until `lag` samples came after them.

    >>> y = np.array([[0.9, 0.1], [0.4, 0.6], [0.9, 0.1]])
    >>> stay = np.array([0.0, 0.9, 0.9])
    >>> filtered, _ = StickyClasses(2).filter(np.log(y), stay)
    >>> answers, late = LateAnswers(2, lag=1).add(filtered, np.log(y), stay)
    >>> np.exp(answers).round(2), late.due
    (array([[0.86, 0.14],
           [0.96, 0.04]]), 1)
    """

    def __init__(self, n_classes: int, lag: int) -> None:
        self.lag = lag
        self.filtered = np.zeros((0, n_classes))
        """Filtered log-posteriors of the samples whose answers are due, the oldest first."""
        self.evidence = self.filtered
        """Their log-evidence."""
        self.stay = np.zeros(0)
        """Their probability of having the class of the sample before."""

    @property
    def due(self) -> int:
        """Samples whose answers are not final yet."""
        return self.stay.size

    def add(self, filtered: np.ndarray, log_evidence: np.ndarray, stay: np.ndarray) -> tuple[np.ndarray, LateAnswers]:
        """The answers (m, K), as log-posteriors, that are final now that these samples came, and what is due then."""
        filtered = np.concatenate([self.filtered, filtered])
        log_evidence = np.concatenate([self.evidence, log_evidence])
        stay = np.concatenate([self.stay, stay])
        final = max(0, stay.size - self.lag)
        later = copy.copy(self)
        later.filtered, later.evidence, later.stay = filtered[final:], log_evidence[final:], stay[final:]
        if not final or not self.lag:
            return filtered[:final], later
        _, e = _scaled(log_evidence)
        message = np.ones((final, filtered.shape[1]))
        for step in range(self.lag, 0, -1):
            # All final samples at once: what the sample `step` after each says about its class.
            message = _back(message, e[step : step + final], stay[step : step + final, None])
        return log_softmax(filtered[:final] + np.log(message)), later

    def finish(self) -> tuple[np.ndarray, LateAnswers]:
        """The answers that are still due, from what came so far, and none due."""
        return smooth(self.filtered, self.evidence, self.stay), LateAnswers(self.filtered.shape[1], self.lag)

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        return {"filtered": self.filtered, "evidence": self.evidence, "stay": self.stay}, {}

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> LateAnswers:
        restored = copy.copy(self)
        for name in ("filtered", "evidence", "stay"):
            setattr(restored, name, _host(arrays[name]))
        shape = (restored.stay.size, self.filtered.shape[1])
        if restored.stay.ndim != 1 or restored.filtered.shape != shape or restored.evidence.shape != shape:
            raise ValueError(f"the late answers have shapes {restored.filtered.shape}, {restored.evidence.shape}")
        if restored.due > self.lag:
            raise ValueError(f"{restored.due} late answers are due, more than lag = {self.lag}")
        check_range("stay", restored.stay, 0.0, 1.0)
        return restored


def smooth(filtered: np.ndarray, log_evidence: np.ndarray, stay: np.ndarray) -> np.ndarray:
    """Log-posteriors (n, K) of samples given all n, from their filtered ones: the backward pass.

    >>> y = np.log(np.array([[0.5, 0.5], [0.9, 0.1]]))
    >>> filtered, _ = StickyClasses(2).filter(y, np.array([0.0, 0.5]))
    >>> np.exp(smooth(filtered, y, np.array([0.0, 0.5]))).round(2)
    array([[0.7, 0.3],
           [0.9, 0.1]])
    """
    _, e = _scaled(log_evidence)
    messages = np.ones_like(e)
    for number in range(e.shape[0] - 1, 0, -1):
        messages[number - 1] = _back(messages[number], e[number], stay[number])
    return log_softmax(filtered + np.log(messages))


def _back(message: np.ndarray, e: np.ndarray, stay: Any) -> np.ndarray:
    """What a sample and those after it say about the class of the one before, scaled to the maximum 1.

    Never 0: any class may be drawn, so that every entry is at least (1 - stay) / K of the largest.
    """
    product = message * e
    back = stay * product + ((1.0 - stay) / product.shape[-1]) * product.sum(axis=-1, keepdims=True)
    back /= back.max(axis=-1, keepdims=True)
    return back


def _scaled(log_evidence: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The evidence scaled so that the maximum of each row is 1: its logarithm, and itself."""
    top = log_evidence.max(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        log_e = np.where(np.isfinite(top), log_evidence - top, 0.0)
    return log_e, np.exp(log_e)


def _host(array: Array) -> np.ndarray:
    return np.array(to_numpy(array), dtype=np.float64)

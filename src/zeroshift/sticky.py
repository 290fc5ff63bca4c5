"""The order of a stream as information: the class of a sample is often that of the sample before.

A hidden Markov chain. With probability a, a sample has the class of the sample before; otherwise its class is drawn,
all classes alike. The prior of a sample is then a f + (1 - a) / K, with f the posterior of the sample before, and its
posterior is proportional to its evidence times that prior.

a is estimated without labels, from zero-shot posteriors alone, so that what a method has learned cannot hide the order.
Each sample adds to the log-likelihoods of a few values of a (`STAY_VALUES`) relative to a = 0, random order. Samples
long ago count less and less (`MEMORY`), because a stream may come to have an order, or lose it. Zero-shot posteriors
favour some classes throughout, which must not look like order. In the estimate they are therefore divided by their mean
over the stream, and a class that does not stay is drawn by its frequency in the stream (online EM): on average,
neighbours that have nothing to do with each other then lower the likelihood of every a above 0.

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

__all__ = [
    "BALANCE",
    "COOLING",
    "FICTITIOUS",
    "MEMORY",
    "PENALTY",
    "STAY_VALUES",
    "TRUST",
    "LateAnswers",
    "StickyClasses",
    "cool",
    "smooth",
]

STAY_VALUES = (0.0, 0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
"""The values of a that are compared; the first is random order."""

PENALTY = 10.0
"""How much larger the log-likelihood of an order must be than that of random order before they are equally probable."""

MEMORY = 100.0
"""Samples that the log-likelihoods of a remember: with each sample, the sums so far lose 1 / MEMORY of their size."""

FICTITIOUS = 0.05
"""Samples of each class that means and frequencies begin with."""

TRUST = 0.9
"""Answers are filtered with this share of a. The errors of neighbouring samples are alike, which the chain does not
know: with a itself, a wrong class stays too long."""

BALANCE = 0.6
"""Evidence is divided by its mean over the stream to the power BALANCE * stay. A class that a method favours throughout
would otherwise win more and more samples as neighbours add up. In random order nothing is divided."""

COOLING = 0.4
"""Filtered posteriors are raised to the power 1 - COOLING * stay. The chain counts the errors that neighbours share
several times, so that its posteriors are too certain."""


class StickyClasses:
    """The chain after some samples: how probable each value of a is, and the posteriors of the last sample.

    >>> y = np.full((50, 5), 0.1) + 0.5 * np.eye(5)[np.arange(50) // 10]  # ten samples of each class
    >>> chain = StickyClasses(5)
    >>> stay, chain = chain.observe(y)
    >>> answers, chain = chain.filter(np.log(y), stay)
    >>> np.exp(answers).max(axis=1)[[0, -1]].round(3), round(chain.stay, 3)
    (array([0.6  , 0.973]), 0.853)
    """

    def __init__(self, n_classes: int, *, penalty: float = PENALTY, trust: float = TRUST) -> None:
        self.penalty = penalty
        self.trust = trust
        self.log_likelihoods = np.zeros(len(STAY_VALUES))
        """Of each value of a, relative to the first: sums over the samples, old ones forgotten."""
        self.posteriors = np.full(n_classes, FICTITIOUS)
        """Sum of the zero-shot posteriors (K,), with the fictitious samples."""
        self.frequencies = self.posteriors
        """Samples of each class (K,) if the order were random, with the fictitious ones."""
        self.evidence = np.ones(n_classes)
        """Sum of the method's evidence (K,), each sample's normalised, and one for each class."""
        self.follows = False
        """Whether the next sample follows one of this stream."""
        self.zero_shot = np.full(n_classes, 1.0 / n_classes)
        """The posterior of the last sample in the estimate of a (K,); uniform if the next sample follows none."""
        self.answer = self.zero_shot
        """The method's filtered posterior of the last sample (K,); uniform if the next sample follows none."""

    @property
    def stay(self) -> float:
        """The probability, for the filter, that the next sample has the class of the one before; below 1."""
        return float(self._stay(self.log_likelihoods))

    def _stay(self, log_likelihoods: np.ndarray) -> np.ndarray:
        """`trust` times the posterior mean of a, given log-likelihoods (..., values)."""
        log_odds = log_likelihoods - self.penalty * (np.array(STAY_VALUES) > 0)
        weights = np.exp(log_odds - log_odds.max(axis=-1, keepdims=True))
        return self.trust * (weights @ np.array(STAY_VALUES)) / weights.sum(axis=-1)

    def observe(self, y: np.ndarray) -> tuple[np.ndarray, StickyClasses]:
        """Count samples by their zero-shot posteriors `y` (n, K).

        Returns `stay` as it is before each sample, (n,), 0 where a sample follows none, and the chain after them.
        Neither depends on how a stream is divided into calls.
        """
        after = copy.copy(self)
        if not y.shape[0]:
            return np.zeros(0), after
        sums = np.cumsum(np.concatenate([self.posteriors[None], y]), axis=0)
        e = y / sums[:-1]
        e /= e.sum(axis=1, keepdims=True)
        values, ones = np.array(STAY_VALUES), np.ones(y.shape[1])
        f, log_likelihoods = self.zero_shot.copy(), self.log_likelihoods.copy()
        frequencies = self.frequencies.copy()
        n_frequencies = float(frequencies.dot(ones))
        before = np.empty((y.shape[0], values.size))
        follows = self.follows
        for number, row in enumerate(e):
            before[number] = log_likelihoods
            drawn = frequencies * row
            n_drawn = float(drawn.dot(ones))
            same, new = float(f.dot(row)), n_drawn / n_frequencies
            if follows:
                log_likelihoods *= 1.0 - 1.0 / MEMORY
                log_likelihoods += np.log1p(values * (same / new - 1.0))
            follows = True
            a = STAY_VALUES[1 + int(log_likelihoods[1:].argmax())]  # the most likely order, if there is one
            total = a * same + (1.0 - a) * new
            drawn *= 1.0 / n_drawn  # the posterior of a sample in random order
            frequencies += drawn
            n_frequencies += 1.0
            f *= row
            f *= a / total
            drawn *= (1.0 - a) * new / total
            f += drawn
        stay = self._stay(before)
        if not self.follows:
            stay[0] = 0.0
        after.posteriors, after.frequencies = sums[-1], frequencies
        after.zero_shot, after.log_likelihoods, after.follows = f, log_likelihoods, True
        return stay, after

    def balance(
        self, log_evidence: np.ndarray, exponents: np.ndarray, *, whole: bool = False
    ) -> tuple[np.ndarray, StickyClasses]:
        """The evidence (n, K) without what the method favours throughout, and the chain after.

        Each row is divided by the mean of the evidence over the stream, to the power of its entry of `exponents` (n,).
        The mean is over the samples before each one or, with `whole`, over all of them, as in a recording. `filter`,
        `LateAnswers` and `smooth` are given the balanced evidence.
        """
        after = copy.copy(self)
        log_e, e = _scaled(log_evidence)
        e /= e.sum(axis=1, keepdims=True)
        sums = np.cumsum(np.concatenate([self.evidence[None], e]), axis=0)
        after.evidence = sums[-1]
        means = sums[-1:] if whole else sums[:-1]
        means = means / means.sum(axis=1, keepdims=True)
        return log_e - exponents[:, None] * np.log(means), after

    def in_random_order(self, evidence: np.ndarray, posterior: np.ndarray) -> StickyClasses:
        """The chain after samples whose evidence (n, K) is not filtered; the last one has this posterior (K,)."""
        after = copy.copy(self)
        after.evidence, after.answer = self.evidence + evidence.sum(axis=0), posterior.copy()
        return after

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
        both = StickyClasses(self.answer.size, penalty=self.penalty, trust=self.trust)
        both.log_likelihoods = self.log_likelihoods + other.log_likelihoods
        both.posteriors = self.posteriors + other.posteriors - FICTITIOUS
        both.frequencies = self.frequencies + other.frequencies - FICTITIOUS
        both.evidence = self.evidence + other.evidence - 1.0
        return both

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        arrays = {name: getattr(self, name) for name in ARRAYS}
        return arrays, {"follows": self.follows}

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> StickyClasses:
        restored = copy.copy(self)
        for name in ARRAYS:
            array, own = _host(arrays[name]), getattr(self, name)
            if array.shape != own.shape:
                raise ValueError(f"{name} has shape {array.shape}, not {own.shape}")
            setattr(restored, name, array)
        for name in ("zero_shot", "answer"):
            check_range(name, getattr(restored, name), 0.0, 1.0)
            check_range(f"the sum of {name}", float(getattr(restored, name).sum()), 1.0, 1.0)
        for name, least in FIRST.items():
            check_range(name, getattr(restored, name), least)
        check_range("the log-likelihood of random order", float(restored.log_likelihoods[0]), 0.0, 0.0)
        if not isinstance(values["follows"], bool):
            raise ValueError(f"follows must be true or false; it is {values['follows']!r}")
        restored.follows = values["follows"]
        return restored

    def check(self, n_seen: int) -> None:
        """ValueError if no stream of `n_seen` samples leads to these sums."""
        for name, least in FIRST.items():
            check_seen(f"the sum of {name}", float((getattr(self, name) - least).sum()), n_seen)


FIRST = {"posteriors": FICTITIOUS, "frequencies": FICTITIOUS, "evidence": 1.0}
"""What the sums over samples begin with."""

ARRAYS = ("log_likelihoods", *FIRST, "zero_shot", "answer")
"""The arrays of a chain's state."""


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


def cool(log_posteriors: np.ndarray, stay: np.ndarray) -> np.ndarray:
    """Filtered or smoothed log-posteriors (n, K), less certain where neighbours decided: see `COOLING`.

    >>> np.exp(cool(np.log(np.array([[0.9, 0.1], [0.9, 0.1]])), np.array([0.0, 0.8]))).round(2)
    array([[0.9 , 0.1 ],
           [0.82, 0.18]])
    """
    return log_softmax((1.0 - COOLING * stay)[:, None] * log_posteriors)


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

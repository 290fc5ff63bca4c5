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
from math import exp, log1p
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
        self._answer: Array = self.zero_shot

    @property
    def answer(self) -> np.ndarray:
        """The method's filtered posterior of the last sample (K,); uniform if the next sample follows none."""
        if not isinstance(self._answer, np.ndarray):
            self._answer = _host(self._answer)
        return self._answer

    @answer.setter
    def answer(self, posterior: Array) -> None:
        """Of any library: it is transferred from a GPU only if it is needed."""
        self._answer = posterior

    @property
    def stay(self) -> float:
        """The probability, for the filter, that the next sample has the class of the one before; below 1."""
        return self.stay_given(self.log_likelihoods.tolist())

    def stay_given(self, log_likelihoods: list[float]) -> float:
        """`trust` times the posterior mean of a, given the log-likelihood of each value."""
        highest = max(0.0, max(log_likelihoods) - self.penalty)
        total, mean = exp(-highest), 0.0  # random order has log-likelihood 0 and no penalty
        for a, log_likelihood in zip(STAY_VALUES[1:], log_likelihoods[1:], strict=True):
            weight = exp(log_likelihood - self.penalty - highest)
            total += weight
            mean += weight * a
        return self.trust * mean / total

    def stay_of(self, log_likelihoods: np.ndarray) -> np.ndarray:
        """`stay_given` for many rows of log-likelihoods (n, values)."""
        excess = log_likelihoods[:, 1:] - self.penalty
        highest = np.maximum(0.0, excess.max(axis=1))[:, None]
        weights = np.exp(excess - highest)
        means: np.ndarray = weights @ np.array(STAY_VALUES[1:])
        means *= self.trust / (np.exp(-highest[:, 0]) + weights.sum(axis=1))
        return means

    def _copy(self) -> StickyClasses:
        twin = StickyClasses.__new__(StickyClasses)
        twin.__dict__.update(self.__dict__)
        return twin

    def observe(self, y: np.ndarray) -> tuple[np.ndarray, StickyClasses]:
        """Count samples by their zero-shot posteriors `y` (n, K).

        Returns `stay` as it is before each sample, (n,), 0 where a sample follows none, and the chain after them.
        Neither depends on how a stream is divided into calls.
        """
        if not y.shape[0]:
            return np.zeros(0), self._copy()
        sums = _running_sums(self.posteriors, y)
        e = y / sums[:-1]
        e /= np.add.reduce(e, axis=1, keepdims=True)
        n_frequencies = float(self.frequencies.sum())
        log_likelihoods, follows = self.log_likelihoods.tolist(), self.follows
        stay = []
        f, frequencies, drawn = self.zero_shot.copy(), self.frequencies.copy(), np.empty(y.shape[1])
        for row in e:
            stay.append(self.stay_given(log_likelihoods) if follows else 0.0)
            n_drawn, same = float(frequencies.dot(row)), float(f.dot(row))
            new = n_drawn / n_frequencies
            if follows:
                excess = same / new - 1.0
                log_likelihoods = [
                    (1.0 - 1.0 / MEMORY) * before + log1p(a * excess)
                    for a, before in zip(STAY_VALUES, log_likelihoods, strict=True)
                ]
            follows = True
            a = STAY_VALUES[log_likelihoods.index(max(log_likelihoods[1:]), 1)]  # the likeliest order, if there is one
            total = a * same + (1.0 - a) * new
            np.multiply(frequencies, row, out=drawn)
            drawn *= 1.0 / n_drawn  # the posterior of the sample in random order
            frequencies += drawn
            n_frequencies += 1.0
            f *= row
            f *= a / total
            drawn *= (1.0 - a) * new / total
            f += drawn
        after = self.after(sums[-1].copy(), frequencies, f, np.array(log_likelihoods))
        return np.array(stay), after

    def after(
        self, posteriors: np.ndarray, frequencies: np.ndarray, zero_shot: np.ndarray, log_likelihoods: np.ndarray
    ) -> StickyClasses:
        """The chain after samples that were observed."""
        after = self._copy()
        after.posteriors, after.frequencies, after.zero_shot = posteriors, frequencies, zero_shot
        after.log_likelihoods, after.follows = log_likelihoods, True
        return after

    def balance(
        self, log_evidence: np.ndarray, exponents: np.ndarray, *, whole: bool = False
    ) -> tuple[np.ndarray, StickyClasses]:
        """The evidence (n, K) without what the method favours throughout, and the chain after.

        Each row is divided by the mean of the evidence over the stream, to the power of its entry of `exponents` (n,).
        The mean is over the samples before each one or, with `whole`, over all of them, as in a recording. `filter`,
        `LateAnswers` and `smooth` are given the balanced evidence.
        """
        after = self._copy()
        log_e, e = _scaled(log_evidence)
        e /= e.sum(axis=1, keepdims=True)
        sums = _running_sums(self.evidence, e)
        after.evidence = sums[-1].copy()
        means = sums[-1:] if whole else sums[:-1]
        means = means / means.sum(axis=1, keepdims=True)
        return log_e - exponents[:, None] * np.log(means), after

    def in_random_order(self, evidence: np.ndarray, posterior: Array) -> StickyClasses:
        """The chain after samples that are not filtered, with this sum of their evidence (K,). The last one has this
        posterior (K,), which must not be written to later."""
        after = self._copy()
        after.evidence, after.answer = self.evidence + evidence, posterior
        return after

    def filter(self, log_evidence: np.ndarray, stay: np.ndarray) -> tuple[np.ndarray, StickyClasses]:
        """Filtered log-posteriors (n, K) of samples, and the chain after them.

        `log_evidence` (n, K) is the logarithm of what each sample says about its class, up to a constant per row: the
        log-posterior of a classifier to which all classes are alike. A row without a finite maximum says nothing.
        `stay` (n,) is from `observe`.
        """
        log_e, e = _scaled(log_evidence)
        after = self._copy()
        f, share, total = self.answer, 1.0 / self.answer.size, 1.0
        priors, totals, products = np.empty_like(e), [], np.empty_like(self.answer)
        for prior, row, a in zip(priors, e, stay.tolist(), strict=True):
            # f is not normalised: it adds up to the total of the sample before.
            np.multiply(f, a / total, out=prior)
            prior += (1.0 - a) * share
            f = np.multiply(prior, row, out=products)
            total = float(np.dot(prior, row))  # never 0: the row has an entry 1, and every prior is positive
            totals.append(total)
        after.answer = f / total
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


def _running_sums(start: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """(n + 1, K): `start`, and after it the sums with the first row, the first two, and so on.

    Several times as fast as `numpy.cumsum` along this axis, which goes down the columns one by one.
    """
    sums = np.empty((rows.shape[0] + 1, rows.shape[1]))
    sums[0] = before = start
    for row, total in zip(rows, sums[1:], strict=True):
        before = np.add(before, row, out=total)
    return sums


def _scaled(log_evidence: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The evidence scaled so that the maximum of each row is 1: its logarithm, and itself."""
    top = log_evidence.max(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        log_e = np.where(np.isfinite(top), log_evidence - top, 0.0)
    return log_e, np.exp(log_e)


def _host(array: Array) -> np.ndarray:
    return np.array(to_numpy(array), dtype=np.float64)

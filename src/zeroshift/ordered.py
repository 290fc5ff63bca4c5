"""Online methods that use the order of their samples: answers at once, late, or for a whole recording."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import ClassVar, NamedTuple

import numpy as np

from zeroshift.arrays import Array, Backend, Rows, as_floats, check_matrix, is_double
from zeroshift.method import Method
from zeroshift.parameters import Number, parameter, state
from zeroshift.sticky import TRUST, LateAnswers, StickyClasses, smooth


class OrderedBlock(NamedTuple):
    """A block of samples: what is known of their classes, as logarithms (n, K), and what is final after them."""

    evidence: np.ndarray
    """What each sample says by itself, before it is balanced."""
    balanced: np.ndarray
    """What the filter is given."""
    filtered: np.ndarray
    """The filtered posteriors."""
    stay: np.ndarray
    """(n,) probability of having the class of the sample before."""
    temperature: float
    """The exponent of answers that are given at once."""


def _late_merged(mine: LateAnswers, theirs: LateAnswers) -> LateAnswers:
    if mine.due or theirs.due:
        raise ValueError(f"{mine.due + theirs.due} late answers are still due. Fix: call finish() of both first.")
    return mine


class OrderedMethod(Method):
    """An online method whose answers use the samples before each one and, if they may come later, those after it."""

    lag: int = parameter(
        Number(low=0, integer=True),
        "Samples that come before `adapt_late` answers; `adapt` always answers at once.",
        default=0,
    )

    _trust: ClassVar[float] = TRUST
    """Share of the estimated probability of staying that answers are filtered with."""

    _chain: StickyClasses = state(
        lambda self: StickyClasses(self.n_classes, trust=self._trust),
        saved_as="sticky_order",
        merge=StickyClasses.merged,
        check=lambda self, chain: chain.check(self._n_seen),
    )
    _late: LateAnswers = state(
        lambda self: LateAnswers(self.n_classes, self.lag), saved_as="sticky_late", merge=_late_merged
    )

    @property
    def stay(self) -> float:
        """The estimated probability that the next sample has the class of the one before, as the filter uses it."""
        return self._chain.stay

    @abstractmethod
    def _ordered_blocks(self, rows: Rows, *, late: bool) -> Iterator[tuple[OrderedBlock, np.ndarray]]:
        """Learn from the rows; yield their blocks and the late answers, as probabilities, that are final after each,
        which are none unless `late`. What is still due is stored in the same section as what was learned."""

    @abstractmethod
    def _final(self, log_posteriors: np.ndarray, stay: np.ndarray, temperature: np.ndarray | None = None) -> np.ndarray:
        """Probabilities to answer with, from filtered or smoothed log-posteriors (n, K); with the present temperature
        unless those of the samples (n,) are given."""

    @abstractmethod
    def _rebalanced(self, start: StickyClasses, evidence: np.ndarray, stay: np.ndarray) -> np.ndarray:
        """The evidence of a recording, balanced with means over all of it; `start` is the chain before it."""

    def adapt_late(self, features: Array) -> Array:
        """Learn from `features` and return the answers that are final now, (m, K): those of samples with `lag` samples
        after them, in order. The others come with later calls, or with `finish`; m may be 0.
        """
        matrix = self._checked_recording(features)
        return self._adapt_late(self._rows(matrix), matrix)

    def _adapt_late(self, rows: Rows, given: Array) -> Array:
        if not len(rows):
            return self._no_answers(given)

        def run() -> np.ndarray:
            return np.concatenate([final for _, final in self._ordered_blocks(rows, late=True)])

        return self._learn_and_answer(run, given)

    def finish(self) -> Array:
        """The answers that `adapt_late` has not returned yet, (m, K), in the library of the prototypes. The stream may
        continue."""

        def run() -> np.ndarray:
            answers, none_due = self._late.finish()
            answers = self._final(answers, self._late.stay)
            with self._learning(0):
                self._late = none_due
            return answers

        return self._learn_and_answer(run, self.prototypes)

    def smooth(self, features: Array) -> Array:
        """Learn from a recording, features (N, d) in order, and answer every sample from all of them: (N, K).

        One probability of staying, that at the end of the recording, is used for all samples.
        """
        matrix = self._checked_recording(features)
        return self._smooth(self._rows(matrix), matrix)

    def _smooth(self, rows: Rows, given: Array) -> Array:
        if not len(rows):
            return self._no_answers(given)

        def run() -> np.ndarray:
            self._check_none_due("smooth")
            start = self._chain
            blocks = [block for block, _ in self._ordered_blocks(rows, late=False)]
            evidence = np.concatenate([block.evidence for block in blocks])
            temperatures = np.concatenate([np.full(len(block.stay), block.temperature) for block in blocks])
            stay = np.full(len(evidence), self.stay)
            stay[0] *= start.follows
            balanced = self._rebalanced(start, evidence, stay)
            filtered, _ = start.filter(balanced, stay)
            return self._final(smooth(filtered, balanced, stay), stay, temperatures)

        return self._learn_and_answer(run, given)

    def _checked_recording(self, features: Array) -> Array:
        features = as_floats("features", features)
        matrix = features[None, :] if len(features.shape) == 1 else features
        return check_matrix("features", matrix, columns=self.dimension, classes=self.n_classes, empty=True)

    def _learn_and_answer(self, run: Callable[[], np.ndarray], given: Array) -> Array:
        """What `run` returns, in a call that learns, in the library, device and precision of `given`."""

        def collect() -> Array:
            self._check_usable()
            caller = Backend.of(given)
            with Backend.of(self.prototypes).computing():
                return caller.asarray(run(), caller.xp.float64 if is_double(given) else caller.xp.float32)

        return self._in_turn(True, collect)

    def _check_none_due(self, call: str) -> None:
        if self._late.due:
            raise RuntimeError(
                f"{self._late.due} answers of adapt_late are still due, and {call} answers at once. "
                "Fix: call finish() first, or continue with adapt_late."
            )

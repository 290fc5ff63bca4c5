"""The transductive mixture: the whole set at once, in rounds of predicting every sample and counting it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

from zeroshift.arrays import Array, Home, Rows, check_matrix
from zeroshift.mixture.base import AnchoredMixture
from zeroshift.mixture.statistics import Mixture
from zeroshift.mixture.sums import Sums
from zeroshift.parameters import Number, Optional, array_parameter, parameter

__all__ = ["TransductiveAnchoredMixture"]

FEWEST_ROWS = 16
"""However small the budget: fewer rows make the products slow and save next to nothing."""

CACHED_NUMBERS = 1_000_000
"""Numbers in one chunk's features and scores on a processor: what stays in its caches is worked on faster."""

ARRAYS_A_ROW = 10
"""Arrays of K numbers held for a row at once: posteriors, distances, what is read from them, and steps between.
Measured: up to nine."""

BY_ORDER = ("correlation", "relief")
"""Parameters that say what to do about the order samples come in, which a set does not have."""


class Learned(NamedTuple):
    """Put in place at once, or not at all."""

    sums: Sums
    mixture: Mixture | None


class TransductiveAnchoredMixture(AnchoredMixture):
    """Adapts to a whole set at once: rounds of estimating a Gaussian mixture from every sample's posterior, its means
    anchored at the text, and of predicting every sample from it.

    `adapt` starts afresh from the set it is given; `predict` then scores other features with what that set taught. For
    a set in several places, see `survey` and `merge`, or `adapt_shards`.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift import TransductiveAnchoredMixture
    >>> features = np.eye(3, 8)[[0, 1, 2, 1] * 3]
    >>> TransductiveAnchoredMixture(np.eye(3, 8), logit_scale=10.0).adapt(features).argmax(axis=1)[:4]
    array([0, 1, 2, 1])

    Notes
    -----
    Our own method; docs/anchored-mixture.md derives it. How sure the answers are is decided in the last round, by means
    that leave each sample's own share out.
    """

    name = "anchored_mixture_transductive"
    protocol = "transductive"
    complexity = "O(R (N K d + K d^2 + d^3)), R = rounds"

    rounds: int = parameter(Number(low=1, integer=True), "How often every sample is predicted and counted.", default=10)
    support: tuple[Array, Array] | None = array_parameter(
        "As for `OnlineAnchoredMixture`. A set has no order, so only `balance` makes the mixture cautious.",
        default=None,
    )
    memory_budget: int = parameter(
        Number(low=1, integer=True),
        "Bytes of work space beside the features and the answer, 256 MB by default: rows are worked on in chunks that fit. Features may be memory-mapped and larger than memory.",
        default=256_000_000,
        reload=True,
    )
    chunk_size: int | None = parameter(
        Optional(Number(low=1, integer=True)),
        "Rows worked on together, in place of as many as the budget allows. Neither changes the answer beyond rounding.",
        default=None,
        reload=True,
    )

    correlation, relief = 1.0, 0.0

    @property
    def _mixture(self) -> Mixture | None:
        return self._learned.mixture

    def _all_sums(self) -> Sums:
        return self._learned.sums

    def _take(self, sums: Sums, n_seen: int) -> None:
        self._learned, self.n_seen = Learned(sums, self._estimated(sums)), n_seen

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        self.reset()
        try:
            sums = self._surveyed(rows, self._mixture, answering=self.rounds == 1)
            mixture = self._estimated(sums)
            for number in range(2, self.rounds + 1):
                if mixture is None:
                    break  # too few samples: they will not be more
                sums = self._relabelled(rows, sums, mixture, answering=number == self.rounds)
                mixture = self._estimated(sums)
        except BaseException:
            # Interrupted, or out of memory: half a set teaches nothing.
            self.reset()
            raise
        self._learned, self.n_seen = Learned(sums, mixture), len(rows)
        yield from self._predict_blocks(rows)

    def _adapt_view_scores(self, images: Rows) -> Iterator[tuple[slice, Array]]:
        return self._adapt_scores(self._averaged(images).materialize())

    def survey(self, features: Array) -> TransductiveAnchoredMixture:
        """One round over a part of a set: a method that knows these rows alone, as the present statistics see them.

        The surveys of all parts, merged, are the next round's statistics; `adapt` is that `rounds` times, from a method
        that has learned nothing.
        """
        check_matrix("features", features, columns=self.dimension)
        home = Home.of(self.prototypes)
        rows = Rows(features, home, home.xp.float64)
        found = self.clone()
        with home.computing():
            found._take(self._surveyed(rows, self._mixture, answering=True), len(rows))
        return found

    def adapt_shards(self, shards: Sequence[Array]) -> list[Array]:
        """`adapt` of a set that lies in several arrays: the answers for each, as if they were one."""
        if not shards:
            raise ValueError("shards is empty; at least one array of features is needed.")
        whole = self.clone()
        for _ in range(self.rounds):
            whole = reduce(TransductiveAnchoredMixture.merge, [whole.survey(shard) for shard in shards])
        self._learned, self.n_seen = whole._learned, whole.n_seen
        return [self.predict(shard) for shard in shards]

    def _surveyed(self, rows: Rows, mixture: Mixture | None, *, answering: bool) -> Sums:
        """The rows' sums, counted by the mixture's posteriors, or by zero-shot's where there is none yet."""
        home = Home.of(self.prototypes)
        xp = home.xp
        sums = Sums.none(home, self.n_classes, self.dimension)
        for _, x in rows.blocks(self._chunk_rows, reuse=True):
            log_y = self._log_y(x)
            y = q = xp.exp(log_y)
            if mixture is not None:
                q, confidences = self._read(x, log_y, mixture, answering=answering)
                sums = sums if confidences is None else sums.answering(confidences)
            sums = sums.learned(x, q).watching(y, None, in_order=False)
        return sums

    def _relabelled(self, rows: Rows, sums: Sums, mixture: Mixture, *, answering: bool) -> Sums:
        """The rows' sums, counted anew: what does not depend on the labels is taken from an earlier round."""
        sums = sums.unlabelled()
        head = mixture.head(self._wide_prototypes, self.logit_scale)
        for _, x in rows.blocks(self._chunk_rows, reuse=True):
            if answering:
                q, confidences = self._read(x, self._log_y(x), mixture, answering=True)
                sums = sums.answering(confidences)
            else:
                q = head.posteriors(x)
            sums = sums.relabelled(x, q)
        return sums

    def _read(self, x: Array, log_y: Array, mixture: Mixture, *, answering: bool) -> tuple[Array, Array | None]:
        """Posteriors to count by, and where it is answered, what decides how sure the answers may be."""
        distances = mixture.distances(x)
        reading = mixture.read(log_y, distances)
        if not answering:
            return reading.posteriors, None
        others = mixture.left_out(distances, reading.posteriors)
        return reading.posteriors, mixture.confidences(log_y, others, reading.answer)

    @property
    def _chunk_rows(self) -> int:
        """Rows worked on together."""
        if self.chunk_size:
            return self.chunk_size
        classes, d = self.n_classes, self.dimension
        learned = 8 * (8 * classes * d + 6 * d * d)
        room = (self.memory_budget - learned) // (8 * (ARRAYS_A_ROW * classes + 3 * d))
        if not Home.of(self.prototypes).on_gpu:
            room = min(room, CACHED_NUMBERS // (classes + d))
        return max(FEWEST_ROWS, room)

    @property
    def _predict_rows(self) -> int:
        return self._chunk_rows

    def _state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        return self._learned.sums.arrays(), {}

    def _restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        self._take(self._learned.sums.restored(arrays), self.n_seen)

"""The transductive mixture: rounds over the whole set that predict every sample and count it by its prediction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any, ClassVar

import numpy as np

from zeroshift.arrays import Array, Backend, Rows, check_matrix, to_numpy
from zeroshift.mixture.base import CHECKED_ROWS, AnchoredMixture
from zeroshift.mixture.scoring import HALF_ROWS, HalfProducts, Scorer, new_columns
from zeroshift.mixture.statistics import (
    Distances,
    Gaussians,
    Mixture,
    log_posteriors_of,
    normalize_scores,
    posteriors_of,
)
from zeroshift.mixture.sums import SetSums, Sums
from zeroshift.parameters import Number, Optional, parameter, state
from zeroshift.passes import Learning, Pass, on_device
from zeroshift.state_checks import check_range
from zeroshift.threads import count_threads, own_threads

__all__ = ["TransductiveAnchoredMixture"]

MIN_ROWS = 16
"""Rows processed together even with a tiny budget: fewer make the products slow and save almost nothing."""

LABEL_SHARE = 0.1
"""How much of the error of a posterior may reach an answer if it is used as a label: the mean over many samples, whose
errors have nothing to do with each other, is counted."""

STILL = 1e-5
"""Largest change of a posterior by all rounds that are left out."""

FIRST_ROWS = 256
"""Rows whose mean, and whose mean posterior, are close to those of all."""

CACHED_NUMBERS = 2_000_000
"""Numbers in the features and scores of one chunk on a CPU, chosen so that they stay in its caches."""

WHOLE_ROUNDS = 3
"""First rounds that are over all rows even if the others are over samples."""

LEAST_SHARE = 0.5
"""A class keeps at least this share of the samples that a sample alone says, whatever the changes say."""

ARRAYS_TO_COUNT, ARRAYS_FOR_CHANGES, ARRAYS_FOR_ZERO_SHOT, ARRAYS_TO_PREDICT, ARRAYS_FOR_ALL = 3, 5, 5, 5, 10
"""Arrays of K numbers in memory per row: in a round that only counts, in one that compares labels, in one that counts
zero-shot posteriors, for answers, and in one that computes posteriors, distances and confidences. Measured: up to one
less."""

HALF_ARRAYS_TO_COUNT, HALF_ARRAYS_FOR_ZERO_SHOT, HALF_ARRAYS_TO_PREDICT, HALF_ARRAYS_FOR_ALL = 3, 3, 3, 6
"""The same where products are those of halves."""

COLUMNS, HALF_COLUMNS = 3, 5
"""Arrays of d numbers in memory per row."""


class TransductiveAnchoredMixture(AnchoredMixture):
    """Adapts to a whole set: rounds of estimating a Gaussian mixture, with means anchored at the text, from the
    posterior of every sample, and of predicting every sample from it.

    `adapt` replaces what was learned before; `predict` scores other features with what was learned from the last set.
    For a set stored in several places, see `survey` and `merge`, or `adapt_shards`.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift import TransductiveAnchoredMixture
    >>> features = np.eye(3, 8)[[0, 1, 2, 1] * 3]
    >>> TransductiveAnchoredMixture(np.eye(3, 8), logit_scale=10.0).adapt(features).argmax(axis=1)[:4]
    array([0, 1, 2, 1])

    Notes
    -----
    Our own method; docs/anchored-mixture.md derives it. The last round sets the temperature of the answers, with means
    that leave out each sample's own contribution.
    """

    name = "anchored_mixture_transductive"
    headline = "Gaussian mixture anchored at the prototypes"
    protocol = "transductive"
    complexity = "O(R (N K d + K d^2 + d^3)), R = rounds"

    rounds: int = parameter(
        Number(low=1, integer=True), "How many times every sample is predicted and counted.", default=10
    )
    memory_budget: int = parameter(
        Number(low=1, integer=True),
        "Bytes of working memory in addition to the features and the answer, 256 MB by default. Rows are processed in "
        "chunks that fit. Features may be memory-mapped and larger than memory.",
        default=256_000_000,
        reload=True,
    )
    chunk_size: int | None = parameter(
        Optional(Number(low=1, integer=True)),
        "Rows that a thread processes together, instead of as many as the budget allows. It changes the answer only by "
        "rounding.",
        default=None,
        reload=True,
    )

    few_classes_weight: float = parameter(
        Number(low=0, high=1),
        "Share of its weight that the Gaussian log-likelihood has in a set with few of the classes.",
        default=0.5,
    )
    proportions: float = parameter(
        Number(low=0),
        "Weight of the proportions of the classes in a set with few of them; none if all classes occur.",
        default=1.0,
    )

    relative_samples = 1.0  # a set has no order
    _takes_many_rows = True

    _sums: Sums = state(
        lambda self: self._zero_sums(),
        saved_as="",
        merge="sum",
        check=lambda self, sums: check_range("the sum of posteriors", round(sums.n_samples, 3), *2 * [self.n_seen]),
    )

    def _current_sums(self) -> Sums:
        return self._sums

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        if self._float64_only:
            rows = rows.wide()
        sums, scorer, rounds = self._learn(rows)
        some = rows[:CHECKED_ROWS]
        if some.dtype != Backend.of(some).xp.float64 and not self._float32_passes(some, scorer, many=True):
            rows = rows.wide()
            sums, scorer, rounds = self._learn(rows)
        with self._learning(len(rows), replace=True):
            self._sums, self._mixture, self._scorer = sums, scorer.mixture, scorer
            self._diagnostics.rounds = rounds
        yield slice(0, len(rows)), partial(self._predict_part, rows)

    def _predict_part(self, rows: Rows, part: slice) -> Iterator[tuple[slice, Array]]:
        first = self._for_products(rows[part.start : part.start + 1], self._scorer, self._scorer.temperature)
        size = self._chunk_rows(first.dtype.itemsize, ARRAYS_TO_PREDICT)
        if first.shape[1] == self.dimension and self._scorer.uses_halves(first, many=size >= HALF_ROWS):
            size = self._chunk_rows(first.dtype.itemsize, HALF_ARRAYS_TO_PREDICT, HALF_COLUMNS)
        for block, x in rows.blocks(size, within=part):
            yield block, self._predict_scores(x)

    def _learn(self, rows: Rows) -> tuple[Sums, Scorer, int]:
        """The sums and the mixture after the last round, and the number of rounds.

        The labels have stopped moving if the rounds that are left, each of which moves them no more than the last one
        did, change no posterior by more than `STILL`. The next round is then the last one.
        """
        number, last_round, before = 1, self.rounds == 1, None
        sums = self._count(rows, self._scorer_of(self._estimate(self._zero_sums())), None, last_round)
        scorer = self._scorer_of(self._estimate(sums))
        while scorer.mixture is not None and not last_round:
            number += 1
            last_round = number == self.rounds or self._still(scorer, before, self.rounds - number)
            sums, before = self._count(rows, scorer, sums, last_round), scorer
            scorer = self._scorer_of(self._estimate(sums))
        return sums, scorer, number

    def _still(self, scorer: Scorer, before: Scorer | None, rounds: int) -> bool:
        """Whether this many further rounds hardly move the labels, judged by the last one."""
        if before is None or scorer.mixture is None or scorer.mixture.second is not None:
            return False
        wide = self._wide_prototypes.dtype
        return rounds * scorer.head(wide).movement(before.head(wide)) <= STILL

    def _adapt_view_scores(self, images: Rows) -> Iterator[tuple[slice, Array]]:
        return self._adapt_scores(self._averaged(images).materialize())

    def survey(self, features: Array, *, second: Array | None = None) -> TransductiveAnchoredMixture:
        """One round over a part of a set: a method that has learned only these rows, with the present statistics.

        The surveys of all parts, merged, are the statistics of the next round; `adapt` does this `rounds` times,
        starting from a method that has learned nothing.
        """
        if second is None:
            rows = self._rows(check_matrix("features", features, columns=self.dimension, classes=self.n_classes))
        else:
            rows = self._both_rows(features, second)[0]
        return self._in_turn(False, self._survey, rows)

    def _survey(self, rows: Rows) -> TransductiveAnchoredMixture:
        self._check_usable()
        self._check_second(rows[:1].shape[1], self._sums.second_dimension)
        part = self.clone()
        with Backend.of(self.prototypes).computing(), part._learning(len(rows)):
            part._sums = self._count(rows, self._scorer, None, True)
            part._derive()
        return part

    def adapt_shards(self, shards: Iterable[Array]) -> list[Array]:
        """`adapt` for a set that is stored in several arrays: the answers for each, as if they were one."""
        if not isinstance(shards, Iterable):
            raise TypeError(f"shards must be a list of arrays of features; got {type(shards).__name__}. Fix: [shards].")
        checked = [
            check_matrix(f"shards[{i}]", shard, columns=self.dimension, classes=self.n_classes)
            for i, shard in enumerate(shards)
        ]
        if not checked:
            raise ValueError("shards is empty; at least one array of features is needed.")
        return self._in_turn(True, self._adapt_shards, checked)

    def _adapt_shards(self, shards: Sequence[Array]) -> list[Array]:
        self._check_usable()
        whole = self.clone()
        for _ in range(self.rounds):
            whole = reduce(TransductiveAnchoredMixture.merge, [whole.survey(shard) for shard in shards])
        with self._learning(whole.n_seen, replace=True):
            self._sums = whole._sums
            self._use(whole._mixture)
        return [self.predict(shard) for shard in shards]

    def learn_in_passes(self, first: Array, *, sampled: bool = False) -> Learning:
        """Learn a set that is stored in parts: see `zeroshift.passes`. `first` are its first rows, 256 or all.

        If `sampled`, the first three rounds and the last one are over all rows. Each of the others is over another
        sample, of which it takes how labels differ from those of the third round: that varies less from sample to
        sample than the labels themselves.
        """
        first = check_matrix("first", first[:FIRST_ROWS], columns=self.dimension, classes=self.n_classes)
        while True:
            rows = self._rows(first)
            wide = self._float64_only or rows.dtype == Backend.of(self.prototypes).xp.float64
            if wide:
                rows = rows.wide()
            sums, rounds = yield from self._rounds_in_passes(rows, sampled)
            scorer = self._scorer_of(self._estimate(sums))
            if wide or self._float32_passes(rows[:CHECKED_ROWS], scorer, many=True):
                break
        self._in_turn(True, self._publish, sums, scorer, rounds)

    def _publish(self, sums: Sums, scorer: Scorer, rounds: int) -> None:
        with self._learning(round(sums.n_samples), replace=True):
            self._sums = sums
            self._use(scorer.mixture)
            self._diagnostics.rounds = rounds

    def _rounds_in_passes(self, first: Rows, sampled: bool) -> Any:
        """As `_learn`: the sums of the last round, and the number of rounds."""
        number, last_round, sums = 1, self.rounds == 1, None
        before: Scorer | None = None
        whole: WholeRound | None = None
        scorer = self._scorer_of(self._estimate(self._zero_sums()))
        while True:
            sample = number - WHOLE_ROUNDS - 1 if sampled and number > WHOLE_ROUNDS and not last_round else None
            work = self._pass(first, scorer, sums, last_round, sample, whole)
            sums = work.total_sums(self, (yield work))
            if sampled and number == WHOLE_ROUNDS and work.sums is not None:
                whole = WholeRound(work.sums, sums)
            before, scorer = scorer, self._scorer_of(self._estimate(sums))
            if scorer.mixture is None or last_round:
                break
            number += 1
            earlier = None if before.mixture is None else before
            last_round = number == self.rounds or self._still(scorer, earlier, self.rounds - number)
        return sums, number

    def _pass(
        self,
        first: Rows,
        scorer: Scorer,
        earlier: Sums | None,
        last_round: bool,
        sample: int | None,
        whole: WholeRound | None,
    ) -> MixturePass:
        """A round with this scorer, which follows from `earlier`, as a pass over parts; for a sample, of the labels'
        changes since the `whole` round."""
        x = self._for_products(first[:FIRST_ROWS], scorer, LABEL_SHARE)
        mixture = scorer.mixture
        typical = None if earlier is not None else to_numpy(posteriors_of(scorer.text.of(x)).mean(axis=0))
        return MixturePass(
            type(self),
            self.get_params(),
            None if earlier is None else earlier.arrays(),
            to_numpy(_origin(x, None if mixture is None else mixture.gaussians)),
            typical,
            counted=earlier is not None,
            last_round=last_round,
            wide=first.dtype == Backend.of(self.prototypes).xp.float64,
            sample=sample,
            first_visit=earlier is None,
            whole=None if sample is None else whole,
            _of_driver=(self, scorer, earlier),
        )

    def _count(self, rows: Rows, scorer: Scorer, earlier: Sums | None, last_round: bool) -> Sums:
        """The sums over the rows, with the mixture's posteriors as labels, or zero-shot's if there is none yet. What
        does not depend on labels is that of `earlier`, sums over the same rows, if they are given."""
        if not len(rows):
            raise ValueError("there are no rows")
        mixture = scorer.mixture
        first = self._for_products(rows[:FIRST_ROWS], scorer, LABEL_SHARE)
        x, second = self._parts(first)
        origin = _origin(x, None if mixture is None else mixture.gaussians)
        second_origin = None if second is None else _origin(second, None if mixture is None else mixture.second)
        # Not needed if the sums of the posteriors are known.
        typical = None if earlier is not None else posteriors_of(scorer.text.of(x)).mean(axis=0)
        known = earlier or self._zero_sums(first.shape[1] - self.dimension)

        def count(part: slice) -> SetSums:
            sums = SetSums(known, origin, second_origin, typical)
            self._count_part(rows, part, scorer, sums, counted=earlier is not None, last_round=last_round)
            return sums

        with own_threads(Backend.of(self.prototypes).library, scores=len(rows) * self.n_classes) as threads:
            return reduce(SetSums.add, threads.map(count, threads.split(len(rows)))).result()

    def _count_part(
        self, rows: Rows, part: slice, scorer: Scorer, sums: SetSums, *, counted: bool, last_round: bool
    ) -> None:
        """Add a part of the rows to the sums; only their labels if they were `counted` in an earlier round."""
        backend, d, mixture = Backend.of(self.prototypes), self.dimension, scorer.mixture
        linear = mixture is not None and mixture.second is None and counted and not last_round
        some = self._for_products(rows[part.start : part.start + 1], scorer, LABEL_SHARE)
        dtype, count = some.dtype, part.stop - part.start
        if some.shape[1] == d and scorer.uses_halves(some, many=count >= HALF_ROWS):
            arrays = HALF_ARRAYS_TO_COUNT if linear else HALF_ARRAYS_FOR_ZERO_SHOT
            arrays = arrays if linear or mixture is None else HALF_ARRAYS_FOR_ALL
            size = self._chunk_rows(dtype.itemsize, arrays, HALF_COLUMNS)
            self._count_in_halves(rows, part, min(count, size), scorer, sums, counted=counted, last_round=last_round)
            return
        arrays = ARRAYS_TO_COUNT if linear else ARRAYS_FOR_ZERO_SHOT if mixture is None else ARRAYS_FOR_ALL
        size = min(count, self._chunk_rows(dtype.itemsize, arrays))
        columns, scores = new_columns(backend, size, d, dtype), backend.zeros((size, self.n_classes), dtype)
        origin, second_origin = (None if one is None else backend.asarray(one, dtype) for one in sums.origins)
        for _, block in rows.blocks(size, reuse=True, within=part):
            both = self._for_products(block, scorer, LABEL_SHARE)
            (x, second), n = self._parts(both), both.shape[0]
            chunk, out = columns[:n], scores[:n]
            relative = None if second is None else second - second_origin
            if linear:
                head = scorer.head(x.dtype)
                backend.xp.matmul(head.columns(x, chunk), head.matrix.T, out=out)
                sums.add_labels(chunk, posteriors_of(out), relative)
                continue
            backend.xp.subtract(x, origin, out=chunk[:, :d])
            logits = scorer.text.of(x, out)
            log_y, y = (log_posteriors_of(logits), None) if counted else normalize_scores(logits)
            q = y
            if mixture is not None:
                narrow = scorer.mixture_in(x.dtype)
                q = self._soft_labels(
                    narrow.distances(x, second), log_y, narrow, sums, with_confidences=last_round
                )  # fmt: skip
            sums.add_labels(chunk, q, relative)
            if y is not None:
                sums.add_features(chunk, y, relative)

    def _count_in_halves(
        self, rows: Rows, part: slice, size: int, scorer: Scorer, sums: SetSums, *, counted: bool, last_round: bool
    ) -> None:
        """As `_count_part`, `size` rows at a time, for float32 products on a GPU without a second encoder."""
        backend = Backend.of(self.prototypes)
        products = scorer.in_halves(sums.origins[0])
        columns = None if counted else new_columns(backend, size, self.dimension, backend.xp.float32)
        for _, x in rows.blocks(size, reuse=True, within=part):
            self._count_chunk_in_halves(x, products, scorer, sums, columns, last_round=last_round)

    def _count_chunk_in_halves(
        self,
        x: Array,
        products: HalfProducts,
        scorer: Scorer,
        sums: SetSums,
        columns: Array | None,
        *,
        last_round: bool,
    ) -> None:
        """`columns` is memory for features that were not counted in an earlier round. Nothing has a name that is not
        needed any more: it would stay in memory."""
        relative, prepared = products.rows(x)
        if columns is None and not last_round and scorer.mixture is not None:
            sums.add_half_labels(prepared, posteriors_of(products.scores(relative, prepared)))
            return
        y = None if columns is None else posteriors_of(products.logits(prepared))
        if scorer.mixture is None:
            sums.add_half_labels(prepared, y)
        else:
            mixture = scorer.mixture_in(x.dtype)
            labels = self._soft_labels(
                products.distances(relative, prepared, mixture),
                log_posteriors_of(products.logits(prepared)),
                mixture,
                sums,
                with_confidences=last_round,
            )
            sums.add_half_labels(prepared, labels)
        if y is not None and columns is not None:
            chunk = columns[: x.shape[0]]
            chunk[:, : self.dimension] = relative
            sums.add_features(chunk, y, None)

    def _count_changes(self, rows: Rows, scorers: Sequence[Scorer], origin: np.ndarray) -> dict[str, np.ndarray]:
        """How the labels by the first scorer differ from those by the second, added up over the rows: times features
        relative to the origin; squared; and squared times the squared distance to the mean of the class. Also the sum
        of the labels."""
        backend, d = Backend.of(self.prototypes), self.dimension
        changes = backend.zeros((self.n_classes, d + 1))
        counts, squares, moments = (backend.zeros((self.n_classes,)) for _ in range(3))
        mixture = scorers[1].mixture
        assert mixture is not None
        means = mixture.gaussians.means - backend.asarray(origin)
        lengths = backend.xp.linalg.vecdot(means, means)
        first = self._for_products(rows[:1], scorers[0], LABEL_SHARE)
        size = min(len(rows), self._chunk_rows(first.dtype.itemsize, ARRAYS_FOR_CHANGES))
        for _, block in rows.blocks(size, reuse=True):
            x = self._for_products(block, scorers[0], LABEL_SHARE)
            labels = posteriors_of(scorers[0].scores(x, None))
            counts += backend.xp.sum(labels, axis=0)
            labels -= posteriors_of(scorers[1].scores(x, None))
            relative = x - backend.asarray(origin, x.dtype)
            changes[:, :d] += labels.T @ relative
            changes[:, d] += backend.xp.sum(labels, axis=0)
            labels *= labels
            squares += backend.xp.sum(labels, axis=0)
            distances = relative @ backend.asarray(-2.0 * means, x.dtype).T
            distances += backend.asarray(lengths, x.dtype)
            distances += backend.xp.linalg.vecdot(relative, relative)[:, None]
            distances *= labels
            moments += backend.xp.sum(distances, axis=0)
        found = {"changes": changes, "squares": squares, "moments": moments, "counts": counts}
        return {name: to_numpy(numbers) for name, numbers in found.items()} | {"rows": np.array(len(rows))}

    def _soft_labels(
        self, distances: Distances, log_y: Array, mixture: Mixture, sums: SetSums, *, with_confidences: bool
    ) -> Array:
        """Posteriors to count by. What the last round needs for the temperature and, with a second encoder, every round
        for its weight, is added to the sums. The distances are overwritten."""
        scores = mixture.log_likelihoods(distances)
        scores += log_y
        answer, posteriors = normalize_scores(scores)
        if with_confidences or distances.second is not None:
            others = mixture.leave_one_out(distances, posteriors)
            if others.second is not None:
                sums.add_agreement(*mixture.single_posteriors(log_y, others))
            if with_confidences:
                sums.add_confidences(mixture.confidences(log_y, others, answer))
        return posteriors

    def _chunk_rows(self, size: int, arrays: int, columns: int = COLUMNS) -> int:
        """Rows that every thread processes together, if each needs this many arrays of K numbers of `size` bytes, and
        of d."""
        if self.chunk_size:
            return self.chunk_size
        classes, d, threads = self.n_classes, self.dimension, count_threads(Backend.of(self.prototypes).library)
        bytes_for_statistics = 8 * (10 * classes * d + 8 * d * d) + (threads - 1) * (8 + size) * (classes + d) * d
        rows = (self.memory_budget - bytes_for_statistics) // (threads * size * (arrays * classes + columns * d))
        if not Backend.of(self.prototypes).on_gpu:
            rows = min(rows, CACHED_NUMBERS // (classes + d))
        return max(MIN_ROWS, rows)

    @property
    def _predict_rows(self) -> int:
        return self._chunk_rows(8, ARRAYS_TO_PREDICT)


def _origin(features: Array, gaussians: Gaussians | None) -> Array:
    """The origin of the Gaussians; without any, a point near the features that float32 holds exactly."""
    if gaussians is not None:
        return gaussians.origin
    xp = Backend.of(features).xp
    return xp.astype(xp.astype(xp.mean(features, axis=0), xp.float32), xp.float64)


@dataclass(frozen=True)
class WholeRound:
    """A round over all rows."""

    sums: Mapping[str, Array]
    """That its labels follow from."""
    result: Sums | None
    """The sums with these labels."""


@dataclass
class MixturePass(Pass):
    """A round of the mixture. What is sent is the sums of the round before: K d + d^2 numbers."""

    not_state: ClassVar[frozenset[str]] = frozenset({"_ready", "_of_driver"})

    method: type[TransductiveAnchoredMixture]
    params: Mapping[str, Any]
    sums: Mapping[str, Array] | None
    """Of the round before; None in the first round. In the library of the method, until they are sent."""
    origin: np.ndarray
    typical: np.ndarray | None
    counted: bool
    """Whether the sums of the features are known from an earlier round over the same rows."""
    last_round: bool
    wide: bool
    """Whether products are float64."""
    sample: int | None = None
    first_visit: bool = True
    whole: WholeRound | None = None
    """The round over all rows that the labels of a sample are compared with."""
    _ready: dict[str | None, tuple[TransductiveAnchoredMixture, list[Scorer]]] = field(default_factory=dict, repr=False)
    """The method, with the scorer of these sums and that of the whole round, by device."""
    _of_driver: tuple[TransductiveAnchoredMixture, Scorer, Sums | None] | None = field(default=None, repr=False)
    """The driver's method and scorer, and the sums of the round before if the features are counted; not sent."""

    def __getstate__(self) -> dict[str, Any]:
        whole = None if self.whole is None else WholeRound(_in_numpy(self.whole.sums), None)
        sums = None if self.sums is None else _in_numpy(self.sums)
        params = self._params_in_numpy()
        return {**self.__dict__, "params": params, "sums": sums, "whole": whole, "_ready": {}, "_of_driver": None}

    def _params_in_numpy(self) -> dict[str, Any]:
        return {**self.params, "prototypes": to_numpy(self.params["prototypes"])}

    def part(self, rows: Array, first_row: int, device: str | None) -> dict[str, np.ndarray]:
        if device not in self._ready:
            method, scorer = self._made(device)
            scorers = [scorer]
            if self.whole is not None:
                scorers.append(method._scorer_of(method._estimate(_sums_like(method, self.whole.sums))))
            self._ready[device] = method, scorers
        method, scorers = self._ready[device]
        checked = method._rows(rows)
        checked = checked.wide() if self.wide else checked
        with Backend.of(method.prototypes).computing():
            if self.whole is not None:
                return method._count_changes(checked, scorers, self.origin)
            found = self._new_sums(method, None)
            method._count_part(
                checked, slice(0, len(checked)), scorers[0], found, counted=self.counted, last_round=self.last_round
            )
        return found.numbers()

    def _made(self, device: str | None) -> tuple[TransductiveAnchoredMixture, Scorer]:
        if self._of_driver is not None and device is not None:
            method, scorer, _ = self._of_driver
            own = Backend.of(method.prototypes)
            if own.library == "torch" and own.device == own.xp.empty(0, device=device).device:
                return method, scorer  # the driver is this process, and has estimated the same
        made = self.method(**on_device(self._params_in_numpy(), device))
        known = made._zero_sums() if self.sums is None else _sums_like(made, self.sums)
        return made, made._scorer_of(made._estimate(known))

    def _new_sums(self, method: TransductiveAnchoredMixture, earlier: Sums | None) -> SetSums:
        backend = Backend.of(method.prototypes)
        origin = backend.asarray(self.origin, backend.xp.float64)
        typical = None if self.typical is None else backend.asarray(self.typical)
        return SetSums(earlier or method._zero_sums(), origin, None, typical)

    def add(self, total: dict[str, np.ndarray], part: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        for name, numbers in part.items():
            if name in total:
                total[name] += numbers
            else:
                total[name] = np.array(numbers)  # a part may not be written to
        return total

    def total_sums(self, method: TransductiveAnchoredMixture, total: Mapping[str, np.ndarray]) -> Sums:
        """The sums over all rows, from the added results of the parts; for a sample, an estimate of them."""
        if self.whole is not None and self.whole.result is not None:
            return _changed(self.whole.result, total, self.origin)
        earlier = None
        if self.counted and self.sums is not None:
            earlier = _sums_like(method, self.sums) if self._of_driver is None else self._of_driver[2]
        return self._new_sums(method, earlier).add_numbers(total).result()


def _changed(whole: Sums, total: Mapping[str, np.ndarray], origin: np.ndarray) -> Sums:
    """The sums of a round over all rows, with the changes of the labels of a sample, as if they were those of all.

    The changes of the means are multiplied by the share of their squares that is not explained by chance, and so are
    those of the numbers of samples: with few rows per class, little but noise changes, and it would add up.
    """
    backend, d = Backend.of(whole.counts), origin.shape[0]
    xp = backend.xp
    n = whole.n_samples
    share = float(total["rows"]) / n
    changes, squares, moments, alone = (
        backend.asarray(total[name], xp.float64) / share for name in ("changes", "squares", "moments", "counts")
    )
    variance = (1.0 - share) / share  # of a sum over the sample, relative to the sum of squares
    changed = changes[:, d]
    features = changes[:, :d] + changed[:, None] * backend.asarray(origin, xp.float64)
    means = whole.weighted / _positive(whole.counts)[:, None]
    counts = _positive(xp.maximum(whole.counts + changed, LEAST_SHARE * xp.maximum(whole.counts, alone)))
    moves = (features - changed[:, None] * means) / counts[:, None]
    means = means + _not_chance(variance * moments / counts, counts * xp.linalg.vecdot(moves, moves)) * moves
    counts = xp.maximum(
        whole.counts + _not_chance(variance * squares, changed * changed) * changed, LEAST_SHARE * alone
    )
    counts = counts * (n / xp.sum(counts))
    return whole.with_labels(counts=counts, weighted=counts[:, None] * means)


def _positive(counts: Array) -> Array:
    """Counts to divide by: 1 instead of 0."""
    xp = Backend.of(counts).xp
    return xp.where(counts > 0, counts, xp.ones_like(counts))


def _not_chance(chance: Array, squares: Array) -> float:
    """The share of the sum of these squares that is not explained by chance."""
    xp = Backend.of(squares).xp
    found = float(xp.sum(squares))
    return max(0.0, 1.0 - float(xp.sum(chance)) / found) if found > 0 else 0.0


def _in_numpy(arrays: Mapping[str, Array]) -> dict[str, np.ndarray]:
    return {name: to_numpy(array) for name, array in arrays.items()}


def _sums_like(method: TransductiveAnchoredMixture, arrays: Mapping[str, Array]) -> Sums:
    """Sums from arrays, in the library of the method."""
    backend = Backend.of(method.prototypes)
    return Sums(**{name: backend.asarray(array, backend.xp.float64) for name, array in arrays.items()})

"""Online ADAPT (Algorithm 1): a sample may enter the bank, and is then predicted with the updated statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, cast

from zeroshift.adapt.bank import KnowledgeBank
from zeroshift.adapt.base import ADAPT
from zeroshift.adapt.engines import ENGINE_NAMES, Engine, EngineDiagnostics, make_engine, reason_for_direct
from zeroshift.adapt.engines.replay import ReplayEngine
from zeroshift.adapt.engines.streaming import StreamingEngine
from zeroshift.adapt.statistics import Evidence, Gaussians
from zeroshift.arrays import Array, Backend, Rows, is_double
from zeroshift.method import Collecting
from zeroshift.parameters import Choice, Number, Optional, Pair, parameter, state
from zeroshift.precision import precision_parameter

__all__ = ["OnlineADAPT"]


class OnlineADAPT(ADAPT):
    """Adapts one sample at a time: confident samples enter small banks, one per class, from which class means and one
    shared covariance are estimated in closed form. The score adds Gaussian, zero-shot posterior and bank similarity.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift import OnlineADAPT
    >>> prototypes = np.eye(3, 8)
    >>> adapter = OnlineADAPT(prototypes, logit_scale=10.0)
    >>> stream = np.eye(3, 8)[[0, 1, 2, 1]]
    >>> adapter.adapt(stream).argmax(axis=1)
    array([0, 1, 2, 1])
    >>> adapter.bank_counts
    array([1, 2, 1])

    Notes
    -----
    *Backpropagation-Free Test-Time Adaptation via Probabilistic Gaussian Alignment*, NeurIPS 2025. docs/adapt.md lists
    the choices made where the paper leaves one open. Before any sample is learned, the answer is the zero-shot
    posterior itself. The authors' released code computes something else: see `ReleasedOnlineADAPT`.

    `adapt_views` learns from, and predicts, the mean of the most confident views of each image, scaled to unit length.
    The paper uses one view per image; the authors' code uses 64 for ImageNet-A, -R, -Sketch and V2.
    """

    name = "adapt_online"
    headline = "ADAPT: Gaussians from banks of sure samples"
    protocol = "online"
    state_size = "K L d + d^2"
    complexity = "O(K d + d^2) per sample; an insertion O(K d + d^2) more"

    batch_size: int = parameter(
        Number(low=1, integer=True),
        "Samples learned together before any of them is predicted. Every call is split into batches of this size; the "
        "last one may be shorter. 1 is Algorithm 1 of the paper.",
        default=1,
    )
    prune: tuple[int, float] | None = parameter(
        Optional(Pair(Number(low=1, integer=True), Number(low=0, high=1), ("every", "ratio"))),
        "After every `every` samples, drop this share of the least confident entries of each class.",
        default=None,
    )
    engine: str = parameter(
        Choice(ENGINE_NAMES),
        'Selects how to compute, not what. `"direct"` is the float64 definition and recomputes everything for every '
        'sample; `"streaming"` updates the statistics with each insertion and suits single samples; `"replay"` '
        'processes many rows together; `"auto"`, the recommended one, selects by the number of rows in a call. Scores '
        "agree to about 1e-7, and a saved state can be loaded with any engine. Settings that change all means with "
        "every sample (`bank_size=0`, `iterations` above 1, per-class covariances) are always computed directly. See "
        "docs/engines.md.",
        default="auto",
        reload=True,
    )

    precision: str = precision_parameter()

    _engine: Engine = state(lambda self: self._new_engine(), saved_as="engine")

    def _validate(self) -> None:
        super()._validate()
        if self.prune is not None and self.bank_size == 0:
            raise ValueError(
                "prune drops bank entries; bank_size=0 keeps none. Fix: prune=None, or bank_size of at least 1."
            )
        reason = reason_for_direct(self.bank_size, self.iterations, self.covariance)
        if reason and self.engine not in ("auto", "direct"):
            raise ValueError(
                f"engine={self.engine!r} updates one shared covariance after single insertions, but {reason}. "
                "Fix: engine='auto', which computes this setting directly."
            )

    def _new_engine(self) -> Engine:
        evidence, settings = self._evidence, self._settings
        return make_engine(self.engine, self._wide_prototypes, self.logit_scale, self.iterations, settings, evidence)

    @property
    def _gaussians(self) -> Gaussians:
        return self._engine.gaussians

    def _answer(self, features: Array, *, learn: bool, probabilities: bool) -> Array:
        if learn and self._may_be_recorded(features):
            answer = self._in_turn(True, self._adapt_recorded, features, probabilities)
            if answer is not None:
                return answer
        return super()._answer(features, learn=learn, probabilities=probabilities)

    def _may_be_recorded(self, features: Any) -> bool:
        """Whether these features are one row on the GPU of the prototypes, which checks the row itself."""
        return (
            Backend.of(self.prototypes).on_gpu
            and type(features) is type(self.prototypes)
            and features.device == self.prototypes.device
            and features.is_floating_point()
            and features.dtype.itemsize > 1
            and tuple(features.shape) in ((self.dimension,), (1, self.dimension))
            and (self.batch_size, self.prune) == (1, None)
        )

    def _adapt_recorded(self, features: Array, probabilities: bool) -> Array | None:
        """The answer for one row by a recorded CUDA graph; None, with nothing learned, if that is not possible."""
        self._check_usable()
        if not isinstance(self._engine, StreamingEngine):
            return None
        with Backend.of(self.prototypes).computing():
            with self._learning(0) as learning:
                recorded = self._engine.step_recorded(features)
                learning.samples = int(recorded is not None)
            if recorded is None:
                return None
            answer = recorded.probabilities if probabilities else recorded.scores
            precision = answer.dtype if is_double(features) else Backend.of(answer).xp.float32
            return (answer[0] if len(features.shape) == 1 else answer).to(precision, copy=True)

    def _collecting(
        self,
        rows: Rows,
        given: Array,
        run: Callable[[Any], Iterator[tuple[slice, Array]]],
        learn: bool,
        probabilities: bool,
    ) -> Collecting:
        # Probabilities need less than scores: see `bank_term_bounds.can_matter`.
        if learn and probabilities:
            run = partial(cast(Any, run), complete=False)
        return super()._collecting(rows, given, run, learn, probabilities)

    def _adapt_scores(self, rows: Rows, *, complete: bool = True) -> Iterator[tuple[slice, Array]]:
        # Every block holds whole batches, so that the answer does not depend on the block size.
        block_rows = max(1, self._engine.block_rows // self.batch_size) * self.batch_size
        try:
            for block, features, following in self._blocks(rows, block_rows):
                if isinstance(self._engine, ReplayEngine):
                    self._engine.following = following
                start = 0
                while start < features.shape[0]:
                    part = features[start : start + self._rows_until_prune(features.shape[0] - start), :]
                    self._engine.select_products(part, complete=complete)
                    for scores in self._learned_steps(part):
                        yield slice(block.start + start, block.start + start + scores.shape[0]), scores
                        start += scores.shape[0]
        finally:
            if self._failure is None:
                with self._learning(0):
                    self._engine.finish()

    def _blocks(self, rows: Rows, block_rows: int) -> Iterator[tuple[slice, Array, Array | None]]:
        """Blocks of the rows, each with the next one if the engine looks ahead and may learn it as it is."""
        looks_ahead = isinstance(self._engine, ReplayEngine) and self._engine.looks_ahead and self.prune is None
        waiting: tuple[slice, Array] | None = None
        for block, features in rows.blocks(block_rows):
            if not looks_ahead:
                yield block, features, None
                continue
            if waiting is not None:
                yield *waiting, features
            waiting = block, features
        if waiting is not None:
            yield *waiting, None

    def _learned_steps(self, rows: Array) -> Iterator[Array]:
        """Learn from the rows; yield the scores of some of them at a time, in order."""
        engine = self._engine
        if isinstance(engine, StreamingEngine) and engine.learns_aside(rows.shape[0]):
            # This may take seconds and can be interrupted: the state does not change until the copy replaces it.
            engine = engine.copied()
            (scores,) = engine.run(rows, self.batch_size)  # at most `block_rows`, so one block
            self._prune_if_due(scores.shape[0], engine.evidence, engine)
            with self._learning(scores.shape[0]):
                self._engine, self._evidence = engine, engine.evidence
            yield scores
            return
        steps, left = engine.run(rows, self.batch_size), rows.shape[0]
        while left:
            with self._learning() as learning:
                scores = next(steps)
                learning.samples = scores.shape[0]
                self._prune_if_due(learning.samples, self._evidence, engine)
            yield scores
            left -= learning.samples

    def _adapt_view_scores(self, images: Rows, *, complete: bool = True) -> Iterator[tuple[slice, Array]]:
        return self._adapt_scores(self._averaged(images), complete=complete)

    def _rows_until_prune(self, rows: int) -> int:
        """How many of the rows, in whole batches, can be processed together before the bank is pruned."""
        if self.prune is None:
            return rows
        left = self.prune[0] - self.n_seen % self.prune[0]
        return min(rows, -(-left // self.batch_size) * self.batch_size)

    def _prune_if_due(self, samples: int, evidence: Evidence, engine: Engine) -> None:
        """Prune the bank if these samples, which are in it already but not counted yet, complete a period."""
        if self.prune is not None and (self.n_seen + samples) // self.prune[0] > self.n_seen // self.prune[0]:
            assert isinstance(evidence, KnowledgeBank)
            evidence.prune(self.prune[1])
            engine.refresh()

    def _predict_blocks(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        scores = self._engine.scorer(len(rows))
        return ((block, scores(features)) for block, features in rows.blocks(self._predict_rows))

    def _predict_scores(self, features: Array) -> Array:
        return self._engine.scorer(features.shape[0])(features)

    @property
    def rows_per_call(self) -> int:
        """Rows per `adapt` call at which the engine is fastest: a whole block for replay, otherwise 64."""
        return self._engine.block_rows if isinstance(self._engine, ReplayEngine) else 64

    @property
    def diagnostics(self) -> EngineDiagnostics:
        """Updates, factorisations by reason and checks of the maintained inverse; the largest error found."""
        return replace(self._engine.diagnostics)

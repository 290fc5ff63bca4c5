"""The order of a stream for any online method: `StickyFilter(method)`, or `NAME+filter` where a name is expected."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import cache
from typing import Any, ClassVar, NamedTuple, SupportsIndex

import numpy as np

from zeroshift import serialization
from zeroshift.arrays import Array, Backend, Rows, to_numpy
from zeroshift.features.checks import blocks
from zeroshift.method import Collecting, Method
from zeroshift.mixture.temperature import N_TEMPERATURES, confidence_curve, temperature_for
from zeroshift.ordered import OrderedBlock, OrderedMethod
from zeroshift.parameters import state
from zeroshift.state_checks import check_range
from zeroshift.sticky import BALANCE, LateAnswers, StickyClasses, cool
from zeroshift.zero_shot import posterior

__all__ = ["SUFFIX", "StickyFilter"]

SUFFIX = "+filter"
"""`tda+filter` is the name of TDA with the filter."""

LOGIT_SCALE = 100.0
"""For methods without a parameter `logit_scale`: CLIP's."""

OWN_STATES = ("_chain", "_late", "_confidences")

SMALLEST = 1e-30
"""Smallest probability that counts as evidence. A method that excludes a class altogether may be wrong."""

REASONS = {
    "transductive": "it answers for a whole set at once, and a set has no order",
    "episodic": "it answers each image by itself and learns from none",
    "few-shot": "it learns from labelled samples and not from the stream",
}
"""Why methods of other protocols are not filtered."""


Blocks = Iterator[tuple[slice, Array]]
"""Slices of the rows, and the scores or answers for each."""


class StickyFilter(OrderedMethod):
    """A method whose answers use the order of its samples: the class of a sample is often that of the sample before.

    `StickyFilter(method)` copies an online method, with what it has learned, and filters its answers; the method itself
    is not touched. It learns as the method does. `adapt` multiplies the method's probabilities by the prior that the
    samples before give (see `zeroshift.sticky`); how probable it is that a class stays is estimated from zero-shot
    posteriors, without labels. In random order the predicted classes are those of the method. `predict` has no order:
    it answers as the method does.

    With `lag`, answers may come later and are better: `adapt_late` answers each sample when `lag` more have come, and
    `finish` the last ones. `smooth` answers a whole recording, every sample from those before and after it.

    The probabilities of an over-confident method would outweigh the samples before. They are therefore raised to one
    power, so that their mean equals the mean zero-shot probability of the same labels. Where there is order, they are
    divided by a power of their mean over the stream, so that classes that the method favours throughout do not win more
    and more, and filtered answers are made less certain, because neighbours share errors.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift import StickyFilter, ZeroShot
    >>> angles = np.array([0.2] * 20 + [1.4] * 20 + [0.9, 1.4])  # two classes, one after the other; an unclear sample
    >>> features = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    >>> method = ZeroShot(np.eye(2), logit_scale=5.0)
    >>> method.predict(features)[-2:, 1].round(2), StickyFilter(method).adapt(features)[-2:, 1].round(2)
    (array([0.69, 0.98]), array([0.9 , 0.98]))
    """

    _confidences: np.ndarray = state(
        lambda self: np.zeros(1 + N_TEMPERATURES),
        saved_as="sticky_tempering",
        merge="sum",
        check=lambda self, sums: check_range("tempering", sums, 0.0, self._n_seen),
    )

    wrapped: ClassVar[type[Method]]
    """The class of the method that is filtered."""

    def __new__(cls, *arguments: Any, **parameters: Any) -> Any:
        if cls is not StickyFilter:
            return super().__new__(cls)
        if not arguments or not isinstance(arguments[0], Method):
            given = type(arguments[0]).__name__ if arguments else "nothing"
            raise TypeError(
                f"method must be an online method; got {given}. Fix: StickyFilter(TDA(prototypes)), or "
                "zeroshift.methods.create('tda+filter', prototypes)."
            )
        return super().__new__(StickyFilter.of(type(arguments[0])))

    def __init__(self, *arguments: Any, **parameters: Any) -> None:
        method = arguments[0] if arguments else None
        if not isinstance(method, Method):
            super().__init__(*arguments, **parameters)
            return
        if len(arguments) > 1:
            raise TypeError(f"StickyFilter takes one method; got {len(arguments)} arguments. Fix: lag=...")
        own = method.get_params()
        for name in parameters:
            if name in own:
                raise TypeError(f"{name} is a parameter of the method that is filtered. Fix: give it to that method.")
        arrays, values, n_seen = method._in_turn(False, _learned, method)
        super().__init__(**own, **parameters)
        own_arrays, own_values = self._state()
        self._n_seen = n_seen
        with Backend.of(self.prototypes).computing():
            self._restore({**own_arrays, **arrays}, {**own_values, **values})

    @staticmethod
    @cache
    def of(method: type[Method]) -> type[StickyFilter]:
        """The class of `method` with the filter: `StickyFilter.of(TDA)(prototypes, lag=2)`.

        It has the parameters of `method` and `lag`, and its files are loaded by `StickyFilter.of(TDA).load(path)`.
        """
        if not (isinstance(method, type) and issubclass(method, Method)):
            raise TypeError(f"method must be a class of methods; got {method!r}. Fix: StickyFilter.of(TDA).")
        name = getattr(method, "name", method.__name__)
        if issubclass(method, StickyFilter):
            raise ValueError(f"{name} has the filter already. Fix: use it as it is.")
        if method.protocol != "online":
            raise ValueError(
                f"{name} cannot be filtered: it is {method.protocol}, {REASONS[method.protocol]}. "
                "Fix: choose an online method, such as tda+filter."
            )
        if hasattr(method, "adapt_late"):
            raise ValueError(f"{name} uses the order of its samples by itself. Fix: use it without the filter.")
        if "vision" in method.needs:
            raise ValueError(
                f"{name} cannot be filtered: it encodes images itself, and the filter needs their features. "
                "Fix: choose a method on features."
            )
        doc = f"""`{name}` with answers that use the order of the samples: see `StickyFilter`.

    Examples
    --------
    >>> from zeroshift import StickyFilter
    >>> method = StickyFilter.of({method.__name__})  # the class; StickyFilter(method) for an object
    """
        attributes = {
            "__doc__": doc,
            "__module__": method.__module__,
            "wrapped": method,
            "example_parameters": {
                name: None if name == "vision" else value for name, value in method.example_parameters.items()
            },
            "state_size": f"{method.state_size}; filter 5 K",
            "complexity": f"{method.complexity}; filter O(K)",
            "overconfident": False,  # its answers are tempered
        }
        filtered: Any = type(f"StickyFilter.of({method.__name__})", (StickyFilter, method), attributes)
        filtered.name = f"{name}{SUFFIX}"  # after the class is made: only plain methods are listed in the registry
        return filtered

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return _new, (self.wrapped,), self.__getstate__()

    def _validate(self) -> None:
        super()._validate()
        if getattr(self, "vision", None) is not None:
            raise ValueError(
                f"vision cannot be given to {self.name}: the filter needs the features of the images. "
                "Fix: vision=None, and features instead of images."
            )

    def _prepare(self) -> None:
        super()._prepare()
        self._filter_prototypes = self.prototypes64

    # A method may define both in its own way, without the states of its subclasses.

    def _state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        arrays, values = super()._state()
        for name in OWN_STATES:
            saved_as = self.declared_states[name].saved_as
            serialization.pack(getattr(self, name), saved_as, arrays, values, Backend.of(self.prototypes))
        return arrays, values

    def _restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        super()._restore(arrays, values)
        for name in OWN_STATES:
            saved_as = self.declared_states[name].saved_as
            setattr(self, name, serialization.unpack(getattr(self, name), saved_as, arrays, values))

    def _collecting(
        self, rows: Rows, given: Array, run: Callable[[Any], Blocks], learn: bool, probabilities: bool
    ) -> Collecting:
        if not learn:
            return super()._collecting(rows, given, run, learn, probabilities)
        backend = Backend.of(self.prototypes)

        def filtered(rows: Rows) -> Blocks:
            self._check_none_due("adapt")
            for block, step in self._steps(run, rows):
                answers = cool(step.block.filtered, step.block.stay)
                yield block, backend.asarray(np.exp(answers) if probabilities else answers, backend.xp.float64)

        return super()._collecting(rows, given, filtered, learn, False)

    def _ordered_blocks(self, rows: Rows, *, late: bool) -> Iterator[tuple[OrderedBlock, np.ndarray]]:
        for _, step in self._steps(self._adapt_scores, rows, late=late):
            yield step.block, step.late

    def _final(self, log_posteriors: np.ndarray, stay: np.ndarray, temperature: np.ndarray | None = None) -> np.ndarray:
        return np.exp(cool(log_posteriors, stay))

    def _rebalanced(self, start: StickyClasses, evidence: np.ndarray, stay: np.ndarray) -> np.ndarray:
        return start.balance(evidence, BALANCE * stay, whole=True)[0]

    def _steps(self, run: Callable[[Any], Blocks], rows: Rows, *, late: bool = False) -> Iterator[tuple[slice, _Step]]:
        """Let the method learn from the rows, block by block, and filter what it answers.

        A block is learned by the method and by the filter together, or by neither.
        """
        learned = run(rows)
        try:
            while True:
                n_seen, refused = self._n_seen, None
                with self._learning(0):
                    try:
                        block, scores = next(learned, (None, None))
                    except Exception as error:
                        if self._n_seen != n_seen or self._failure is not None:
                            raise
                        block, refused = None, error  # nothing was learned, so that the method remains usable
                    if block is not None:
                        step = self._filter(rows[block], scores, late)
                        self._chain, self._confidences, self._late = step.chain, step.confidences, step.still_due
                if refused is not None:
                    raise refused
                if block is None:
                    return
                yield block, step
        finally:
            if isinstance(learned, Generator):
                learned.close()  # now: what it does at its end belongs to this call

    def _filter(self, x: Array, scores: Array, late: bool) -> _Step:
        """The filtered answers of a block, and the state after it. Nothing is changed."""
        backend = Backend.of(self.prototypes)
        # The first view is the image itself; features of a second encoder follow those of the first.
        images = x[:, 0] if len(x.shape) == 3 else x[:, : self.dimension]
        images = backend.asarray(images, backend.xp.float64)
        scale = getattr(self, "logit_scale", LOGIT_SCALE)
        chain, still_due, sums = self._chain, self._late, self._confidences
        parts = []
        for rows in blocks(len(images), self.n_classes):  # a few at a time, which bounds the memory
            y = posterior(images[rows], self._filter_prototypes, scale)
            both = backend.xp.stack([y, backend.asarray(self._probabilities(scores[rows]), y.dtype)])
            y, probabilities = to_numpy(both)  # in one transfer from a GPU
            log_p = np.log(np.maximum(probabilities, SMALLEST))
            exponents, sums = _tempering(log_p, y, sums)
            evidence = exponents[:, None] * log_p
            stay, chain = chain.observe(y)
            balanced, chain = chain.balance(evidence, BALANCE * stay)
            filtered, chain = chain.filter(balanced, stay)
            final = filtered[:0]
            if late:
                late_stay = np.concatenate([still_due.stay, stay])
                final, still_due = still_due.add(filtered, balanced, stay)
                final = self._final(final, late_stay[: len(final)])
            parts.append((evidence, balanced, filtered, stay, final))
        one = parts[0] if len(parts) == 1 else [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]
        return _Step(OrderedBlock(one[0], one[1], one[2], one[3], temperature=1.0), one[4], chain, still_due, sums)


def _tempering(log_p: np.ndarray, y: np.ndarray, sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The exponent for each sample, from those before it, and the sums of confidences after them.

    With it, the mean confidence of the method's answers is the mean zero-shot probability of the same labels: see
    `zeroshift.mixture.temperature`.
    """
    reference = y[np.arange(len(y)), log_p.argmax(axis=1)]
    confidences = np.concatenate([reference[:, None], confidence_curve(log_p)], axis=1)
    running = np.cumsum(np.concatenate([sums[None], confidences]), axis=0)
    return np.array([temperature_for(row) for row in running[:-1]]), running[-1]


class _Step(NamedTuple):
    """A block of samples, and the state of the filter after it."""

    block: OrderedBlock
    late: np.ndarray
    """Probabilities of the samples whose late answers are final now."""
    chain: StickyClasses
    still_due: LateAnswers
    confidences: np.ndarray


def _learned(method: Method) -> tuple[dict[str, Array], dict[str, Any], int]:
    """A copy of what a method has learned."""
    method._check_usable()
    arrays, values = method._state()
    copies = {name: Backend.of(array).copy(array) for name, array in arrays.items()}
    return copies, copy.deepcopy(values), method._n_seen


def _new(wrapped: type[Method]) -> StickyFilter:
    """For `pickle`, which cannot find a class that was made at run time."""
    cls = StickyFilter.of(wrapped)
    return cls.__new__(cls)

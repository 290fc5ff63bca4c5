"""The order of a stream for any online method: `StickyFilter(method)`, or `NAME+filter` where a name is expected."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import cache
from typing import Any, ClassVar, SupportsIndex

import numpy as np

from zeroshift.arrays import Array, Backend, Rows, to_numpy
from zeroshift.method import Collecting, Method
from zeroshift.mixture.temperature import N_TEMPERATURES, confidence_curve, temperature_for
from zeroshift.ordered import OrderedBlock, OrderedMethod
from zeroshift.parameters import state
from zeroshift.state_checks import check_range
from zeroshift.sticky import BALANCE, StickyClasses, cool
from zeroshift.zero_shot import posterior

SUFFIX = "+filter"
"""`tda+filter` is the name of TDA with the filter."""

LOGIT_SCALE = 100.0
"""For methods without a parameter `logit_scale`: CLIP's."""

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
        learned = method._in_turn(False, _learned, method)
        super().__init__(**own, **parameters)
        for name in (*method.declared_states, "_n_seen"):
            setattr(self, name, learned[name])
        with Backend.of(self.prototypes).computing():
            self._derive()

    @staticmethod
    @cache
    def of(method: type[Method]) -> type[StickyFilter]:
        """The class of `method` with the filter: `StickyFilter.of(TDA)(prototypes, lag=2)`.

        It has the parameters of `method` and `lag`, and its files are loaded by `StickyFilter.of(TDA).load(path)`.
        """
        if not (isinstance(method, type) and issubclass(method, Method)):
            raise TypeError(f"method must be a class of methods; got {method!r}. Fix: StickyFilter.of(TDA).")
        name = getattr(method, "name", method.__name__)
        if method.protocol != "online":
            raise ValueError(
                f"{name} cannot be filtered: it is {method.protocol}, {REASONS[method.protocol]}. "
                "Fix: choose an online method, such as tda+filter."
            )
        if hasattr(method, "adapt_late"):
            raise ValueError(f"{name} uses the order of its samples by itself. Fix: use it as it is.")
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

    def _collecting(
        self, rows: Rows, given: Array, run: Callable[[Any], Blocks], learn: bool, probabilities: bool
    ) -> Collecting:
        if not learn:
            return super()._collecting(rows, given, run, learn, probabilities)
        backend = Backend.of(self.prototypes)

        def filtered(rows: Rows) -> Blocks:
            self._check_none_due("adapt")
            for rows_of_block, block, _ in self._filtered_blocks(run, rows):
                answers = cool(block.filtered, block.stay)
                yield rows_of_block, backend.asarray(np.exp(answers) if probabilities else answers, backend.xp.float64)

        return super()._collecting(rows, given, filtered, learn, False)

    def _ordered_blocks(self, rows: Rows, *, late: bool) -> Iterator[tuple[OrderedBlock, np.ndarray]]:
        return ((block, final) for _, block, final in self._filtered_blocks(self._adapt_scores, rows, late=late))

    def _final(self, log_posteriors: np.ndarray, stay: np.ndarray, temperature: np.ndarray | None = None) -> np.ndarray:
        return np.exp(cool(log_posteriors, stay))

    def _rebalanced(self, start: StickyClasses, evidence: np.ndarray, stay: np.ndarray) -> np.ndarray:
        return start.balance(evidence, BALANCE * stay, whole=True)[0]

    def _filtered_blocks(
        self, run: Callable[[Any], Blocks], rows: Rows, *, late: bool = False
    ) -> Iterator[tuple[slice, OrderedBlock, np.ndarray]]:
        """Let the method learn from the rows, block by block; yield what it answers, filtered, and the late answers.

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
                        step = block, *self._filter(rows[block], scores, late)
                if refused is not None:
                    raise refused
                if block is None:
                    return
                yield step
        finally:
            if isinstance(learned, Generator):
                learned.close()  # now: what it does at its end belongs to this call

    def _filter(self, x: Array, scores: Array, late: bool) -> tuple[OrderedBlock, np.ndarray]:
        """Filter what the method answers to a block: learn the order, and the late answers that are final now."""
        backend = Backend.of(self.prototypes)
        # The first view is the image itself; features of a second encoder follow those of the first.
        images = backend.asarray(x[:, 0] if len(x.shape) == 3 else x[:, : self.dimension], backend.xp.float64)
        y = posterior(images, self.prototypes64, getattr(self, "logit_scale", LOGIT_SCALE))
        probabilities = backend.asarray(self._probabilities(scores), y.dtype)
        y, probabilities = to_numpy(backend.xp.stack([y, probabilities]))  # in one transfer from a GPU
        log_p = np.log(np.maximum(probabilities, SMALLEST))
        exponents, confidences = _tempering(log_p, y, self._confidences)
        evidence = exponents[:, None] * log_p
        stay, chain = self._chain.observe(y)
        balanced, chain = chain.balance(evidence, BALANCE * stay)
        filtered, chain = chain.filter(balanced, stay)
        final, still_due = filtered[:0], self._late
        if late:
            late_stay = np.concatenate([still_due.stay, stay])
            final, still_due = still_due.add(filtered, balanced, stay)
            final = self._final(final, late_stay[: len(final)])
        self._chain, self._confidences, self._late = chain, confidences, still_due
        return OrderedBlock(evidence, balanced, filtered, stay, temperature=1.0), final


def _tempering(log_p: np.ndarray, y: np.ndarray, sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The exponent for each sample, from those before it, and the sums of confidences after them.

    With it, the mean confidence of the method's answers is the mean zero-shot probability of the same labels: see
    `zeroshift.mixture.temperature`.
    """
    reference = y[np.arange(len(y)), log_p.argmax(axis=1)]
    confidences = np.concatenate([reference[:, None], confidence_curve(log_p)], axis=1)
    running = np.cumsum(np.concatenate([sums[None], confidences]), axis=0)
    return np.array([temperature_for(row) for row in running[:-1]]), running[-1]


def _learned(method: Method) -> dict[str, Any]:
    """A copy of all attributes of a method; of all together, because pieces of state may share an object."""
    method._check_usable()
    return method._copied_attributes()


def _new(wrapped: type[Method]) -> StickyFilter:
    """For `pickle`, which cannot find a class that was made at run time."""
    cls = StickyFilter.of(wrapped)
    return cls.__new__(cls)

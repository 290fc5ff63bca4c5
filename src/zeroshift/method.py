"""The base classes of all methods: features in, probabilities out, parameters and state declared once.

A method is a class that derives from `Method`. Its body declares parameters and state (see `zeroshift.parameters`) and
defines how to learn and how to score. Everything that is the same for all methods is here: the constructor, checking
input, conversion between libraries and devices, blocks, counting, interrupts, cloning, printing, saving and merging.

`OnlineMethod` is the simplest base class: `learn` from one sample, `score` samples. `ViewMethod` accepts several views
per image, and `EpisodicMethod` adapts to each image by itself.
"""

from __future__ import annotations

import copy
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import wraps
from types import TracebackType
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias, TypeVar

import numpy as np

from zeroshift import serialization
from zeroshift.arrays import Array, Backend, BothRows, Rows, as_floats, check_matrix, is_double, namespace, to_numpy
from zeroshift.features.checks import blocks
from zeroshift.frozen import Expression, FrozenHead, record
from zeroshift.interrupts import Watch, postpone, resume
from zeroshift.parameters import Constraint, Declared, Number, array_parameter, parameter
from zeroshift.suggest import did_you_mean
from zeroshift.threads import own_threads
from zeroshift.turns import Shared
from zeroshift.views import RATIO, as_images, check_unit_views, observe_views
from zeroshift.zero_shot import observe, softmax

__all__ = [
    "EpisodicMethod",
    "Method",
    "OnlineMethod",
    "OnlineViewMethod",
    "SetMethod",
    "TwoEncoderMethod",
    "ViewMethod",
    "registered_methods",
]

PREDICT_ROWS = 4096
"""Largest number of rows scored together."""

WORK_NUMBERS = 4_000_000
"""Features or logits of views held in memory at one time: 32 MB in float64."""

LARGE = 1000
"""Parameters above this are named when there is not enough memory."""

TOO_LARGE = (
    "array is too big", "Maximum allowed dimension", "too large to convert", "can't allocate memory", "out of memory",
    "Storage size calculation overflowed",
)  # fmt: skip
"""What NumPy, Python and torch say about arrays that no memory holds, in errors other than a MemoryError."""

T = TypeVar("T")


class Probabilities(NamedTuple):
    """What a step has instead of scores if they are already normalised."""

    values: Array
    """(n, K)."""


Step: TypeAlias = "tuple[slice, Array | Probabilities | Callable[[slice], Iterator[Step]]]"
"""Scores of some of the rows, or a function that yields the steps of a part of them: see `Method._adapt_scores`."""

Collecting: TypeAlias = Generator[tuple[slice, Array], None, Array]
"""Yields the rows of each step and their answers; returns all answers."""

_REGISTERED: dict[str, type[Method]] = {}


def registered_methods() -> dict[str, type[Method]]:
    """The built-in methods imported so far, by name."""
    return dict(_REGISTERED)


class Method(Shared, Declared, ABC):
    """A zero-shot classifier that adapts at test time. Subclasses document what they learn and when.

    Several threads may use one object. Calls that learn (`adapt`, `adapt_views`, `merge`, `reset`, ...) run one at a
    time, in the order in which they arrive, and each of them as a whole: no other call sees part of it. Calls that read
    (`predict`, `save`, properties, copies, pickles) run at the same time as each other and see the state after whole
    calls. A call arrives when its input has been checked.
    """

    name: ClassVar[str]
    """Name in the registry."""
    headline: ClassVar[str] = ""
    """What it does, in a line of at most 47 characters for lists. Not inherited: a class without one is listed with the
    first sentence of its docstring."""
    protocol: ClassVar[str]
    """`"online"` (one sample at a time, see `scored`), `"episodic"` (each sample by itself, nothing is kept),
    `"transductive"` (the whole set in one call) or `"few-shot"`."""
    needs: ClassVar[tuple[str, ...]] = ("prototypes",)
    """What the method requires in addition to features."""
    takes: ClassVar[tuple[str, ...]] = ()
    """What it accepts through calls of its own but does not require, such as `"views"` of an image."""
    constraints: ClassVar[Mapping[str, Constraint]] = {}
    """What each parameter may be. Derived from the declared parameters."""
    array_parameters: ClassVar[tuple[str, ...]] = ()
    """Parameters that hold arrays. Derived from the declared parameters."""
    model_parameters: ClassVar[tuple[str, ...]] = ()
    """Parameters that hold a model, such as the text side of an encoder. Derived from the declared parameters."""
    reload_parameters: ClassVar[tuple[str, ...]] = ()
    """Parameters that `load` may change. Derived from the declared parameters."""
    check_exceptions: ClassVar[Mapping[str, str]] = {}
    """Checks of `zeroshift.testing.check_method` this method cannot satisfy, each with the reason."""
    example_parameters: ClassVar[Mapping[str, Any]] = {}
    """Values for `check_method` in place of the defaults. A function is called with the prototypes."""
    computes_in: ClassVar[str | None] = "float64"
    """Precision that features are converted to; None keeps the precision of the features, at least float32. A method
    with a parameter `precision` (see `zeroshift.precision`) ignores this and gets its features in that precision."""
    scored: ClassVar[str] = "after"
    """Whether an online method predicts a sample `"before"` or `"after"` learning from it."""
    state_size: ClassVar[str] = "not stated"
    """Numbers kept, in terms of K classes, d dimensions and N samples seen."""
    complexity: ClassVar[str] = "not stated"
    """Cost per sample, or per set, in the same terms."""
    reconstructed: ClassVar[str | None] = None
    """Why the method is a reconstruction; None if it was written from its authors' code or equations."""
    starts_from_prompt: ClassVar[bool] = False
    """Whether its first classifier is the text features of its own `text`, whatever prototypes a source has."""
    from_features: ClassVar[str | None] = None
    """What is missing when the method is given features only; None if nothing is."""
    gradient_steps: ClassVar[int] = 0
    """Gradient steps per image, for methods whose steps are not counted by a model."""
    overconfident: ClassVar[bool] = False
    """Whether its probabilities are much too high: its mean calibration error is ten points or more above zero-shot's
    (benchmarks/results/comparison.md, or views.md for methods that need views)."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """The authors' own parameters for single data sets. Never selected silently: see `preset`."""
    linear: ClassVar[bool] = False
    """Whether scores are linear in the features, plus an offset per class and any number per row: then `freeze` needs
    no `_frozen`."""
    not_frozen: ClassVar[str] = "it declares neither `linear` nor `_frozen`"
    """Why a method without these two cannot be frozen."""

    prototypes: Array = array_parameter("One unit-length text embedding per class, (K, d).", kw_only=False)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        declared = cls.declared_parameters.items()
        cls.constraints = {name: one.allowed for name, one in declared if one.allowed is not None}
        cls.array_parameters = tuple(name for name, one in declared if one.kind == "array")
        cls.model_parameters = tuple(name for name, one in declared if one.kind == "model")
        cls.reload_parameters = tuple(name for name, one in declared if one.reload)
        for name, value in list(vars(cls).items()):
            if isinstance(value, property) and value.fget is not None and not name.startswith("_"):
                setattr(cls, name, value.getter(_reads_in_turn(value.fget)))
        if "name" in vars(cls) and cls.__module__.startswith("zeroshift."):
            _REGISTERED[cls.name] = cls

    def __init__(self, *arguments: Any, **parameters: Any) -> None:
        values = self.bind(arguments, parameters)
        prototypes = check_matrix("prototypes", values["prototypes"])
        backend = Backend.of(prototypes)
        with backend.computing():
            # A copy: a caller who changes the array later must not change the classifier.
            values["prototypes"] = backend.copy(backend.asarray(prototypes))
            self._prototypes64 = backend.asarray(values["prototypes"], backend.xp.float64)
        for name, value in values.items():
            setattr(self, name, value)
        self._validate()
        for name in self.array_parameters:
            if name != "prototypes" and getattr(self, name) is values[name]:
                setattr(self, name, _copied(values[name]))  # `_validate` made no copy of its own
        self._make_arrays_read_only()
        self._fixed = self.parameter_names()
        try:
            self.reset()
        except (MemoryError, OverflowError, ValueError, RuntimeError) as error:
            if not isinstance(error, MemoryError) and not any(words in str(error) for words in TOO_LARGE):
                raise
            sizes = [f"{name}={value}" for name, value in values.items() if isinstance(value, int) and value > LARGE]
            raise MemoryError(
                f"{type(self).__name__} with {', '.join(sizes) or 'these prototypes'} needs more memory than there is "
                f"({error}). Fix: smaller numbers, or fewer classes."
            ) from error

    def __getstate__(self) -> dict[str, Any]:
        return self._in_turn(False, self._copied_attributes)

    def _copied_attributes(self) -> dict[str, Any]:
        """All attributes at one moment: what is written to later is copied, parameters are not."""
        parameters = [getattr(self, name) for name in self._fixed]
        parts = [part for value in parameters if isinstance(value, tuple) for part in value]
        return copy.deepcopy(self.__dict__, {id(value): value for value in (*parameters, *parts)})

    def __setstate__(self, attributes: dict[str, Any]) -> None:
        # Copies and pickles of read-only arrays can be written to.
        self.__dict__.update(attributes)
        self._make_arrays_read_only()

    def _make_arrays_read_only(self) -> None:
        if Backend.of(self.prototypes).library == "numpy":
            for name in (*self.array_parameters, "_prototypes64"):
                _make_read_only(getattr(self, name))

    def __setattr__(self, name: str, value: Any) -> None:
        # What was learned was learned with these parameters; changing one later would mix two methods.
        if name in self.__dict__.get("_fixed", ()):
            raise AttributeError(
                f"{name} of {type(self).__name__} cannot be changed after construction. "
                f"Fix: {type(self).__name__}(**{{**method.get_params(), {name!r}: ...}}) makes another."
            )
        super().__setattr__(name, value)

    def _validate(self) -> None:
        """Check what no single constraint can: how parameters fit together, and array parameters."""

    def _prepare(self) -> None:
        """Compute what follows from the parameters alone. Called before the initial state is made."""

    def _derive(self) -> None:
        """Compute what follows from parameters and state. Called after reset, load and merge."""

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        """Learn from the rows; yield (slice of the rows, their scores (n, K)) in order.

        What follows learning may be left to several threads: instead of scores, a step may have a function from a slice
        of the rows to an iterator of such steps. Where only probabilities are wanted it may have `Probabilities`.

        State changes happen inside `with self._learning(samples):`. Such a section is not interrupted, and counts the
        samples. By default nothing is learned: the rows are predicted and counted.
        """
        for block, scores in self._predict_blocks(rows):
            with self._learning(scores.shape[0]):
                pass
            yield block, scores

    @abstractmethod
    def _predict_scores(self, features: Array) -> Array:
        """Scores (n, K) of features (n, d) with the present state, which does not change."""

    def _probabilities(self, scores: Array) -> Array:
        return softmax(scores)

    def adapt(self, features: Array) -> Array:
        """Learn from `features` and predict them, in the order `scored` says: (N, K) for (N, d), (K,) for (d,).

        No features, (0, d), give no answers, (0, K), and nothing is learned.

        If the call is interrupted or fails, the state is as before the call or after a whole number of samples. If an
        exception is raised while the state is being changed, the object refuses calls until `reset` or `load`.
        """
        return self._answer(features, learn=True, probabilities=True)

    def adapt_scores(self, features: Array) -> Array:
        """Like `adapt`, but return the raw scores before they are normalised to probabilities."""
        return self._answer(features, learn=True, probabilities=False)

    def predict(self, features: Array) -> Array:
        """Probabilities with what has been learned so far. Nothing is learned and no state changes."""
        return self._answer(features, learn=False, probabilities=True)

    def predict_scores(self, features: Array) -> Array:
        """Like `predict`, but return the raw scores."""
        return self._answer(features, learn=False, probabilities=False)

    def freeze(self, class_names: Sequence[Any] | None = None, *, normalize: bool = False) -> FrozenHead:
        """What `predict` computes now, as a few arrays and operations, to run without this library.

        `zeroshift.torch.FrozenModule` and `zeroshift.onnx.export` take it. With `normalize`, rows are first scaled to
        unit length; otherwise they must have unit length. `class_names`, one for each prototype, are kept with it.
        TypeError if the method cannot be frozen; it says why, and which methods can.
        """
        if not self.can_freeze():
            known = ", ".join(sorted(name for name, cls in registered_methods().items() if cls.can_freeze()))
            raise TypeError(f"{self.name} cannot be frozen: {self.not_frozen}. Methods that can: {known}.")
        return self._in_turn(False, self._freeze, class_names, normalize)

    @classmethod
    def can_freeze(cls) -> bool:
        """Whether `freeze` is available."""
        return cls.linear or cls._frozen is not Method._frozen

    def _freeze(self, class_names: Sequence[Any] | None, normalize: bool) -> FrozenHead:
        self._check_usable()
        with Backend.of(self.prototypes).computing():
            return record(
                self.dimension,
                self.n_classes,
                self._frozen,
                class_names=class_names,
                normalize=normalize,
                method=self.name,
                n_seen=self._n_seen,
                logit_scale=getattr(self, "logit_scale", None),
            )

    def _frozen(self, x: Expression) -> Expression:
        """Probabilities (n, K) of features `x` (n, d) with the present state; the last operation recorded is theirs."""
        return x.linear(*self._affine(self._predict_scores)).softmax()

    def _affine(self, scores: Callable[[Array], Array]) -> tuple[Array, Array]:
        """Weights (K, d) and offsets (K,) of a function that is linear in the features (n, d), plus offsets: its values
        at zero and at the unit vectors. A number added to all classes of a row has no effect after a softmax."""
        backend = Backend.of(self.prototypes)
        points = backend.xp.concat(
            [
                backend.zeros((1, self.dimension)),
                backend.xp.eye(self.dimension, dtype=backend.xp.float64, device=backend.device),
            ]
        )
        values = to_numpy(scores(points)).astype(np.float64)
        values -= values.mean(axis=1, keepdims=True)
        return (values[1:] - values[0]).T, values[0]

    def reset(self) -> None:
        """Forget everything learned."""
        self._in_turn(True, self._reset)

    def _reset(self) -> None:
        self._failure: str | None = "a reset was interrupted"  # unless it reaches its end
        self._n_seen: int = 0
        with Backend.of(self.prototypes).computing():
            self._prepare()
            for name, declared in self.declared_states.items():
                initial = declared.initial
                setattr(self, name, initial(self) if callable(initial) else copy.deepcopy(initial))
            self._derive()
        self._failure, self._turns.broken_by_fork = None, False

    def clone(self) -> Self:
        """A new method with the same parameters that has learned nothing (`copy.deepcopy` keeps what was learned)."""
        return type(self)(**self.get_params())

    def __copy__(self) -> Self:
        # A shallow copy would share arrays that are changed in place.
        return copy.deepcopy(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = memo[id(self)] = self.__new__(type(self))
        twin.__setstate__(self._in_turn(False, copy.deepcopy, self.__dict__, memo))
        return twin

    def merge(self, other: Self) -> Self:
        """Add what `other` learned from its own samples to what this method learned, and return this method.

        Both must have the same parameters. Only methods whose state can be merged support this, such as the anchored
        mixture, whose state is sums.
        """
        self._check_mergeable(other)
        # A copy first, so that no call ever waits in the turn of one object for that of another.
        theirs, n_seen = other._in_turn(False, other._copied_states)
        self._in_turn(True, self._add_states, theirs, n_seen)
        return self

    def _copied_states(self) -> tuple[dict[str, Any], int]:
        """The declared state and the number of samples seen, at one moment."""
        self._check_usable()
        return {name: copy.deepcopy(getattr(self, name)) for name in self.declared_states}, self.n_seen

    def _add_states(self, theirs: Mapping[str, Any], n_seen: int) -> None:
        self._check_usable()
        with Backend.of(self.prototypes).computing():
            merged = {
                name: _merged(declared.merge, getattr(self, name), theirs[name])
                for name, declared in self.declared_states.items()
            }
            with self._learning(n_seen):
                for name, value in merged.items():
                    setattr(self, name, value)
                self._derive()

    def _check_mergeable(self, other: object) -> None:
        if type(other) is not type(self):
            raise TypeError(f"other must be of class {type(self).__name__}; got {type(other).__name__}.")
        rules = [declared.merge for declared in self.declared_states.values()]
        if None in rules:
            raise TypeError(
                f"{type(self).__name__} cannot be merged: what it learned depends on the order of its samples. "
                "Fix: adapt one object to all samples, or use a method whose state is sums (the anchored mixture)."
            )
        self._check_usable()
        other._check_usable()
        for name, mine in self.get_params().items():
            theirs = other.get_params()[name]
            if name not in self.reload_parameters and not _same(mine, theirs):
                shown = "another array" if hasattr(mine, "shape") or isinstance(mine, tuple) else repr(theirs)
                raise ValueError(
                    f"other was made with another {name} ({shown}), so its state means something else. "
                    f"Fix: make both with the same {name}, for example with method.clone()."
                )

    def get_params(self) -> dict[str, Any]:
        """The constructor's arguments; arrays are copies."""
        return {name: _copied(getattr(self, name)) for name in self.parameter_names()}

    @classmethod
    def preset(cls, dataset: str) -> dict[str, Any]:
        """The authors' parameters for one of their data sets, for example `TDA(t, **TDA.preset("dtd"))`."""
        if not cls.presets:
            raise ValueError(f"{cls.__name__} has no presets: its authors use one setting for all data.")
        if dataset not in cls.presets:
            known = ", ".join(sorted(cls.presets))
            raise ValueError(
                f"dataset must be one of {known}; got {dataset!r}. {did_you_mean(str(dataset), cls.presets)}".rstrip()
            )
        return dict(cls.presets[dataset])

    @classmethod
    def parameter_names(cls) -> tuple[str, ...]:
        return tuple(cls.declared_parameters)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write parameters and state to one safetensors file. A file at `path` is replaced completely or not at all."""
        self._in_turn(False, self._save, path)

    def _save(self, path: str | os.PathLike[str]) -> None:
        self._check_usable()
        serialization.save(self, path)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        library: str | None = None,
        device: str | None = None,
        **changes: Any,
    ) -> Self:
        """A saved method that continues bit for bit where it stopped.

        `library` ("numpy" or "torch") and `device` default to those it was saved from. `changes` may name parameters
        that select how to compute but not what (see `reload_parameters`), such as `engine="direct"`, and must name the
        models the method computes with (see `model_parameters`), such as `text=...`.
        """
        return serialization.load(cls, path, library=library, device=device, changes=changes)

    def _state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """The declared state as arrays and JSON values, for a state file."""
        arrays: dict[str, Array] = {}
        values: dict[str, Any] = {}
        backend = Backend.of(self.prototypes)
        for name, declared in self.declared_states.items():
            serialization.pack(getattr(self, name), declared.saved_as, arrays, values, backend)
        return arrays, values

    def _restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        """Put back what `_state` returned. Arrays are in this method's library already."""
        for name, declared in self.declared_states.items():
            fresh = getattr(self, name)
            setattr(self, name, serialization.unpack(fresh, declared.saved_as, arrays, values, grows=declared.grows))
        for name, declared in self.declared_states.items():
            value = getattr(self, name)
            if declared.holds is not None:
                declared.holds(declared.saved_as, value)
            if declared.check is not None:
                declared.check(self, value)
            if hasattr(value, "check_seen"):
                value.check_seen(self._n_seen)
        self._derive()

    def zeros(self, *shape: int) -> Array:
        """A float64 array of zeros in the library and on the device of the prototypes, for the state of a method."""
        return Backend.of(self.prototypes).zeros(shape)

    def as_own(self, numbers: Array) -> Array:
        """A copy of a NumPy array, or of an array of the state, in the library and on the device of the prototypes."""
        backend = Backend.of(self.prototypes)
        return backend.xp.asarray(numbers, device=backend.device, copy=True)

    def as_float64(self, array: Array) -> Array:
        """An array in float64, in the library and on the device of the prototypes; it may be the same memory."""
        backend = Backend.of(self.prototypes)
        return backend.asarray(array, backend.xp.float64)

    @property
    def prototypes64(self) -> Array:
        """The prototypes in float64, the precision that features have in `learn` and `score`."""
        return self._prototypes64

    @property
    def n_seen(self) -> int:
        """Number of samples seen since the last reset; like every call that reads, after whole calls."""
        return self._in_turn(False, getattr, self, "_n_seen")

    @n_seen.setter
    def n_seen(self, samples: int) -> None:
        self._n_seen = samples

    @property
    def _adapted_together(self) -> int:
        """How many samples `adapt` learns from together."""
        return int(getattr(self, "batch_size", None) or 1)

    @property
    def n_classes(self) -> int:
        return int(self.prototypes.shape[0])

    @property
    def dimension(self) -> int:
        return int(self.prototypes.shape[1])

    def __repr__(self) -> str:
        backend = Backend.of(self.prototypes)
        where = backend.library if backend.library == "numpy" else f"{backend.library} {backend.device}"
        parts = [f"<prototypes {self.n_classes} x {self.dimension}, {where}>"]
        for name, declared in self.declared_parameters.items():
            value = getattr(self, name)
            if declared.kind == "array":
                if name != "prototypes" and value is not None:
                    arrays = value if isinstance(value, tuple) else (value,)
                    parts.append(f"{name}=<{', '.join(str(tuple(array.shape)) for array in arrays)}>")
            elif value is not declared.default and value != declared.default:
                parts.append(f"{name}={value!r}")
        return f"{type(self).__name__}({', '.join(parts)}, n_seen={self.n_seen})"

    def _answer(self, features: Array, *, learn: bool, probabilities: bool) -> Array:
        features = as_floats("features", features)
        single = len(features.shape) == 1
        matrix = features[None, :] if single else features
        # The whole input is checked before anything is learned: a bad row leaves the state as it was.
        check_matrix("features", matrix, columns=self.dimension, classes=self.n_classes, empty=True)
        if matrix.shape[0] == 0:
            return self._no_answers(matrix)
        rows = self._rows(matrix)
        answer = self._collect(
            rows, matrix, self._adapt_scores if learn else self._predict_blocks, learn, probabilities
        )
        return answer[0] if single else answer

    def _no_answers(self, given: Array) -> Array:
        """What no samples are answered with, (0, K), in the library, device and precision of `given`."""
        self._in_turn(False, self._check_usable)
        caller = Backend.of(given)
        precision = caller.xp.float64 if is_double(given) else caller.xp.float32
        return caller.xp.empty((0, self.n_classes), dtype=precision, device=caller.device)

    def _rows(self, features: Array) -> Rows:
        """Checked features in this method's library, device and precision."""
        backend = Backend.of(self.prototypes)
        selected = getattr(self, "precision", "auto") if "precision" in self.declared_parameters else self.computes_in
        if selected in (None, "auto"):
            selected = "float64" if is_double(features) else "float32"
        return Rows(features, backend, getattr(backend.xp, selected))

    def _collect(
        self,
        rows: Rows,
        given: Array,
        run: Callable[[Any], Iterator[tuple[slice, Array]]],
        learn: bool,
        probabilities: bool,
    ) -> Array:
        """The scores that `run` yields for the rows, in the library, device and precision of `given`."""

        def collect() -> Array:
            steps = self._collecting(rows, given, run, learn, probabilities)
            try:
                while True:
                    next(steps)
            except StopIteration as end:
                return end.value
            finally:
                steps.close()

        return self._in_turn(learn, collect)

    def _answering(self, features: Array, *, learn: bool) -> Collecting:
        """`adapt` or `predict` of features (n, d) in steps: a caller may do something else after each of them.

        Nothing keeps other calls away meanwhile: the caller must be the only one who uses the object.
        """
        check_matrix("features", features, columns=self.dimension, classes=self.n_classes)
        run = self._adapt_scores if learn else self._predict_blocks
        return self._collecting(self._rows(features), features, run, learn, True)

    def _collecting(
        self,
        rows: Rows,
        given: Array,
        run: Callable[[Any], Iterator[tuple[slice, Array]]],
        learn: bool,
        probabilities: bool,
    ) -> Collecting:
        """`_collect` in steps, not in turn with other calls."""

        def write(steps: Iterator[Step], answer: Array) -> Iterator[tuple[slice, Array]]:
            for block, scores in steps:
                if callable(scores):
                    write_in_threads(block, scores, answer)
                else:
                    if isinstance(scores, Probabilities):
                        scores = scores.values
                    elif probabilities:
                        scores = self._probabilities(scores)
                    # torch converts numbers that it writes to a slice, but not those that it writes to single rows.
                    answer[block] = (
                        scores if isinstance(block, slice) else namespace(answer).astype(scores, answer.dtype)
                    )
                yield block, answer[block]

        def write_in_threads(block: slice, score: Callable[[slice], Iterator[Step]], answer: Array) -> None:
            count = block.stop - block.start
            with own_threads(Backend.of(answer).library, scores=count * self.n_classes) as threads:
                parts = [slice(block.start + part.start, block.start + part.stop) for part in threads.split(count)]
                threads.map(lambda part: list(write(score(part), answer)), parts)

        self._check_usable()
        backend, caller = Backend.of(self.prototypes), Backend.of(given)
        precision = "float64" if is_double(given) else "float32"
        with backend.computing():
            # Not zeros: they are written anyway, and NumPy gets the memory in larger pages.
            shape = (len(rows), self.n_classes)
            answer = backend.xp.empty(shape, dtype=getattr(backend.xp, precision), device=backend.device)
            steps = run(rows)

            try:
                yield from write(steps, answer)
            finally:
                if isinstance(steps, Generator):
                    steps.close()  # now: what it does at its end belongs to this call
            return caller.asarray(answer, getattr(caller.xp, precision))

    def _predict_blocks(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        return ((block, self._predict_scores(x)) for block, x in rows.blocks(self._predict_rows))

    @property
    def _predict_rows(self) -> int:
        """Rows scored together; a method whose scores need more memory than themselves uses fewer."""
        return PREDICT_ROWS

    def _in_turn(self, learns: bool, function: Callable[..., T], *arguments: Any) -> T:
        """`function(*arguments)` when it may run: alone, and with signals that can be postponed, if it learns."""
        with Watch(enabled=learns):
            return self._turns.run(learns, function, *arguments)

    def _learning(self, samples: int = 1, *, replace: bool = False) -> _Learning:
        """A section that changes the state: `with self._learning(samples): ...`.

        Signals are handled when it ends, so an interrupt never finds a sample half learned. Then the samples are
        counted: added to those learned before or, with `replace`, instead of them. If an exception is raised inside,
        the state may be incomplete: the object then refuses every call until `reset` or `load`. Therefore compute
        first, and write inside the section.
        """
        return _Learning(self, samples, replace)

    def _check_usable(self) -> None:
        if self._turns.broken_by_fork:
            self._failure = "the process was forked meanwhile, in another thread"
        if self._failure is not None:
            raise RuntimeError(
                f"this {type(self).__name__} failed while it changed its state ({self._failure}), which may be "
                "incomplete. Fix: call reset(), or load the last saved state."
            )


def _reads_in_turn(read: Callable[[Any], T]) -> Callable[[Any], T]:
    """The getter of a property as a call that reads."""

    @wraps(read)
    def getter(method: Method) -> T:
        return method._in_turn(False, read, method)

    return getter


class OnlineMethod(Method):
    """An online method in two functions: `learn` from one sample, `score` samples.

    The class attribute `scored` says whether a sample is predicted `"before"` or `"after"` it is learned. A method with
    a parameter `batch_size` learns from that many samples together: `learn` and `plan` then get all of them.
    """

    protocol = "online"

    def observe(self, features: Array) -> Any:
        """What the other functions get instead of samples (n, d): an array or a named tuple of arrays with n rows.

        By default it is the samples. Nothing changes.
        """
        return features

    def plan(self, x: Any) -> Any:
        """What `learn` gets, computed from one sample and the state, which does not change; by default the sample.

        An interrupt or an exception leaves the method as it was, so long computations belong here.
        """
        return x

    @abstractmethod
    def learn(self, x: Any) -> None:
        """Change the state by one sample (d,), or by what `plan` made of it."""

    @abstractmethod
    def score(self, features: Any) -> Array:
        """Scores (n, K) of observed samples with the present state, which does not change."""

    def answer(self, observed: Any, step: Any) -> Array:
        """Scores (n, K) of the samples of a step, if they follow from what `plan` returned; by default `score`.

        With `scored = "before"` it is called before `learn`.
        """
        return self.score(observed)

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        for block, features in rows.blocks(self._adapted_together):
            yield block, self._learn_and_score(self.observe(features), features.shape[0])

    def _learn_and_score(self, observed: Any, samples: int) -> Array:
        """Learn from samples that are learned together; return their scores (n, K)."""
        step = self.plan(observed if "batch_size" in self.declared_parameters else _first(observed))
        # Of the class: a parameter may have the same name.
        before = type(self).answer(self, observed, step) if self.scored == "before" else None
        with self._learning(samples):
            self.learn(step)
        return type(self).answer(self, observed, step) if before is None else before

    def _predict_scores(self, features: Array) -> Array:
        return self.score(self.observe(features))


def _first(observed: Any) -> Any:
    """The first sample of an array, or of a named tuple of arrays."""
    return type(observed)(*(part[0] for part in observed)) if hasattr(observed, "_fields") else observed[0]


class SetMethod(Method):
    """A transductive method in two functions: `fit` a whole set, `score` samples with what was learned.

    A method with a parameter `batch_size` fits that many samples at a time, and keeps what it learned from the last.
    """

    protocol = "transductive"
    reads_parts: ClassVar[bool] = False
    """Whether `fit` gets `Rows`, of which it reads parts, instead of an array."""

    @abstractmethod
    def fit(self, features: Any) -> tuple[Array, Mapping[str, Any]]:
        """The scores (N, K) of a set (N, d), and the new value of every piece of state. Nothing changes."""

    @abstractmethod
    def score(self, features: Array) -> Array:
        """Scores (n, K) of samples (n, d) with the present state, which does not change."""

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        size = getattr(self, "batch_size", None) or len(rows)
        for batch, features in [(slice(0, size), rows)] if self.reads_parts else rows.blocks(size):
            scores, learned = self.fit(features)
            if batch.stop == len(rows):
                with self._learning(len(rows), replace=True):
                    for name, value in learned.items():
                        setattr(self, name, value)
                    self._derive()
            yield batch, scores

    def _predict_scores(self, features: Array) -> Array:
        return self.score(features)


class _Learning:
    """See `Method._learning`."""

    __slots__ = ("_method", "_replace", "samples")

    def __init__(self, method: Method, samples: int, replace: bool) -> None:
        self._method, self.samples, self._replace = method, samples, replace

    def __enter__(self) -> Self:
        postpone()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._method._n_seen = self.samples if self._replace else self._method._n_seen + self.samples
        else:
            self._method._failure = f"{kind.__name__}: {error}"
        resume()


def _make_read_only(value: Any) -> None:
    """NumPy arrays, also inside a tuple, can no longer be written to."""
    for array in value if isinstance(value, tuple) else (value,):
        if isinstance(array, np.ndarray):
            array.flags.writeable = False


def _copied(value: Any) -> Any:
    """Arrays, also inside a tuple, are copied; everything else is returned as it is."""
    if isinstance(value, tuple) and any(hasattr(item, "shape") for item in value):
        return tuple(_copied(item) for item in value)
    return Backend.of(value).copy(value) if hasattr(value, "shape") else value


def _same(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, tuple) and isinstance(theirs, tuple) and len(mine) == len(theirs):
        return all(_same(a, b) for a, b in zip(mine, theirs, strict=True))
    if hasattr(mine, "shape") and hasattr(theirs, "shape"):
        return np.array_equal(to_numpy(mine), to_numpy(theirs))
    return bool(mine is theirs or (not hasattr(mine, "shape") and not hasattr(theirs, "shape") and mine == theirs))


def _merged(rule: str | Callable[[Any, Any], Any] | None, mine: Any, theirs: Any) -> Any:
    """Two values of one piece of state as one, by its rule."""
    if callable(rule):
        return rule(mine, theirs)
    if isinstance(mine, tuple):
        return type(mine)(*(_merged(rule, a, b) for a, b in zip(mine, theirs, strict=True)))
    if hasattr(theirs, "shape"):
        theirs = Backend.of(mine).asarray(theirs, mine.dtype)
    if rule == "sum":
        return mine + theirs
    if not _same(mine, theirs):
        raise ValueError("the two states differ where they must be equal, so they cannot be merged.")
    return mine


class ViewMethod(Method):
    """A method that accepts views (V, d) of an image, of which view 0 is the image itself, as well as single features.

    An online subclass defines `_adapt_view`; one that learns from several images together `_adapt_view_scores`.
    """

    takes: ClassVar[tuple[str, ...]] = ("views",)

    def _adapt_view(self, views: Array) -> Array:
        """Learn from the views (V, d) of one image, in a section `self._learning()`; return its scores (K,)."""
        raise NotImplementedError(f"{type(self).__name__} defines neither _adapt_view nor _adapt_view_scores.")

    def _adapt_view_scores(self, images: Rows) -> Iterator[tuple[slice, Array]]:
        """Learn from images (N, V, d); yield (slice of the images, their scores (n, K)) in order."""
        for block, views in images.blocks(1):
            yield block, self._adapt_view(views[0])[None, :]

    def adapt_views(self, views: Array) -> Array:
        """Learn from each image's views and predict it: (N, K) for (N, V, d), (K,) for (V, d) of one image."""
        return self._answer_views(views, learn=True, probabilities=True)

    def adapt_views_scores(self, views: Array) -> Array:
        """Like `adapt_views`, but return the raw scores."""
        return self._answer_views(views, learn=True, probabilities=False)

    def _answer_views(self, views: Array, *, learn: bool, probabilities: bool) -> Array:
        images, single = as_images(views, self.dimension, empty=True)
        if images.shape[0] == 0:
            return self._no_answers(images)
        # The whole input is checked before anything is learned: a bad view leaves the state as it was.
        for block in blocks(images.shape[0], images.shape[1] * images.shape[2]):
            check_unit_views(images[block], block.start)
        run = self._adapt_view_scores if learn else self._predict_view_scores
        answer = self._collect(self._rows(images), images, run, learn, probabilities)
        return answer[0] if single else answer

    def _predict_view_scores(self, images: Rows) -> Iterator[tuple[slice, Array]]:
        """Scores of images from their views with the present state, for methods that support it."""
        raise NotImplementedError(f"{type(self).__name__} predicts from single features only.")


class OnlineViewMethod(OnlineMethod, ViewMethod):
    """An online method that observes samples with their zero-shot predictions, and views by the mean of the best."""

    logit_scale: float = parameter(Number(low=0, above=True), "Scale of the logits; 100 for CLIP.", default=100.0)
    view_ratio: float = parameter(
        Number(0, 1, above=True),
        "Share of the views that `adapt_views` keeps, those of lowest entropy; at least one.",
        default=RATIO,
    )

    def observe(self, features: Array) -> Any:
        return observe(features, self.prototypes64, self.logit_scale)

    def observe_views(self, views: Array) -> Any:
        """What the other functions get of one image, from its views (V, d): one sample."""
        return observe_views(views, self.prototypes64, self.logit_scale, self.view_ratio)

    def _adapt_view(self, views: Array) -> Array:
        return self._learn_and_score(self.observe_views(views), 1)[0]


class TwoEncoderMethod(ViewMethod):
    """A method that takes features of the same images from a second encoder, in addition to those of the first.

    `_adapt_scores` and `_predict_scores` then get the features of the second encoder as further columns; see `_parts`.
    A method that cannot do without them has "second" in `needs`, too.
    """

    takes: ClassVar[tuple[str, ...]] = ("views", "second")
    views_with_second: ClassVar[bool] = False
    """Whether `adapt_views` takes `second`."""

    def adapt(self, features: Array, *, second: Array | None = None) -> Array:
        """Learn from `features` and predict them, in the order `scored` says: (N, K) for (N, d), (K,) for (d,).

        `second` (N, e) may hold features of the same images from another encoder, of unit length, which needs no text.
        Give it with every call or with none.

        If the call is interrupted or fails, the state is as before the call or after a whole number of samples. If an
        exception is raised while the state is being changed, the object refuses calls until `reset` or `load`.
        """
        if second is None:
            return super().adapt(features)
        return self._answer_both(features, second, learn=True, probabilities=True)

    def adapt_scores(self, features: Array, *, second: Array | None = None) -> Array:
        """Like `adapt`, but return the raw scores before they are normalised to probabilities."""
        if second is None:
            return super().adapt_scores(features)
        return self._answer_both(features, second, learn=True, probabilities=False)

    def predict(self, features: Array, *, second: Array | None = None) -> Array:
        """Probabilities with what has been learned so far. Nothing is learned and no state changes.

        `second` is as in `adapt`. Where a method can do without it, the first encoder's features then decide, also
        after a stream that had both.
        """
        if second is None:
            return super().predict(features)
        return self._answer_both(features, second, learn=False, probabilities=True)

    def predict_scores(self, features: Array, *, second: Array | None = None) -> Array:
        """Like `predict`, but return the raw scores."""
        if second is None:
            return super().predict_scores(features)
        return self._answer_both(features, second, learn=False, probabilities=False)

    def _answer_both(self, features: Array, second: Array, *, learn: bool, probabilities: bool) -> Array:
        rows, matrix, single = self._both_rows(features, second, empty=True)
        if matrix.shape[0] == 0:
            return self._no_answers(matrix)
        run: Callable[[Any], Iterator[tuple[slice, Array]]] = self._adapt_scores if learn else self._predict_blocks
        answer = self._collect(rows, matrix, run, learn, probabilities)
        return answer[0] if single else answer

    def _both_rows(self, features: Array, second: Array, *, empty: bool = False) -> tuple[Rows, Array, bool]:
        """Checked features of both encoders side by side, the first encoder's as a matrix, and if it is one sample."""
        features, second = as_floats("features", features), as_floats("second", second)
        single = len(features.shape) == 1
        if len(second.shape) != len(features.shape):
            raise ValueError(
                f"second has {len(second.shape)} dimension(s), but features has {len(features.shape)}. "
                "Fix: one row of each encoder for every image."
            )
        matrix, other = (features[None, :], second[None, :]) if single else (features, second)
        check_matrix("features", matrix, columns=self.dimension, classes=self.n_classes, empty=empty)
        check_matrix("second", other, empty=empty)
        if other.shape[0] != matrix.shape[0]:
            raise ValueError(
                f"second has {other.shape[0]} rows, but features has {matrix.shape[0]}: one row for each image, in the "
                "same order. Fix: features of the same images from both encoders."
            )
        return BothRows(self._rows(matrix), self._rows(other)), matrix, single

    def _parts(self, x: Array) -> tuple[Array, Array | None]:
        """The columns of the first encoder, and those of the second."""
        if x.shape[1] == self.dimension:
            return x, None
        return x[:, : self.dimension], x[:, self.dimension :]


class EpisodicMethod(ViewMethod):
    """A method that adapts to the views of one image, predicts it, and forgets it.

    Nothing is learned from one image for the next: `predict` returns the same as `adapt`, which also counts the images.
    A single feature is an image with one view. A subclass defines `_episodes`.
    """

    protocol = "episodic"
    needs: ClassVar[tuple[str, ...]] = ("prototypes", "views")
    takes: ClassVar[tuple[str, ...]] = ()
    state_size = "K d, the prototypes"
    not_frozen = "it adapts to every image that it predicts"

    @abstractmethod
    def _episodes(self, views: Array) -> Array:
        """Scores (B, K) of B images with V views each, (B, V, d), every image from its own views only."""

    def predict_views(self, views: Array) -> Array:
        """Like `adapt_views`, but the images are not counted."""
        return self._answer_views(views, learn=False, probabilities=True)

    def predict_views_scores(self, views: Array) -> Array:
        """Like `predict_views`, but return the raw scores."""
        return self._answer_views(views, learn=False, probabilities=False)

    def _images_per_block(self, n_views: int) -> int:
        """Images processed together; a method that needs more memory than views and logits uses fewer."""
        return max(1, WORK_NUMBERS // (n_views * max(self.dimension, self.n_classes)))

    def _predict_view_scores(self, images: Rows) -> Iterator[tuple[slice, Array]]:
        n_views = images[:1].shape[1]
        return ((block, self._episodes(views)) for block, views in images.blocks(self._images_per_block(n_views)))

    def _adapt_view_scores(self, images: Rows) -> Iterator[tuple[slice, Array]]:
        for block, scores in self._predict_view_scores(images):
            with self._learning(scores.shape[0]):
                pass
            yield block, scores

    def _predict_scores(self, features: Array) -> Array:
        return self._episodes(features[:, None, :])

    @property
    def _predict_rows(self) -> int:
        return min(super()._predict_rows, self._images_per_block(1))

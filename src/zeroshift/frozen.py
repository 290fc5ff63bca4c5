"""A classifier that no longer learns: a few arrays, and a short list of operations from features to probabilities.

`Method.freeze` records what `predict` computes with the present state. The method writes it once, with the operators of
`Expression`; NumPy (`FrozenHead.predict`), torch (`zeroshift.torch`) and ONNX (`zeroshift.onnx`) all execute the steps
recorded here, so that they cannot disagree about what is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from zeroshift.arrays import Array, Backend, Rows, as_floats, check_matrix, is_double, namespace, to_numpy
from zeroshift.zero_shot import softmax

__all__ = ["FEATURES", "OPERATIONS", "PROBABILITIES", "Expression", "FrozenHead", "Step", "evaluate", "record"]

FEATURES, PROBABILITIES = "features", "probabilities"
"""Names of the input and of the result."""

OPERATIONS: Mapping[str, Callable[..., Array]] = {
    "matmul": lambda a, b: a @ b,
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "relu": lambda a: namespace(a).clip(a, 0.0, None),
    "exp": lambda a: namespace(a).exp(a),
    "sqrt": lambda a: namespace(a).sqrt(a),
    "sum": lambda a: namespace(a).sum(a, axis=-1, keepdims=True),
    "max": lambda a: namespace(a).max(a, axis=-1, keepdims=True),
    "softmax": softmax,
    "columns": lambda a: a[..., 0].T,
}
"""What a step may be, for NumPy and torch; `zeroshift.onnx` has the operators of ONNX. Shapes broadcast as in NumPy.
`sum`, `max` and `softmax` are along the last axis, which `sum` and `max` keep with length 1. `columns` makes (n, K)
from (K, n, 1)."""

SMALLEST_SQUARE = 1e-30
"""Added to the squared length of a row before it is scaled to unit length, so that a row of zeros stays one."""

WORK_NUMBERS = 4_000_000
"""Numbers of one intermediate result held in memory at one time: 32 MB in float64."""


class Step(NamedTuple):
    """One operation; inputs are names of arrays, of earlier outputs, or `FEATURES`."""

    operation: str
    inputs: tuple[str, ...]
    output: str


def evaluate(steps: Sequence[Step], arrays: Mapping[str, Array], features: Array) -> Array:
    """The result of the steps for features (n, d), in the library, device and precision of features and arrays."""
    values = {**arrays, FEATURES: features}
    for operation, inputs, output in steps:
        values[output] = OPERATIONS[operation](*(values[name] for name in inputs))
    return values[PROBABILITIES]


class Expression:
    """Numbers computed from features. Operators and functions record further steps; what stands on the right of an
    operator is another expression, an array or a number, which is copied.

    >>> head = record(2, 3, lambda x: (x @ np.ones((2, 3)) + 1.0).softmax())
    >>> [step.operation for step in head.steps]
    ['matmul', 'add', 'softmax']
    >>> head.predict(np.array([0.6, 0.8])).round(3)
    array([0.333, 0.333, 0.333])
    """

    __array_ufunc__ = None  # NumPy must not apply the operators to each number

    def __init__(self, name: str, steps: list[Step], arrays: dict[str, np.ndarray]) -> None:
        self._name, self._steps, self._arrays = name, steps, arrays

    def _step(self, operation: str, *others: Expression | Array) -> Expression:
        inputs = (self._name, *map(self._name_of, others))
        self._steps.append(Step(operation, inputs, f"{operation}_{len(self._steps)}"))
        return Expression(self._steps[-1].output, self._steps, self._arrays)

    def _name_of(self, operand: Expression | Array) -> str:
        if isinstance(operand, Expression):
            return operand._name
        name = f"array_{len(self._arrays)}"
        self._arrays[name] = np.array(to_numpy(operand), dtype=np.float64, order="C")
        self._arrays[name].flags.writeable = False
        return name

    def __matmul__(self, other: Expression | Array) -> Expression:
        return self._step("matmul", other)

    def __add__(self, other: Expression | Array) -> Expression:
        return self._step("add", other)

    def __sub__(self, other: Expression | Array) -> Expression:
        return self._step("subtract", other)

    def __mul__(self, other: Expression | Array) -> Expression:
        return self._step("multiply", other)

    def __truediv__(self, other: Expression | Array) -> Expression:
        return self._step("divide", other)

    def relu(self) -> Expression:
        """Negative numbers replaced by 0."""
        return self._step("relu")

    def exp(self) -> Expression:
        return self._step("exp")

    def sqrt(self) -> Expression:
        return self._step("sqrt")

    def sum(self) -> Expression:
        """Sums along the last axis, which remains with length 1."""
        return self._step("sum")

    def max(self) -> Expression:
        """The largest number along the last axis, which remains with length 1."""
        return self._step("max")

    def softmax(self) -> Expression:
        """Exponentials over their sum along the last axis."""
        return self._step("softmax")

    def columns(self) -> Expression:
        """(n, K) from (K, n, 1)."""
        return self._step("columns")

    def unit(self) -> Expression:
        """Rows scaled to unit length; rows of zeros stay zero."""
        return self / ((self * self).sum() + SMALLEST_SQUARE).sqrt()

    def linear(self, weights: Array, offsets: Array | None = None) -> Expression:
        """x.w_k + b_k, (n, K), for weights (K, d) and offsets (K,), minus its mean over the classes.

        Only for scores that a softmax follows: there the mean cancels. Without it the numbers are smaller, so that
        float32 loses less.
        """
        wide = to_numpy(weights).astype(np.float64)
        scores = self @ (wide - wide.mean(axis=0)).T
        if offsets is None or not to_numpy(offsets).any():
            return scores
        wide = to_numpy(offsets).astype(np.float64)
        return scores + (wide - wide.mean())

    def to_each(self, vectors: Array) -> Expression:
        """x.v_km, (K, n, M), for vectors (K, M, d), such as M samples kept for each class."""
        return self @ np.swapaxes(to_numpy(vectors), 1, 2)


@dataclass(frozen=True, eq=False)
class FrozenHead:
    """What `predict` of a method computed when `freeze` was called. It learns nothing, and does not change if the
    method learns.

    >>> from zeroshift import ZeroShot
    >>> head = ZeroShot(np.eye(2), logit_scale=5.0).freeze(class_names=["cat", "dog"])
    >>> head
    FrozenHead(zero_shot, 2 classes, d = 2, matmul softmax)
    >>> head.predict(np.array([0.8, 0.6])).round(6)
    array([0.731059, 0.268941])
    """

    method: str
    """Name of the method."""
    n_seen: int
    """Samples that the method had seen."""
    dimension: int
    n_classes: int
    class_names: tuple[str, ...] | None
    logit_scale: float | None
    """None if the method has none."""
    normalize: bool
    """Whether rows are scaled to unit length. Otherwise they must have unit length."""
    steps: tuple[Step, ...]
    arrays: Mapping[str, np.ndarray]
    """The numbers in the steps, by name, in float64."""

    def predict(self, features: Array) -> Array:
        """Probabilities (N, K) of features (N, d), or (K,) of one (d,), computed by NumPy in float64."""
        features = as_floats("features", features)
        single = len(features.shape) == 1
        matrix = features[None, :] if single else features
        check_matrix(
            "features", matrix, columns=self.dimension, classes=self.n_classes, unit=not self.normalize, empty=True
        )
        caller = Backend.of(matrix)
        answer = np.empty((matrix.shape[0], self.n_classes))
        for rows, x in Rows(matrix, _NUMPY, np.float64).blocks(max(1, WORK_NUMBERS // self._numbers_per_row)):
            answer[rows] = evaluate(self.steps, self.arrays, x)
        found = caller.asarray(answer, caller.xp.float64 if is_double(matrix) else caller.xp.float32)
        return found[0] if single else found

    @property
    def _numbers_per_row(self) -> int:
        """In the largest intermediate result: a product with an array (..., d, m) has this array's size over d."""
        return max(array.size // array.shape[-2] for array in self.arrays.values() if array.ndim > 1)

    def __repr__(self) -> str:
        operations = " ".join(step.operation for step in self.steps)
        return f"FrozenHead({self.method}, {self.n_classes} classes, d = {self.dimension}, {operations})"


_NUMPY = Backend.of(np.empty(0))


def record(
    dimension: int,
    n_classes: int,
    compute: Callable[[Expression], Expression],
    *,
    class_names: Sequence[Any] | None = None,
    normalize: bool = False,
    method: str = "",
    n_seen: int = 0,
    logit_scale: float | None = None,
) -> FrozenHead:
    """The head that computes probabilities (n, K) as `compute` does, from features (n, d)."""
    if class_names is not None:
        if isinstance(class_names, str) or len(class_names) != n_classes:
            given = repr(class_names) if isinstance(class_names, str) else f"{len(class_names)} of them"
            raise ValueError(
                f"class_names must be {n_classes} names, one for each prototype; got {given}. "
                "Fix: a list, in the order of the prototypes."
            )
        class_names = tuple(map(str, class_names))
    steps: list[Step] = []
    arrays: dict[str, np.ndarray] = {}
    features = Expression(FEATURES, steps, arrays)
    probabilities = compute(features.unit() if normalize else features)
    last = steps.pop()
    if last.output != probabilities._name:
        raise ValueError(f"the result must be the last step, {last.output}; got {probabilities._name}.")
    steps.append(last._replace(output=PROBABILITIES))
    return FrozenHead(method, n_seen, dimension, n_classes, class_names, logit_scale, normalize, tuple(steps), arrays)

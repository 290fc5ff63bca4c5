"""A network of two linear layers with a rectifier between them, and its gradients."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Self

import numpy as np

from zeroshift.arrays import Array
from zeroshift.methods._shared.tuning import checked_start

__all__ = ["TwoLayerNet", "checked_net"]


class TwoLayerNet(NamedTuple):
    """Weights (h, d) and biases (h,) of the first layer, weights (m, h) and biases (m,) of the second."""

    weights1: Array
    biases1: Array
    weights2: Array
    biases2: Array

    @classmethod
    def random(cls, draw: np.random.Generator, inputs: int, hidden: int, outputs: int) -> Self:
        """As torch initialises linear layers: uniform, up to 1 / sqrt(inputs)."""
        layers = ((hidden, inputs), inputs), (hidden, inputs), ((outputs, hidden), hidden), (outputs, hidden)
        limits = ((shape, 1 / math.sqrt(before)) for shape, before in layers)
        return cls(*(draw.uniform(-limit, limit, size=shape) for shape, limit in limits))

    def outputs(self, rows: Array) -> Array:
        """(n, m) for rows (n, d)."""
        return self._hidden(rows) @ self.weights2.T + self.biases2

    def pull_back(self, rows: Array, upstream: Array) -> tuple[Array, TwoLayerNet]:
        """Gradients of sum(upstream * outputs(rows)) with respect to the rows and to the parameters."""
        hidden = self._hidden(rows)
        below = (hidden > 0) * (upstream @ self.weights2)
        own = TwoLayerNet(below.T @ rows, below.sum(axis=0), upstream.T @ hidden, upstream.sum(axis=0))
        return below @ self.weights1, own

    def _hidden(self, rows: Array) -> Array:
        hidden = rows @ self.weights1.T + self.biases1
        return (hidden > 0) * hidden


def checked_net(name: str, given: Any, inputs: int, outputs: int | None, fix: str) -> TwoLayerNet:
    """A caller's parameters in float64; an error that names `name` if they do not fit. `outputs` None allows any."""
    if not isinstance(given, (tuple, list)) or len(given) != 4:
        raise TypeError(
            f"{name} must be four arrays: weights (h, {inputs}), biases (h,), weights (m, h), biases (m,); got "
            f"{type(given).__name__}. Fix: {fix}."
        )
    hidden, last = (int(array.shape[0]) if getattr(array, "ndim", 0) == 2 else 1 for array in (given[0], given[2]))
    last = last if outputs is None else outputs
    shapes = ((hidden, inputs), (hidden,), (last, hidden), (last,))
    parts = zip(given, shapes, strict=True)
    return TwoLayerNet(*(checked_start(f"{name}[{i}]", array, shape, fix) for i, (array, shape) in enumerate(parts)))

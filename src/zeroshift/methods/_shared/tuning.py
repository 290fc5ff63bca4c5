"""Gradient steps without a tracing library: the loop over steps, optimizers, and losses of tuning methods.

Everything works on plain arrays. Each loss returns its value and its gradient in closed form.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from zeroshift.arrays import Array, as_array, is_array, namespace, to_numpy
from zeroshift.methods._shared.similarity import TINY
from zeroshift.state_checks import check_seen
from zeroshift.zero_shot import log_softmax


def tune(
    value: Array, gradient: Callable[[Array], tuple[Any, Array]], optimizer: Optimizer, steps: int = 1
) -> tuple[Array, list[Any]]:
    """The value after some steps of an optimizer, and the loss before each of them.

    `gradient` of a value is the loss and its gradient. Instead of the loss it may return whatever else a method needs.

    >>> import numpy as np
    >>> tune(np.array([1.0]), lambda x: (float(x[0] ** 2), 2 * x), SGD(rate=0.25), steps=2)
    (array([-0.2]), [1.0, 0.25])
    """
    losses = []
    for _ in range(steps):
        loss, slope = gradient(value)
        value = optimizer.step(value, slope)
        losses.append(loss)
    return value, losses


class Optimizer(ABC):
    """Updates one array. `step` replaces what is remembered of earlier steps, so a shallow copy is independent.

    Parameters
    ----------
    rate : step size.
    weight_decay : see the subclass.
    """

    names: ClassVar[tuple[str, ...]]
    """What is remembered of earlier steps: arrays of the shape of the updated one."""

    def __init__(self, rate: float, weight_decay: float) -> None:
        self.rate, self.weight_decay = rate, weight_decay
        self.steps = 0
        self._moments: tuple[Array, ...] = ()

    @abstractmethod
    def step(self, parameter: Array, gradient: Array) -> Array:
        """The parameter after one step against the gradient. Neither array is changed."""

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """What is remembered, for a method that continues from it; no arrays before the first step."""
        return dict(zip(self.names, self._moments, strict=False)), {"steps": self.steps}

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self.steps, self._moments = int(values["steps"]), tuple(arrays[name] for name in self.names if name in arrays)

    def check(self, parameter: Array, n_seen: int) -> None:
        """ValueError if what was restored does not fit `parameter`, or the steps not the samples seen."""
        check_seen("steps", self.steps, n_seen)
        if [moment.shape for moment in self._moments] != [parameter.shape] * (len(self.names) if self.steps else 0):
            raise ValueError(f"{self.names} do not fit {self.steps} steps of an array of shape {parameter.shape}")


class AdamW(Optimizer):
    """AdamW (Loshchilov and Hutter, 2019). Each step also shrinks the array by `weight_decay` times `rate`.

    The first step moves every coordinate by `rate * g / (|g| + eps)`, however large the gradient g is:

    >>> import numpy as np
    >>> AdamW(rate=0.1, weight_decay=0.0).step(np.array([1.0, 1.0]), np.array([1e-3, -50.0]))
    array([0.900001, 1.1     ])

    Parameters
    ----------
    betas : share of the first and of the second moment kept at each step.
    eps : added to the square root of the second moment.
    """

    names = ("first_moment", "second_moment")

    def __init__(
        self,
        rate: float,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(rate, weight_decay)
        self.betas, self.eps = betas, eps

    def step(self, parameter: Array, gradient: Array) -> Array:
        keep_first, keep_second = self.betas
        first, second = self._moments or (0.0, 0.0)
        first = keep_first * first + (1 - keep_first) * gradient
        second = keep_second * second + (1 - keep_second) * gradient**2
        self.steps, self._moments = self.steps + 1, (first, second)
        # The moments start at zero; these divisions correct the bias towards zero.
        first, second = first / (1 - keep_first**self.steps), second / (1 - keep_second**self.steps)
        shrunk = parameter * (1 - self.rate * self.weight_decay)
        return shrunk - self.rate * (first / (namespace(parameter).sqrt(second) + self.eps))

    def check(self, parameter: Array, n_seen: int) -> None:
        super().check(parameter, n_seen)
        if self._moments and not to_numpy(self._moments[1]).min() >= 0:  # without tolerance: its square root is taken
            raise ValueError("second_moment must be at least 0; it has smaller numbers.")


class SGD(Optimizer):
    """Gradient descent with momentum. `weight_decay` times the array is added to its gradient.

    >>> import numpy as np
    >>> SGD(rate=0.1, momentum=0.9, nesterov=True).step(np.array([1.0]), np.array([1.0]))
    array([0.81])

    Parameters
    ----------
    momentum : share of the velocity kept at each step.
    nesterov : add the velocity after this step to the gradient, in place of the velocity alone.
    """

    names = ("velocity",)

    def __init__(
        self, rate: float, *, momentum: float = 0.9, nesterov: bool = False, weight_decay: float = 0.0
    ) -> None:
        super().__init__(rate, weight_decay)
        self.momentum, self.nesterov = momentum, nesterov

    def step(self, parameter: Array, gradient: Array) -> Array:
        gradient = gradient + self.weight_decay * parameter
        (before,) = self._moments or (0.0,)
        velocity = self.momentum * before + gradient
        self.steps, self._moments = self.steps + 1, (velocity,)
        return parameter - self.rate * (gradient + self.momentum * velocity if self.nesterov else velocity)


def entropy_of_mean(logits: Array) -> tuple[Array, Array]:
    """Entropy (...) of the mean softmax of views (..., V, K), TPT's loss, and its gradient (..., V, K).

    >>> import numpy as np
    >>> loss, gradient = entropy_of_mean(np.array([[2.0, 0.0], [0.0, 0.0]]))
    >>> round(float(loss), 4), gradient.round(4)
    (0.6188, array([[-0.0421,  0.0421],
           [-0.1002,  0.1002]]))
    """
    xp = namespace(logits)
    log_y = log_softmax(logits)
    highest = xp.max(log_y, axis=-2, keepdims=True)
    # In logarithms: the mean of probabilities that all underflow would give log 0.
    log_mean = xp.log(xp.mean(xp.exp(log_y - highest), axis=-2, keepdims=True)) + highest
    loss = -xp.sum(xp.exp(log_mean) * log_mean, axis=(-2, -1))
    y = xp.exp(log_y)
    # dL/dy = -(log mean + 1) / V; the 1 cancels in the derivative of the softmax.
    pulled = -log_mean
    gradient = y * (pulled - xp.sum(y * pulled, axis=-1, keepdims=True)) / logits.shape[-2]
    return loss, gradient


def entropy_of_each(logits: Array) -> tuple[Array, Array]:
    """Entropy (...) of the softmax of logits (..., K), and its gradient (..., K).

    >>> import numpy as np
    >>> loss, gradient = entropy_of_each(np.array([2.0, 0.0]))
    >>> round(float(loss), 4), gradient.round(4)
    (0.3653, array([-0.21,  0.21]))
    """
    loss, gradient = entropy_of_mean(logits[..., None, :])
    return loss, gradient[..., 0, :]


def cross_entropy(logits: Array, targets: Array) -> tuple[Array, Array]:
    """Cross-entropy (...) of logits (..., K) against target distributions (..., K), and its gradient (..., K)."""
    xp = namespace(logits)
    log_y = log_softmax(logits)
    loss = -xp.sum(targets * log_y, axis=-1)
    return loss, xp.exp(log_y) * xp.sum(targets, axis=-1, keepdims=True) - targets


def logits_to_text(gradient: Array, features: Array, logit_scale: float) -> Array:
    """Gradient with respect to text features (K, d), from that with respect to the logits (n, K) of features (n, d)."""
    return logit_scale * (gradient.T @ features)


def through_unit_rows(gradient: Array, raw: Array) -> Array:
    """Gradient with respect to `raw` rows (..., d), from that with respect to the rows scaled to unit length.

    Its component along a row is zero, and it is divided by the length of the row:

    >>> import numpy as np
    >>> through_unit_rows(np.array([[1.0, 1.0]]), np.array([[2.0, 0.0]]))
    array([[0. , 0.5]])
    """
    xp = namespace(raw)
    lengths = xp.linalg.vector_norm(raw, axis=-1, keepdims=True)
    lengths = xp.where(lengths > TINY, lengths, xp.ones_like(lengths))  # keeps the gradient of a zero row finite
    unit = raw / lengths
    return (gradient - xp.sum(gradient * unit, axis=-1, keepdims=True) * unit) / lengths


def joined(arrays: Iterable[Array]) -> Array:
    """Several arrays as one vector, which an optimizer updates."""
    vectors = [array.reshape(-1) for array in arrays]
    return namespace(vectors[0]).concat(vectors)


def parted(vector: Array, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """The arrays of these shapes that `joined` made a vector of.

    >>> [part.tolist() for part in parted(np.arange(5.0), [(2, 1), (3,)])]
    [[[0.0], [1.0]], [2.0, 3.0, 4.0]]
    """
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    return [vector[end - math.prod(shape) : end].reshape(shape) for end, shape in zip(ends, shapes, strict=True)]


def checked_start(name: str, given: Any, shape: tuple[int, ...], fix: str) -> np.ndarray:
    """Initial values that the caller gives, as a float64 NumPy array of its own; an error that names them if wrong."""
    if not is_array(given):
        raise TypeError(f"{name} must be an array; got {type(given).__name__}. Fix: {fix}.")
    array = to_numpy(as_array(name, given))
    if array.shape != shape:
        raise ValueError(f"{name} must have the shape {shape}; got {array.shape}. Fix: {fix}.")
    if array.dtype.kind not in "fiu" or not np.isfinite(array).all():
        raise ValueError(f"{name} must hold finite numbers; it has NaN, infinity or {array.dtype}. Fix: {fix}.")
    return array.astype(np.float64)

"""Gradient steps without a tracing library: AdamW, and the losses of tuning methods with their gradients.

AdamW (Loshchilov and Hutter, 2019) works on plain arrays. Each loss returns its value and its gradient in closed form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zeroshift.arrays import Array, namespace, to_numpy
from zeroshift.methods._shared.similarity import TINY
from zeroshift.state_checks import check_seen
from zeroshift.zero_shot import log_softmax

__all__ = [
    "SGD",
    "AdamW",
    "cross_entropy",
    "entropy_of_each",
    "entropy_of_mean",
    "logits_to_text",
    "through_unit_rows",
]


class AdamW:
    """Updates one array. Each `step` returns the updated array; moments are kept until `reset`.

    The first step moves every coordinate by `rate * g / (|g| + eps)`, however large the gradient g is:

    >>> import numpy as np
    >>> AdamW(rate=0.1, weight_decay=0.0).step(np.array([1.0, 1.0]), np.array([1e-3, -50.0]))
    array([0.900001, 1.1     ])

    Parameters
    ----------
    rate : step size.
    betas : share of the first and of the second moment kept at each step.
    eps : added to the square root of the second moment.
    weight_decay : each step shrinks the array by this share, times `rate`.
    """

    def __init__(
        self,
        rate: float,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        self.rate, self.betas, self.eps, self.weight_decay = rate, betas, eps, weight_decay
        self.reset()

    def reset(self) -> None:
        """Forget every step."""
        self.steps = 0
        self._first: Array = None
        self._second: Array = None

    def step(self, parameter: Array, gradient: Array) -> Array:
        """The parameter after one step against the gradient. Neither array is changed."""
        xp = namespace(parameter)
        keep_first, keep_second = self.betas
        first, second = (1 - keep_first) * gradient, (1 - keep_second) * gradient**2
        if self._first is not None:
            first, second = keep_first * self._first + first, keep_second * self._second + second
        steps = self.steps + 1
        # The moments start at zero; these divisions correct the bias towards zero.
        direction = (first / (1 - keep_first**steps)) / (xp.sqrt(second / (1 - keep_second**steps)) + self.eps)
        self.steps, self._first, self._second = steps, first, second
        return parameter * (1 - self.rate * self.weight_decay) - self.rate * direction

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Moments and number of steps, for a method that continues from them."""
        if self._first is None:
            return {}, {"steps": 0}
        return {"first_moment": self._first, "second_moment": self._second}, {"steps": self.steps}

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self.steps = int(values["steps"])
        self._first, self._second = arrays.get("first_moment"), arrays.get("second_moment")

    def check(self, parameter: Array, n_seen: int) -> None:
        """ValueError if the restored moments do not belong to `parameter`, or the steps not to the samples seen."""
        check_seen("steps", self.steps, n_seen)
        moments = [] if self._first is None else [self._first, self._second]
        if bool(moments) != (self.steps > 0) or any(moment.shape != parameter.shape for moment in moments):
            raise ValueError(f"the moments do not fit {self.steps} steps of an array of shape {tuple(parameter.shape)}")
        if moments and not to_numpy(moments[1]).min() >= 0:  # without tolerance: its square root is taken
            raise ValueError(f"second_moment must be at least 0; the smallest is {to_numpy(moments[1]).min():g}.")


class SGD:
    """Gradient descent with momentum on one array. Each `step` returns the updated array; `reset` forgets the steps.

    >>> import numpy as np
    >>> SGD(rate=0.1, momentum=0.9, nesterov=True).step(np.array([1.0]), np.array([1.0]))
    array([0.81])

    Parameters
    ----------
    rate : step size.
    momentum : share of the velocity kept at each step.
    nesterov : add the velocity after this step to the gradient, in place of the velocity alone.
    weight_decay : this share of the array is added to its gradient.
    """

    def __init__(
        self, rate: float, *, momentum: float = 0.9, nesterov: bool = False, weight_decay: float = 0.0
    ) -> None:
        self.rate, self.momentum, self.nesterov, self.weight_decay = rate, momentum, nesterov, weight_decay
        self.reset()

    def reset(self) -> None:
        """Forget every step."""
        self.steps = 0
        self._velocity: Array = None

    def step(self, parameter: Array, gradient: Array) -> Array:
        """The parameter after one step against the gradient. Neither array is changed."""
        gradient = gradient + self.weight_decay * parameter
        velocity = gradient if self._velocity is None else self.momentum * self._velocity + gradient
        self.steps, self._velocity = self.steps + 1, velocity
        return parameter - self.rate * (gradient + self.momentum * velocity if self.nesterov else velocity)

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Velocity and number of steps, for a method that continues from them."""
        return ({} if self._velocity is None else {"velocity": self._velocity}), {"steps": self.steps}

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self.steps, self._velocity = int(values["steps"]), arrays.get("velocity")

    def check(self, parameter: Array, n_seen: int) -> None:
        """ValueError if the restored velocity does not belong to `parameter`, or the steps not to the samples seen."""
        check_seen("steps", self.steps, n_seen)
        shape = None if self._velocity is None else tuple(self._velocity.shape)
        if shape != (tuple(parameter.shape) if self.steps else None):
            raise ValueError(f"the velocity does not fit {self.steps} steps of an array of {tuple(parameter.shape)}")


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
    xp = namespace(logits)
    log_y = log_softmax(logits)
    y = xp.exp(log_y)
    loss = -xp.sum(y * log_y, axis=-1)
    return loss, -y * (log_y + loss[..., None])


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

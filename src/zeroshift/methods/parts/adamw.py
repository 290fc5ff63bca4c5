"""AdamW (Loshchilov and Hutter, 2019) on plain arrays: the step nearly every tuning method takes once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zeroshift.arrays import Array, namespace

__all__ = ["AdamW"]


class AdamW:
    """Follows one array. Each `step` gives the moved array; moments are kept until `reset`.

    The first step moves every coordinate by `rate * g / (|g| + eps)`, whatever the size of the gradient g:

    >>> import numpy as np
    >>> AdamW(rate=0.1, weight_decay=0.0).step(np.array([1.0, 1.0]), np.array([1e-3, -50.0]))
    array([0.900001, 1.1     ])

    Parameters
    ----------
    rate : the step size.
    betas : how much of the first and of the second moment is kept at a step.
    eps : added to the root of the second moment.
    weight_decay : the share of the array taken off at a step, times `rate`.
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
        """The parameter after one step against the gradient; neither is changed."""
        xp = namespace(parameter)
        keep_first, keep_second = self.betas
        first, second = (1 - keep_first) * gradient, (1 - keep_second) * gradient**2
        if self._first is not None:
            first, second = keep_first * self._first + first, keep_second * self._second + second
        steps = self.steps + 1
        # The moments begin at zero; dividing by what they would be for a constant gradient takes that out again.
        direction = (first / (1 - keep_first**steps)) / (xp.sqrt(second / (1 - keep_second**steps)) + self.eps)
        self.steps, self._first, self._second = steps, first, second
        return parameter * (1 - self.rate * self.weight_decay) - self.rate * direction

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Moments and the number of steps, for a method that goes on with them."""
        if self._first is None:
            return {}, {"steps": 0}
        return {"first_moment": self._first, "second_moment": self._second}, {"steps": self.steps}

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        """Put back what `state` gave."""
        self.steps = int(values["steps"])
        self._first, self._second = arrays.get("first_moment"), arrays.get("second_moment")

"""Answers as `Classifications` of supervision, which is not installed with zeroshift: `pip install supervision`."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

try:
    from supervision import Classifications
except ImportError as error:
    raise ImportError("zeroshift.supervision needs supervision. Fix: pip install supervision.") from error

from zeroshift.arrays import Array, as_floats, to_numpy

__all__ = ["from_method", "from_probabilities"]


class Predicts(Protocol):
    """A method, or a frozen head."""

    def predict(self, features: Array, /) -> Array: ...


def from_probabilities(probabilities: Array) -> Any:
    """The `Classifications` of one image, for probabilities (K,), or a list of them, for (N, K).

    `class_id` is the row of the prototype; all classes are included, and `get_top_k` selects some.

    >>> from_probabilities(np.array([0.1, 0.7, 0.2])).get_top_k(2)
    (array([1, 2]), array([0.7, 0.2]))
    """
    values = to_numpy(as_floats("probabilities", probabilities))
    if values.ndim not in (1, 2) or 0 in values.shape[-1:]:
        raise ValueError(
            f"probabilities must have the shape (K,) or (N, K); got {values.shape}. Fix: method.adapt(...)."
        )
    if values.ndim == 2:
        return [from_probabilities(row) for row in values]
    return Classifications(class_id=np.arange(len(values)), confidence=values.copy())


def from_method(method: Predicts, features: Array) -> Any:
    """The same for features (d,) or (N, d), by `method.predict`: nothing is learned.

    To learn from the features as well: `from_probabilities(method.adapt(features))`.

    >>> from zeroshift import ZeroShot
    >>> len(from_method(ZeroShot(np.eye(3), logit_scale=5.0), np.eye(3)[:2]))
    2
    """
    return from_probabilities(method.predict(features))

"""The exponential kernel of cosines that Tip-Adapter, TDA, DMN and TCA weigh stored samples with."""

from __future__ import annotations

from zeroshift.arrays import Array, namespace

__all__ = ["exponential_kernel"]


def exponential_kernel(cosines: Array, beta: float) -> Array:
    """exp(-beta (1 - cosine)): 1 for the sample itself, the less the further away.

    >>> import numpy as np
    >>> exponential_kernel(np.array([1.0, 0.96]), 5.0).round(6)
    array([1.      , 0.818731])
    """
    return namespace(cosines).exp(beta * (cosines - 1.0))

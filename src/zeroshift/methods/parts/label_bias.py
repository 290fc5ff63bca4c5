"""Frolic's correction of label bias: what a classifier says of the samples of each class shows what it favours."""

from __future__ import annotations

import math
from collections.abc import Iterable

from zeroshift.arrays import Array, Home, namespace
from zeroshift.zero_shot import log_softmax, pseudo_class

__all__ = ["corrected", "stationary_vector", "transition_matrix"]

TINY = 1e-12


def transition_matrix(blocks: Iterable[Array], margin: float = -math.inf) -> Array:
    """Column k (K, K): the mean posterior of the samples whose largest logit is that of class k; zero where none is.

    The logits come in blocks (n, K). Samples whose two largest logits are not more than `margin` apart are left out.

    >>> import numpy as np
    >>> transition_matrix([np.log(np.array([[0.8, 0.2], [0.6, 0.4], [0.3, 0.7]]))])
    array([[0.7, 0.3],
           [0.3, 0.7]])
    """
    total: tuple[Array, Array] | None = None
    for logits in blocks:
        home, xp = Home.of(logits), namespace(logits)
        classes = xp.arange(logits.shape[1], device=home.device)
        log_p = log_softmax(logits)
        label = pseudo_class(log_p)[:, None] == classes
        second = xp.max(xp.where(label, -xp.inf, log_p), axis=1)
        clear = xp.max(log_p, axis=1) - second > margin
        chosen = xp.astype(label & clear[:, None], logits.dtype)
        # Added up in float64: a class may have a million samples.
        part = home.bring(xp.exp(log_p).T @ chosen, xp.float64), xp.sum(home.bring(chosen, xp.float64), axis=0)
        total = part if total is None else (total[0] + part[0], total[1] + part[1])
    if total is None:
        raise ValueError("blocks is empty; at least one block of logits is needed.")
    sums, counts = total
    xp = namespace(sums)
    return sums / xp.where(counts > 0, counts, xp.ones_like(counts))


def stationary_vector(transition: Array, *, tolerance: float = 1e-3, iterations: int = 100) -> Array:
    """beta (K,) with A beta = beta, by power iteration from the uniform vector.

    It ends at the first change (L1) below `tolerance`, with the vector before that change, as the released code does.
    Where nothing is left to iterate with, A having no column, the last vector stands.

    >>> import numpy as np
    >>> stationary_vector(np.array([[0.8, 0.1], [0.2, 0.9]])).round(6)
    array([0.334948, 0.665052])
    """
    xp = namespace(transition)
    classes = transition.shape[0]
    beta = xp.full((classes,), 1 / classes, dtype=transition.dtype, device=Home.of(transition).device)
    for _ in range(iterations):
        after = transition @ beta
        total = xp.sum(xp.abs(after))
        if float(total) == 0:
            break
        after = xp.clip(after / total, 0, None)
        if float(xp.sum(xp.abs(after - beta))) < tolerance:
            break
        beta = after
    return beta


def corrected(offsets: Array, beta: Array) -> Array:
    """Offsets of the logits, each class's lowered by ln beta: what is favoured too much loses.

    >>> import numpy as np
    >>> corrected(np.zeros(2), np.array([0.334948, 0.665052])).round(4)
    array([1.0938, 0.4079])
    """
    return offsets - namespace(beta).log(beta + TINY)

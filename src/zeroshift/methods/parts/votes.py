"""Votes of an image's views, counted, and what decides where classes have equally many."""

from __future__ import annotations

from zeroshift.arrays import Array, Home, namespace
from zeroshift.zero_shot import TIE

__all__ = ["break_ties", "counted"]


def counted(classes: Array, cosines: Array) -> Array:
    """Votes (B, K) of B images, one for each of the classes (B, n); in the type, and with the K, of `cosines`.

    >>> import numpy as np
    >>> counted(np.array([[2, 0, 2]]), np.zeros((1, 5, 3)))
    array([[1., 0., 2.]])
    """
    xp = namespace(cosines)
    return xp.sum(xp.astype(_one_hot(classes, cosines.shape[-1]), cosines.dtype), axis=1)


def break_ties(votes: Array, remaining: Array, next_surest: Array) -> Array:
    """Votes (B, K), with one more for the winner where several classes have the most.

    `remaining` (B, n) are the classes of the views that did not vote, the surest first: the first that is among the
    classes tied wins. Where none is, `next_surest` (B, K), the cosines of the first of these views, chooses.

    >>> import numpy as np
    >>> votes = np.array([[2.0, 2.0, 0.0], [2.0, 2.0, 0.0], [3.0, 1.0, 0.0]])
    >>> remaining = np.array([[2, 1, 0], [2, 2, 2], [1, 1, 1]])
    >>> break_ties(votes, remaining, np.array([[0.1, 0.2, 0.3], [0.2, 0.1, 0.3], [0.0, 0.5, 0.0]]))
    array([[2., 3., 0.],
           [3., 2., 0.],
           [3., 1., 0.]])
    """
    xp = namespace(votes)
    tied = votes >= xp.max(votes, axis=1, keepdims=True) - TIE
    contested = xp.sum(xp.astype(tied, xp.int64), axis=1) > 1
    if not bool(xp.any(contested)):
        return votes
    named = xp.take_along_axis(tied, remaining, axis=1)
    first = xp.argmax(xp.astype(named, xp.int8), axis=1)[:, None]
    chosen = xp.argmax(xp.where(tied, next_surest, -xp.inf), axis=1)[:, None]
    winner = xp.where(xp.any(named, axis=1)[:, None], xp.take_along_axis(remaining, first, axis=1), chosen)
    extra = _one_hot(winner, votes.shape[1])[:, 0, :] & contested[:, None]
    return votes + xp.astype(extra, votes.dtype)


def _one_hot(classes: Array, n_classes: int) -> Array:
    """(B, n) class numbers as (B, n, K) booleans."""
    xp = namespace(classes)
    return classes[:, :, None] == xp.arange(n_classes, device=Home.of(classes).device)

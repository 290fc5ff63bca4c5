"""How little the stream so far looks like samples drawn from all classes alike, from its zero-shot posteriors alone."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

__all__ = ["Caution", "caution", "class_share", "neighbour_correlation"]


class Caution(NamedTuple):
    """Each from 0, not at all, to 1, wholly."""

    order: float
    """Neighbours are alike, as where classes come one after the other."""
    balance: float
    """Few of the classes come."""

    @property
    def whole(self) -> float:
        """For either reason."""
        return 1.0 - (1.0 - self.order) * (1.0 - self.balance)


def caution(
    posteriors: np.ndarray, watched: np.ndarray, *, correlation: float, balance: tuple[float, float]
) -> Caution:
    """How unlike samples drawn from all classes alike those watched are.

    Parameters
    ----------
    posteriors, watched : sums, see `Sums`.
    correlation : of neighbours, at which there is half of the caution there can be by their order.
    balance : share of the classes that come in effect: no caution by that above the second, all of it below the first.
    """
    if watched[0] < 2:
        return Caution(0.0, 0.0)
    r = neighbour_correlation(posteriors, watched)
    share = class_share(len(posteriors), _strangers(posteriors, watched))
    least, enough = balance
    missing = float(np.clip((enough - share) / (enough - least), 0.0, 1.0)) if enough > least else float(share < least)
    return Caution(r * r / (r * r + correlation**2), missing)


def _strangers(posteriors: np.ndarray, watched: np.ndarray) -> float:
    """Mean of y_i.y_j over two different samples: how often two drawn at random are of one class."""
    n, squares = watched[0], watched[1]
    return max(float(posteriors @ posteriors - squares) / (n * (n - 1)), 0.0)


def class_share(classes: int, strangers: float) -> float:
    """Classes that come in effect, of all: one over the probability that two samples share theirs, over K.

    >>> class_share(4, 0.5)  # two of four, alike often
    0.5
    """
    return min(1.0, 1.0 / (classes * max(strangers, 1.0 / classes)))


def neighbour_correlation(posteriors: np.ndarray, watched: np.ndarray) -> float:
    """How much more neighbours are alike than strangers, of how much more a sample is like itself; 0 where less.

    >>> round(neighbour_correlation(np.array([3.0, 3.0]), np.array([6.0, 6.0, 5.0, 4.0])), 6)
    0.666667
    """
    n, squares, pairs, products = watched
    if pairs == 0:
        return 0.0
    stranger, self_ = _strangers(posteriors, watched), squares / n
    return float(np.clip((products / pairs - stranger) / max(self_ - stranger, 1e-12), 0.0, 1.0))

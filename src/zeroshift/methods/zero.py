"""ZERO: the most confident views of an image vote at zero temperature."""

from __future__ import annotations

from zeroshift.arrays import Array, Backend, namespace
from zeroshift.method import EpisodicMethod
from zeroshift.methods._shared.similarity import normalize_rows
from zeroshift.parameters import Choice, Number, parameter
from zeroshift.views import select_lowest_entropy
from zeroshift.zero_shot import TIE, logits, pseudo_class, softmax

__all__ = ["ZERO", "break_ties", "count_votes"]


def count_votes(classes: Array, cosines: Array) -> Array:
    """Votes (B, K) for B images with one vote for each of the classes (B, n); K and type are those of `cosines`.

    >>> import numpy as np
    >>> count_votes(np.array([[2, 0, 2]]), np.zeros((1, 5, 3)))
    array([[1., 0., 2.]])
    """
    xp = namespace(cosines)
    return xp.sum(xp.astype(_one_hot(classes, cosines.shape[-1]), cosines.dtype), axis=1)


def break_ties(votes: Array, remaining: Array, next_cosines: Array) -> Array:
    """Votes (B, K), with one more for the winner if several classes have the most.

    `remaining` (B, n) are the classes of the views that did not vote, the most confident first: the first of them that
    is tied wins. If none is, the largest of `next_cosines` (B, K), those of the first remaining view, decides.

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
    undecided = xp.sum(xp.astype(tied, xp.int64), axis=1) > 1
    if not bool(xp.any(undecided)):
        return votes
    is_tied = xp.take_along_axis(tied, remaining, axis=1)
    first = xp.argmax(xp.astype(is_tied, xp.int8), axis=1)[:, None]
    by_cosine = xp.argmax(xp.where(tied, next_cosines, -xp.inf), axis=1)[:, None]
    winner = xp.where(xp.any(is_tied, axis=1)[:, None], xp.take_along_axis(remaining, first, axis=1), by_cosine)
    extra = _one_hot(winner, votes.shape[1])[:, 0, :] & undecided[:, None]
    return votes + xp.astype(extra, votes.dtype)


def _one_hot(classes: Array, n_classes: int) -> Array:
    """Class indices (B, n) as booleans (B, n, K)."""
    xp = namespace(classes)
    return classes[:, :, None] == xp.arange(n_classes, device=Backend.of(classes).device)


class ZERO(EpisodicMethod):
    """The most confident views of an image vote for a class, one vote each. If classes tie, the most confident of the
    remaining views whose class is among them decides.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import ZERO
    >>> views = np.array([[0.8, 0.6], [1.0, 0.0], [0.0, 1.0], [0.96, 0.28]])
    >>> zero = ZERO(np.eye(2), logit_scale=5.0, view_ratio=0.5)
    >>> zero.adapt_views_scores(views)  # views 1 and 2 contradict each other, view 3 decides
    array([2., 1.])
    >>> zero.adapt_views(views).round(3)
    array([0.667, 0.333])

    Notes
    -----
    Farina et al., *Frustratingly Easy Test-Time Adaptation of Vision-Language Models*, NeurIPS 2024. The authors use 64
    views, the image and random crops of it (no AugMix), and one setting for all data. Scores are votes, probabilities
    their fractions: if all views agree, the other classes have probability 0.

    The authors' code divides cosines by the machine epsilon of their type. In float32 that is the hard vote; under the
    mixed precision of their scripts, cosines are float16 and the vote is soft, and exact ties hardly occur. The hard
    vote here does not depend on the type. If no remaining view's class is among those tied, the most confident
    remaining view chooses among them, as intended; the authors' code masks the wrong classes there and can return one
    that was not tied. If no view remains, the first of the tied classes wins. If `view_ratio` of the views is less than
    one, the authors' code keeps none; here the most confident view votes. Cosines, and votes, closer than 1e-9 are
    equal.
    """

    name = "zero"
    headline = "The most confident views vote"
    overconfident = True
    complexity = "O(V K d) for V views"

    logit_scale: float = parameter(
        Number(low=0, above=True),
        "Scale of the logits; 100 for CLIP. Used only to order the views by entropy; votes do not depend on it.",
        default=100.0,
    )
    view_ratio: float = parameter(
        Number(0, 1, above=True),
        "Fraction of the views that vote, those with the lowest entropy: int(V view_ratio), at least one.",
        default=0.3,
    )
    vote: str = parameter(
        Choice(("hard", "soft")),
        '"hard": one vote for the class with the highest cosine, as in the paper. "soft": the softmax of the cosines, '
        "as the authors' code computes on a GPU.",
        default="hard",
    )
    inverse_temperature: float = parameter(
        Number(low=0, above=True),
        "Scale of the cosines in a soft vote. The default, one over float16's machine epsilon, is that of the authors' "
        "code under mixed precision.",
        default=1024.0,
    )

    def _episodes(self, views: Array) -> Array:
        xp = namespace(views)
        cosines = logits(views, self.prototypes, 1.0)
        order = select_lowest_entropy(self.logit_scale * cosines, 1.0)
        # The class of every view, that of the most confident view first.
        classes = xp.take_along_axis(pseudo_class(cosines), order, axis=1)
        voters = max(int(views.shape[1] * self.view_ratio), 1)
        if self.vote == "hard":
            votes = count_votes(classes[:, :voters], cosines)
        else:
            kept = xp.take_along_axis(cosines, order[:, :voters, None], axis=1)
            votes = xp.sum(softmax(self.inverse_temperature * kept), axis=1)
        if voters == views.shape[1]:
            return votes
        next_cosines = xp.take_along_axis(cosines, order[:, voters : voters + 1, None], axis=1)[:, 0, :]
        return break_ties(votes, classes[:, voters:], next_cosines)

    def _probabilities(self, scores: Array) -> Array:
        return normalize_rows(scores)

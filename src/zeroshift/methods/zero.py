"""ZERO: the surest views of an image vote at zero temperature."""

from __future__ import annotations

from zeroshift.arrays import Array, Home, namespace
from zeroshift.method import EpisodicMethod
from zeroshift.methods._shared.similarity import normalize_rows
from zeroshift.parameters import Choice, Number, parameter
from zeroshift.views import select_lowest_entropy
from zeroshift.zero_shot import TIE, logits, pseudo_class, softmax

__all__ = ["ZERO", "break_ties", "counted"]


# Votes of an image's views, counted, and what decides where classes have equally many.


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


class ZERO(EpisodicMethod):
    """For each image, lets its surest views vote for a class, one vote each. Where classes have equally many votes, the
    surest of the remaining views whose own class is among them decides.

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
    Farina et al., *Frustratingly Easy Test-Time Adaptation of Vision-Language Models*, NeurIPS 2024. The authors take
    64 views, the image and random crops of it (no AugMix), and one setting for all data. Scores are votes,
    probabilities their share: where all agree, the other classes have probability 0.

    The authors' code divides cosines by the machine epsilon of their type. In float32 that is the hard vote; under the
    mixed precision their scripts run in, cosines are float16 and the vote is soft, and exact ties hardly occur. A hard
    vote here does not depend on the type. Where no remaining view's class is among those tied, the surest remaining
    view chooses among them, as was meant; the authors' code masks the wrong classes there and can answer one that was
    not tied. Where no view remains, the first of the classes wins. Of so few views that their share is less than one,
    the authors' code keeps none; here the surest votes. Cosines, and votes, closer than 1e-9 are equal.
    """

    name = "zero"
    complexity = "O(V K d) for V views"

    logit_scale: float = parameter(
        Number(low=0, above=True),
        "Scale of the logits, 100 for CLIP. It only orders the views by entropy; votes do not depend on it.",
        default=100.0,
    )
    view_ratio: float = parameter(
        Number(0, 1, above=True),
        "Share of the views that vote, those of lowest entropy: int(V view_ratio), at least one.",
        default=0.3,
    )
    vote: str = parameter(
        Choice(("hard", "soft")),
        "A whole vote for the class of highest cosine, as the paper defines it; or one spread over the classes by a softmax of the cosines, which is what the authors' code computes on a GPU.",
        default="hard",
    )
    inverse_temperature: float = parameter(
        Number(low=0, above=True),
        "Scale of the cosines in a soft vote. 1024, one over float16's machine epsilon, is what the authors' code comes to under mixed precision.",
        default=1024.0,
    )

    def _episodes(self, views: Array) -> Array:
        xp = namespace(views)
        cosines = logits(views, self.prototypes, 1.0)
        order = select_lowest_entropy(self.logit_scale * cosines, 1.0)
        # Every view's own class, the surest view's first.
        classes = xp.take_along_axis(pseudo_class(cosines), order, axis=1)
        voters = max(int(views.shape[1] * self.view_ratio), 1)
        if self.vote == "hard":
            votes = counted(classes[:, :voters], cosines)
        else:
            kept = xp.take_along_axis(cosines, order[:, :voters, None], axis=1)
            votes = xp.sum(softmax(self.inverse_temperature * kept), axis=1)
        if voters == views.shape[1]:
            return votes
        next_surest = xp.take_along_axis(cosines, order[:, voters : voters + 1, None], axis=1)[:, 0, :]
        return break_ties(votes, classes[:, voters:], next_surest)

    def _probabilities(self, scores: Array) -> Array:
        return normalize_rows(scores)

"""ZERO: the most confident views of an image vote at zero temperature."""

from __future__ import annotations

from zeroshift.arrays import Array, Backend, namespace
from zeroshift.method import EpisodicMethod
from zeroshift.methods._shared.similarity import normalize_rows
from zeroshift.parameters import Choice, Number, parameter
from zeroshift.views import select_lowest_entropy
from zeroshift.zero_shot import TIE, logits, pseudo_class, softmax


def break_ties(votes: Array, rest: Array) -> Array:
    """Votes (B, K), with one more for the winner if several classes have the most.

    `rest` (B, n, K) are the cosines of the views that did not vote, the most confident first. The first of them whose
    class is tied decides, or the very first if there is none: its largest cosine among the tied classes wins.

    >>> import numpy as np
    >>> votes = np.array([[2.0, 2.0, 0.0], [2.0, 2.0, 0.0], [3.0, 1.0, 0.0]])
    >>> break_ties(votes, np.array([[[0.1, 0.2, 0.9], [0.5, 0.1, 0.4]], *[[[0.1, 0.2, 0.9], [0.3, 0.1, 0.4]]] * 2]))
    array([[3., 2., 0.],
           [2., 3., 0.],
           [3., 1., 0.]])
    """
    xp = namespace(votes)
    if not rest.shape[1]:
        return votes
    tied = votes >= xp.max(votes, axis=1, keepdims=True) - TIE
    is_for_tied = xp.take_along_axis(tied, pseudo_class(rest), axis=1)
    first = xp.argmax(xp.astype(is_for_tied, xp.int8), axis=1)[:, None, None]
    deciding = xp.take_along_axis(rest, first, axis=1)[:, 0, :]
    winner = _one_hot(pseudo_class(xp.where(tied, deciding, -xp.inf)), votes)
    undecided = xp.sum(xp.astype(tied, xp.int64), axis=1, keepdims=True) > 1
    return xp.where(undecided, votes + winner, votes)


def _one_hot(classes: Array, like: Array) -> Array:
    """Class indices (...) as rows (..., K); K and type are those of `like`."""
    xp = namespace(like)
    return xp.astype(classes[..., None] == xp.arange(like.shape[-1], device=Backend.of(like).device), like.dtype)


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
        cosines = logits(views, self.prototypes64, 1.0)
        order = select_lowest_entropy(self.logit_scale * cosines, 1.0)
        cosines = xp.take_along_axis(cosines, order[:, :, None], axis=1)
        voters = max(int(views.shape[1] * self.view_ratio), 1)
        voting, rest = cosines[:, :voters], cosines[:, voters:]
        hard = self.vote == "hard"
        votes = _one_hot(pseudo_class(voting), voting) if hard else softmax(self.inverse_temperature * voting)
        return break_ties(xp.sum(votes, axis=1), rest)

    def _probabilities(self, scores: Array) -> Array:
        return normalize_rows(scores)

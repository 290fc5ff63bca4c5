"""Weights by certainty, as AWT gives them to views and to descriptions: the lower an entropy, the larger the share."""

from __future__ import annotations

from zeroshift.arrays import Array, Home, namespace
from zeroshift.zero_shot import softmax

__all__ = ["certainty_weights", "replaced_entropy"]


def certainty_weights(entropies: Array, temperature: float) -> Array:
    """Weights over the last axis, summing to 1: softmax(-H / temperature).

    >>> import numpy as np
    >>> certainty_weights(np.array([0.0, 0.5]), 0.5).round(3)
    array([0.731, 0.269])
    """
    return softmax(-entropies / temperature)


def replaced_entropy(base: Array, logits: Array) -> Array:
    """The entropy (..., K, P) of softmax(base), base (..., K), once its entry k is replaced by `logits[..., k, p]`.

    In closed form: what the other classes have among themselves is the same for all p, and the chain rule of entropy
    adds the one that changed. No array has more than K P numbers an image, where one vector for each would be K^2 P.

    >>> import numpy as np
    >>> from zeroshift.low_entropy import entropy
    >>> base, logits = np.array([1.0, 2.0, 0.5]), np.array([[1.5], [3.0], [0.0]])
    >>> replaced_entropy(base, logits)[1].round(6), entropy(np.array([1.0, 3.0, 0.5])).round(6)
    (array([0.587629]), np.float64(0.587629))
    """
    xp = namespace(base)
    if base.shape[-1] == 1:
        return xp.zeros_like(logits)  # one class is certain
    total, inner = _others(base)
    odds = logits - total[..., None]
    tail = xp.exp(-xp.abs(odds))
    lesser = tail / (1 + tail)
    others = xp.where(odds > 0, lesser, 1 - lesser)
    return xp.log1p(tail) + xp.abs(odds) * lesser + others * inner[..., None]


def _others(base: Array) -> tuple[Array, Array]:
    """For each class, of all the others: the logarithm of their summed exponentials, and their own entropy (..., K)."""
    xp = namespace(base)
    classes = xp.arange(base.shape[-1], device=Home.of(base).device)
    likeliest = classes == xp.argmax(base, axis=-1, keepdims=True)
    # Of all classes but a less likely one, by subtraction: the likeliest stays, so little is lost to rounding.
    shift, weights, weighted = _sums(base, classes >= 0)
    sums, products = xp.sum(weights, axis=-1, keepdims=True), xp.sum(weighted, axis=-1, keepdims=True)
    sums, products = sums - weights, products - weighted
    # Without the likeliest, which may hold all but 1e-16 of the sum, they are summed afresh.
    second, weights, weighted = _sums(base, ~likeliest)
    sums = xp.where(likeliest, xp.sum(weights, axis=-1, keepdims=True), sums)
    products = xp.where(likeliest, xp.sum(weighted, axis=-1, keepdims=True), products)
    logs = xp.log(sums)
    return logs + xp.where(likeliest, second, shift), logs - products / sums


def _sums(base: Array, among: Array) -> tuple[Array, Array, Array]:
    """The largest logit `among` some classes, e^b and b e^b with b shifted by it; nothing of the classes left out."""
    xp = namespace(base)
    highest = xp.max(xp.where(among, base, -xp.inf), axis=-1, keepdims=True)
    shifted = xp.where(among, base - highest, xp.zeros_like(base))
    weights = xp.where(among, xp.exp(shifted), xp.zeros_like(base))
    return highest, weights, shifted * weights

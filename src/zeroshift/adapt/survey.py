"""The first pass over a whole set: soft sums of all samples, and each pseudo-class's surest samples into the bank."""

from __future__ import annotations

from zeroshift.adapt.bank import KnowledgeBank
from zeroshift.adapt.surest import Surest
from zeroshift.arrays import Array, Home, Rows, namespace, to_numpy
from zeroshift.zero_shot import TIE

__all__ = ["CHUNK_ROWS", "SoftSums", "added", "survey"]

CHUNK_ROWS = 2048
"""Rows worked on together where a method says nothing else."""

SoftSums = tuple[Array, Array]
"""sum_i y_ik x_i (K, d) and sum_i y_ik (K,)."""


def added(sums: SoftSums, features: Array, posterior: Array) -> SoftSums:
    """The sums with these samples, counted by `posterior` (n, K), added."""
    weighted_sum, weight = sums
    return weighted_sum + posterior.T @ features, weight + namespace(posterior).sum(posterior, axis=0)


def survey(
    rows: Rows,
    chunk_rows: int,
    prototypes: Array,
    logit_scale: float,
    bank: KnowledgeBank,
    log_normalisers: Array | None = None,
) -> SoftSums:
    """Fill `bank` with each pseudo-class's L surest samples (the earlier on a tie); return all samples' soft sums.

    `log_normalisers` (N,), where given, receives log sum_k exp(s t_k.x) of every row.
    """
    home = Home.of(prototypes)
    xp = home.xp
    classes = prototypes.shape[0]
    scaled = (logit_scale * prototypes).T
    weighted_sum, weight = xp.zeros_like(prototypes), home.zeros((classes,))
    surest = Surest(home, bank.capacity)
    # The same arrays serve every chunk: fresh ones would cost as much as the arithmetic done in them.
    most = min(chunk_rows, len(rows))
    space, more_space, feature_space = (home.zeros((most, width)) for width in (classes, classes, prototypes.shape[1]))
    numbers = xp.arange(most, device=home.device)
    for block, x in rows.blocks(chunk_rows, reuse=True):
        n = x.shape[0]
        logits = xp.matmul(x, scaled, out=space[:n])
        top = xp.max(logits, axis=1)
        logits -= top[:, None]
        # The rule of `zero_shot.pseudo_class`: the first of the classes within TIE of the largest.
        pseudo = xp.argmax((logits >= -TIE).view(xp.int8), axis=1)
        y = xp.exp(logits, out=more_space[:n])
        # y stays a constant a row away from the posterior: scaling the d columns of x is cheaper than its K.
        total = xp.sum(y, axis=1)
        log_total, share = xp.log(total), 1.0 / total
        weighted_sum += y.T @ xp.multiply(x, share[:, None], out=feature_space[:n])
        weight += share @ y
        if log_normalisers is not None:
            log_normalisers[block] = top + log_total
        confidences = xp.vecdot(y, logits) * share - log_total
        own = y[numbers[:n], pseudo] * share
        surest.offer(pseudo, confidences, own, block.start)
    del space, more_space, feature_space, logits, x, y
    chosen, ranks, at, confidences, probabilities = surest.chosen()
    bank.fill(rows.take(at), to_numpy(chosen), to_numpy(ranks), probabilities, confidences)
    return weighted_sum, weight

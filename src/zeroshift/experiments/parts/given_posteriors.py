"""Algorithm 1 with zero-shot posteriors that are given, not computed: what noise on pseudo-labels needs."""

from __future__ import annotations

import numpy as np

from zeroshift.adapt.bank import KnowledgeBank
from zeroshift.adapt.gaussians import Rule, estimate, score
from zeroshift.arrays import Home
from zeroshift.parameters import Flag, Number, Optional

__all__ = ["adapt_online_given"]


def adapt_online_given(
    features: np.ndarray,
    log_posteriors: np.ndarray,
    prototypes: np.ndarray,
    *,
    bank_size: int = 16,
    alpha: float = 0.9,
    beta: float | None = None,
    use_bank_term: bool = True,
    update_mean: bool = True,
    update_covariance: bool = True,
) -> np.ndarray:
    """Scores (N, K) of online ADAPT, sample by sample, as `OnlineADAPT(engine="direct")` computes them in float64.

    Parameters
    ----------
    features : (N, d) unit rows, in the order of the stream.
    log_posteriors : (N, K) what stands for the zero-shot classifier's: it says who enters which bank, and takes part in
        the fusion.
    prototypes : (K, d) unit rows: where the means start.
    bank_size, alpha, beta, use_bank_term, update_mean, update_covariance : as in `OnlineADAPT`; a bank is needed.

    >>> log_y = np.log([[0.9, 0.1], [0.2, 0.8]])
    >>> adapt_online_given(np.eye(2), log_y, np.eye(2)).argmax(axis=1)
    array([0, 1])
    """
    features = np.asarray(features, np.float64)
    prototypes = np.asarray(prototypes, np.float64)
    log_y = np.asarray(log_posteriors, np.float64)
    if log_y.shape != (len(features), len(prototypes)):
        raise ValueError(
            f"log_posteriors must have a row a sample and a column a class, {(len(features), len(prototypes))}; "
            f"got {log_y.shape}. Fix: give those of the same rows, in the same order."
        )
    rule = Rule(
        alpha=float(Number(0, 1).check("alpha", alpha)),
        beta=Optional(Number(0)).check("beta", beta),
        use_bank_term=Flag().check("use_bank_term", use_bank_term),
        update_mean=Flag().check("update_mean", update_mean),
        update_covariance=Flag().check("update_covariance", update_covariance),
        per_class=False,
    )
    capacity = int(Number(1, integer=True).check("bank_size", bank_size))
    bank = KnowledgeBank(Home.of(prototypes), len(prototypes), prototypes.shape[1], capacity)
    gaussians = estimate(bank, bank.sums(), prototypes, rule)
    scores = np.empty(log_y.shape)
    for place in range(len(features)):
        row = slice(place, place + 1)
        if bank.offer(features[row], log_y[row]):
            gaussians = estimate(bank, bank.sums(), prototypes, rule)
        scores[row] = score(features[row], log_y[row], gaussians, bank, rule)
    return scores

"""A slow, plain float64 implementation of ADAPT, the reference for the tests.

Equation numbers are the paper's. Written from ``adapt-spec.md`` alone; nothing here is shared with the
library. Features and prototypes are used as given; the caller provides unit vectors.

Where the specification is silent:

1.  A bank replaces in place: the new entry takes the slot of the one it evicts. On a tie the first slot
    is replaced.
2.  tr(Sigma) "is 0" means tr(Sigma) <= 1e-24; then P = I. Otherwise, as the ridge, it counts as at least
    1e-5. The same holds class by class for per-class covariances, and a class with an empty bank has
    P_k = I. The per-class discriminant is still Eq. 4, with P_k for P: no log-determinant, no quadratic
    term in x. No entries at all gives P = I too.
3.  iterations = T > 1: round 1 is the closed form. A later round adds sum_i z_ik x_i over the batch (z of
    the round before) to the mean, recomputes Sigma and P about that mean, then z; it ends when max|dz| <
    1e-6 over the batch, or after T rounds. Online with alpha, a class with an empty bank keeps t_k. Under ``beta``
    the weight sum in a_k includes the z weights. Online nothing of this persists: the next batch starts
    from the bank alone. Transductive: z takes the place of y in Eq. 12, over the whole set; the
    statistics of the last round are reported.
4.  bank_size = 0 (bank off): the statistics come from all samples so far, the present batch included,
    with soft posteriors: mu'_k = sum_i y_ik x_i / sum_i y_ik, S = sum_i sum_k y_ik (x_i - mu_k)(x_i -
    mu_k)^T, N = number of samples; r = 0. With T > 1 the batch's own y becomes z in the mean only.
    Support samples count as one-hot y. Per-class covariances are refused. Transductive likewise, with the
    whole set.
5.  prune = (every, ratio): after a batch is predicted, if floor(n_seen / every) grew during it, each
    class drops floor(ratio * n_k) entries of lowest confidence (first slot first on a tie); n_k leaves
    support out. The rest keep their order. However much the quotient grew, one batch prunes once. Online
    only.
6.  support = (features, labels): entries with p = 1, c = 0, placed before the others, neither evicted nor
    pruned, on top of the capacity.
7.  A class whose weights sum to exactly 0 has mu_k = t_k.
8.  batch_size = b cuts the rows into consecutive batches of b; the last may be shorter.
9.  update_covariance=False gives P = I (of the usual shape); update_mean=False gives mu = t, and S is
    about t.

Three further choices:

10. The statistics an online answer reports are the closed form (T = 1) of the final banks, after any
    pruning.
11. ``predict`` with nothing learnt returns the zero-shot posterior, scores = log y. Eq. 8 with mu = t and
    P = I would instead sharpen it by t_k.x - |t_k|^2/2, so this is a separate case. "Nothing learnt" is
    ``learnt_from == 0``: no bank entry (bank off, and transductive: no sample).
12. ``bank_counts`` counts support entries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Entry = tuple[Array, float, float]  # (x_j, p_j, c_j)
Bank = list[Entry]
Weighted = tuple[Array, Array]  # (x_i, one weight per class)

ZERO_TRACE = 1e-24
SMALLEST_TRACE = 1e-5
CONVERGED = 1e-6


@dataclass(kw_only=True)
class Statistics:
    """What steps 4-6 need: means (K, d), precision (d, d) or (K, d, d), banks; and the number of samples in them."""

    means: Array
    precision: Array
    banks: list[Bank]
    learnt_from: int


@dataclass(kw_only=True)
class OnlineAnswer(Statistics):
    """Predictions for every row, and the statistics after the last one."""

    probabilities: Array
    scores: Array
    bank_counts: npt.NDArray[np.int64]


@dataclass(kw_only=True)
class _Problem:
    """The settings, the prototypes and the banks, as one argument."""

    prototypes: Array
    logit_scale: float
    bank_size: int
    alpha: float
    beta: float | None
    use_bank_term: bool
    update_mean: bool
    update_covariance: bool
    covariance: str
    iterations: int
    transductive: bool
    banks: list[Bank] = field(default_factory=list)
    support_counts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.covariance not in ("shared", "per_class"):
            raise ValueError(f"covariance must be 'shared' or 'per_class', not {self.covariance!r}")
        if self.covariance == "per_class" and self.bank_size == 0:
            raise ValueError("covariance='per_class' needs a bank: bank_size must not be 0")
        if self.bank_size < 0 or self.iterations < 1:
            raise ValueError("bank_size must be at least 0 and iterations at least 1")
        n_classes = len(self.prototypes)
        self.banks = [[] for _ in range(n_classes)]
        self.support_counts = [0] * n_classes


# ---------------------------------------------------------------------------------------------- one sample


def log_softmax(scores: Array) -> Array:
    """Subtract log sum_k exp(s_k), shifted by the maximum."""
    shifted = scores - np.max(scores)
    return shifted - math.log(float(np.sum(np.exp(shifted))))


def posterior(x: Array, prototypes: Array, logit_scale: float) -> tuple[Array, Array]:
    """Eq. 1: y = softmax_k(s t_k.x) and its logarithm."""
    logits = np.zeros(len(prototypes))
    for k, t in enumerate(prototypes):
        logits[k] = logit_scale * float(np.dot(t, x))
    log_y = log_softmax(logits)
    return np.exp(log_y), log_y


def confidence(log_y: Array) -> float:
    """Eq. 2: c = sum_k y_k log y_k."""
    total = 0.0
    for value in log_y:
        total += math.exp(value) * float(value)
    return total


def _score(x: Array, log_y: Array, means: Array, precision: Array, banks: list[Bank], use_bank_term: bool) -> Array:
    """The exponent of Eq. 8: log y_k + g_k (Eq. 4) + r_k."""
    scores = np.zeros(len(means))
    for k, mu in enumerate(means):
        p_k = precision[k] if precision.ndim == 3 else precision
        g = float(mu @ p_k @ x) - 0.5 * float(mu @ p_k @ mu)
        r = 0.0
        if use_bank_term:
            for x_j, p_j, _ in banks[k]:
                r += max(0.0, float(np.dot(x, x_j))) * p_j
        scores[k] = float(log_y[k]) + g + r
    return scores


# ---------------------------------------------------------------------------------------------- statistics


def _means(problem: _Problem, weighted: list[Weighted]) -> Array:
    """Eq. 9 and Eq. 12: entries weigh p_j, the samples in ``weighted`` what they are given; mixed with t."""
    means = problem.prototypes.copy()
    if not problem.update_mean:
        return means
    for k, t in enumerate(problem.prototypes):
        bank = problem.banks[k]
        if not bank and problem.bank_size > 0 and not problem.transductive and problem.beta is None:
            continue  # online with a fixed alpha, empty bank: mu_k = t_k
        weight_sum = 0.0
        vector_sum = np.zeros(len(t))
        for x_j, p_j, _ in bank:
            weight_sum += p_j
            vector_sum += p_j * x_j
        for x_i, weights in weighted:
            weight_sum += float(weights[k])
            vector_sum += float(weights[k]) * x_i
        if weight_sum == 0.0:
            continue
        a = problem.alpha if problem.beta is None else weight_sum / (weight_sum + problem.beta)
        means[k] = a * (vector_sum / weight_sum) + (1.0 - a) * t
    return means


def _ridge_precision(scatter: Array, count: int) -> Array:
    """Eq. 10, right: P = d ((N-1) Sigma + tr(Sigma) I)^-1 with Sigma = S/N."""
    d = len(scatter)
    if count == 0:
        return np.eye(d)
    sigma = scatter / count
    trace = float(np.trace(sigma))
    if trace <= ZERO_TRACE:
        return np.eye(d)
    ridge = max(trace, SMALLEST_TRACE) * np.eye(d)
    inverse: Array = np.asarray(np.linalg.inv((count - 1) * sigma + ridge), dtype=np.float64)
    return d * inverse


def _precision(problem: _Problem, means: Array, soft: list[Weighted]) -> Array:
    """Eq. 10: from the banks, or with the bank off from the samples in ``soft`` with their y."""
    n_classes, d = means.shape
    per_class = problem.covariance == "per_class"
    if not problem.update_covariance:
        return np.stack([np.eye(d)] * n_classes) if per_class else np.eye(d)

    if problem.bank_size == 0:
        scatter = np.zeros((d, d))
        for x_i, y_i in soft:
            for k in range(n_classes):
                scatter += float(y_i[k]) * np.outer(x_i - means[k], x_i - means[k])
        return _ridge_precision(scatter, len(soft))

    scatters = []
    for k in range(n_classes):
        scatter = np.zeros((d, d))
        for x_j, _, _ in problem.banks[k]:
            scatter += np.outer(x_j - means[k], x_j - means[k])
        scatters.append(scatter)
    if per_class:
        return np.stack([_ridge_precision(scatters[k], len(problem.banks[k])) for k in range(n_classes)])
    pooled = np.zeros((d, d))
    for scatter in scatters:
        pooled += scatter
    return _ridge_precision(pooled, sum(len(bank) for bank in problem.banks))


# ------------------------------------------------------------------------------------------------- banks


def _add_support(problem: _Problem, support: tuple[npt.ArrayLike, npt.ArrayLike] | None) -> list[Weighted]:
    """Put the labelled samples into the banks; with the bank off, return them as one-hot samples instead."""
    one_hot: list[Weighted] = []
    if support is None:
        return one_hot
    n_classes = len(problem.prototypes)
    for x, label in zip(np.asarray(support[0], dtype=np.float64), np.asarray(support[1]), strict=True):
        k = int(label)
        if problem.bank_size == 0:
            weights = np.zeros(n_classes)
            weights[k] = 1.0
            one_hot.append((x, weights))
        else:
            problem.banks[k].append((x, 1.0, 0.0))
            problem.support_counts[k] += 1
    return one_hot


def _offer(problem: _Problem, x: Array, y: Array, c: float) -> None:
    """Offer one sample to the bank of its zero-shot pseudo-class."""
    k = int(np.argmax(y))
    bank = problem.banks[k]
    first = problem.support_counts[k]
    entry = (x, float(y[k]), c)
    if len(bank) - first < problem.bank_size:
        bank.append(entry)
        return
    lowest = first
    for slot in range(first, len(bank)):
        if bank[slot][2] < bank[lowest][2]:
            lowest = slot
    if c > bank[lowest][2]:
        bank[lowest] = entry


def _prune(problem: _Problem, ratio: float) -> None:
    """Drop floor(ratio n_k) unsupported entries of lowest confidence from each class."""
    for k, bank in enumerate(problem.banks):
        first = problem.support_counts[k]
        for _ in range(math.floor(ratio * (len(bank) - first) + 1e-9)):
            lowest = first
            for slot in range(first, len(bank)):
                if bank[slot][2] < bank[lowest][2]:
                    lowest = slot
            del bank[lowest]


# ------------------------------------------------------------------------------------------------ solving


def _solve(
    problem: _Problem, batch: list[Array], past: list[Weighted]
) -> tuple[list[Array], list[Array], Array, Array]:
    """Steps 2-6 for a batch, with up to `iterations` rounds: (z, scores, means, precision).

    ``past`` holds the samples before the batch that the bank-less statistics count.
    """
    y: list[Array] = []
    log_y: list[Array] = []
    for x in batch:
        y_i, log_y_i = posterior(x, problem.prototypes, problem.logit_scale)
        y.append(y_i)
        log_y.append(log_y_i)

    # What the mean counts in addition to the banks in round 1: nothing online, the samples' y otherwise.
    if problem.transductive or problem.bank_size == 0:
        weights = list(y)
    else:
        weights = [np.zeros(len(problem.prototypes)) for _ in batch]

    soft = past + list(zip(batch, y, strict=True))
    z: list[Array] = []
    for round_number in range(1, problem.iterations + 1):
        means = _means(problem, past + list(zip(batch, weights, strict=True)))
        precision = _precision(problem, means, soft)
        previous = z
        z = []
        scores = []
        for x, log_y_i in zip(batch, log_y, strict=True):
            s = _score(x, log_y_i, means, precision, problem.banks, problem.use_bank_term)
            scores.append(s)
            z.append(np.exp(log_softmax(s)))  # Eq. 8
        if round_number > 1:
            change = 0.0
            for z_new, z_old in zip(z, previous, strict=True):
                change = max(change, float(np.max(np.abs(z_new - z_old))))
            if change < CONVERGED:
                break
        weights = z
    return z, scores, means, precision


def _answer(
    problem: _Problem, z: list[Array], scores: list[Array], means: Array, precision: Array, learnt_from: int
) -> OnlineAnswer:
    shape = (len(z), len(problem.prototypes))
    return OnlineAnswer(
        probabilities=np.array(z, dtype=np.float64).reshape(shape),
        scores=np.array(scores, dtype=np.float64).reshape(shape),
        means=means,
        precision=precision,
        banks=problem.banks,
        bank_counts=np.array([len(bank) for bank in problem.banks], dtype=np.int64),
        learnt_from=learnt_from,
    )


def online(
    features: npt.ArrayLike,
    prototypes: npt.ArrayLike,
    *,
    logit_scale: float = 100.0,
    bank_size: int = 16,
    alpha: float = 0.9,
    beta: float | None = None,
    batch_size: int = 1,
    use_bank_term: bool = True,
    update_mean: bool = True,
    update_covariance: bool = True,
    covariance: str = "shared",
    iterations: int = 1,
    prune: tuple[int, float] | None = None,
    support: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
) -> OnlineAnswer:
    """Algorithm 1, and its batched form: offer a batch in order, update the statistics once, predict it."""
    problem = _Problem(
        prototypes=np.array(prototypes, dtype=np.float64),
        logit_scale=logit_scale,
        bank_size=bank_size,
        alpha=alpha,
        beta=beta,
        use_bank_term=use_bank_term,
        update_mean=update_mean,
        update_covariance=update_covariance,
        covariance=covariance,
        iterations=iterations,
        transductive=False,
    )
    rows = list(np.array(features, dtype=np.float64))
    past = _add_support(problem, support)  # with the bank off: every sample so far

    all_z: list[Array] = []
    all_scores: list[Array] = []
    for start in range(0, len(rows), batch_size):
        batch = rows[start : start + batch_size]
        batch_y: list[Array] = []
        for x in batch:
            y, log_y = posterior(x, problem.prototypes, logit_scale)
            batch_y.append(y)
            if bank_size > 0:
                _offer(problem, x, y, confidence(log_y))
        z, scores, _, _ = _solve(problem, batch, past)
        all_z.extend(z)
        all_scores.extend(scores)
        if bank_size == 0:
            past = past + list(zip(batch, batch_y, strict=True))
        if prune is not None:
            every, ratio = prune
            if (start + len(batch)) // every > start // every:
                _prune(problem, ratio)

    means = _means(problem, past)
    precision = _precision(problem, means, past)
    learnt_from = sum(len(bank) for bank in problem.banks) if bank_size > 0 else len(past)
    return _answer(problem, all_z, all_scores, means, precision, learnt_from)


def transductive(
    features: npt.ArrayLike,
    prototypes: npt.ArrayLike,
    *,
    logit_scale: float = 100.0,
    bank_size: int = 6,
    alpha: float = 0.9,
    beta: float | None = None,
    use_bank_term: bool = True,
    update_mean: bool = True,
    update_covariance: bool = True,
    covariance: str = "shared",
    iterations: int = 1,
    support: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
) -> OnlineAnswer:
    """Algorithm 2: banks of the L most confident samples of each pseudo-class, means by Eq. 12, z for all samples."""
    problem = _Problem(
        prototypes=np.array(prototypes, dtype=np.float64),
        logit_scale=logit_scale,
        bank_size=bank_size,
        alpha=alpha,
        beta=beta,
        use_bank_term=use_bank_term,
        update_mean=update_mean,
        update_covariance=update_covariance,
        covariance=covariance,
        iterations=iterations,
        transductive=True,
    )
    rows = list(np.array(features, dtype=np.float64))
    past = _add_support(problem, support)

    candidates: list[Bank] = [[] for _ in problem.prototypes]
    for x in rows:
        y, log_y = posterior(x, problem.prototypes, logit_scale)
        k = int(np.argmax(y))
        candidates[k].append((x, float(y[k]), confidence(log_y)))
    for k, bank in enumerate(problem.banks):
        most_confident_first = sorted(candidates[k], key=lambda entry: -entry[2])  # sorted() is stable
        bank.extend(most_confident_first[:bank_size])

    z, scores, means, precision = _solve(problem, rows, past)
    n_support = len(past) + sum(problem.support_counts)
    return _answer(problem, z, scores, means, precision, len(rows) + n_support)


def predict(
    features: npt.ArrayLike,
    statistics: Statistics,
    prototypes: npt.ArrayLike,
    *,
    logit_scale: float = 100.0,
    use_bank_term: bool = True,
) -> tuple[Array, Array]:
    """Steps 4-6 with given statistics (an `OnlineAnswer` is one): (probabilities, scores). Learns nothing."""
    t = np.array(prototypes, dtype=np.float64)
    rows = list(np.array(features, dtype=np.float64))
    probabilities = np.zeros((len(rows), len(t)))
    scores = np.zeros((len(rows), len(t)))
    for i, x in enumerate(rows):
        _, log_y = posterior(x, t, logit_scale)
        if statistics.learnt_from == 0:
            scores[i] = log_y
        else:
            scores[i] = _score(x, log_y, statistics.means, statistics.precision, statistics.banks, use_bank_term)
        probabilities[i] = np.exp(log_softmax(scores[i]))
    return probabilities, scores

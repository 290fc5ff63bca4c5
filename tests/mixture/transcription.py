"""A slow, plain float64 transcription of the anchored mixture, against which the library is measured.

Written from the equations; nothing here is shared with the library. Where the library keeps sums, this keeps every
sample: statistics are taken over all of them anew, and what two shards know together is both their lists, joined.

Where the equations are silent:

1.  n, which the statistics are taken over, counts labelled samples. The caution is of the stream alone, and so is the n
    that the schedule of renewals goes by; while that is less than K, it goes by K.
2.  Fewer than two samples in the stream: no caution. No two neighbours: r = 0.
3.  A class of no counts has its centre at the origin, with trust 0.
4.  Prototypes that all are one point (within 1e-24): the spread is 1. A trace of S of at most 1e-12 of the samples'
    mean squared length: P = 0.
5.  Of classes whose log-posteriors lead within 1e-9 of each other the calm look's belief is the mean.
6.  nu - z, the weight of a mean without the sample, is never less than kappa.
7.  The prior sample: belief 1, and confidences that fall evenly from 1 at the first exponent to 0 at the last. Between
    two exponents the logarithm of tau is linear in the mean confidence; outside, the nearer end.
8.  Beliefs and confidences are those of samples that were answered by a mixture: none of the first samples' online,
    those of the last round's survey in a set, which the mixture before the last makes.
9.  After two streams are joined, the next sample is no neighbour of either's last.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

NOTHING = 1e-24
ROUNDING = 1e-12
TIED = 1e-9
EXPONENTS = [2.0 ** (-i / 2) for i in range(13)]
SELDOM = 256


@dataclass
class Settings:
    logit_scale: float = 100.0
    anchor_count: float = 1.0
    cautious_anchor_count: float = 4.0
    spread_range: tuple[float, float] = (0.3, 3.0)
    spread_samples: float = 2.0
    shrinkage: float = 0.75
    shrinkage_samples: float = 4.0
    reliability_samples: float = 32.0
    weight: float = 1.0
    first_samples: int = 8
    correlation: float = 0.06
    balance: tuple[float, float] = (0.4, 0.8)
    relief: float = 1.0
    calm: float = 1 / 16


@dataclass
class Memory:
    """Every sample: features and soft labels, zero-shot posteriors, products of neighbours', and what was believed."""

    x: list[np.ndarray] = field(default_factory=list)
    q: list[np.ndarray] = field(default_factory=list)
    y: list[np.ndarray] = field(default_factory=list)
    products: list[float] = field(default_factory=list)
    beliefs: list[float] = field(default_factory=list)
    confidences: list[list[float]] = field(default_factory=list)

    def joined(self, other: Memory) -> Memory:
        return Memory(**{name: mine + vars(other)[name] for name, mine in vars(self).items()})


@dataclass
class Statistics:
    means: np.ndarray
    precision: np.ndarray
    nu: np.ndarray
    kappa: float
    rho: float
    order: float
    caution: float
    tau: float


def log_softmax(scores):
    shifted = scores - np.max(scores)
    return shifted - math.log(float(np.sum(np.exp(shifted))))


def log_zero_shot(x, t, settings):
    return log_softmax(np.array([settings.logit_scale * float(t_k @ x) for t_k in t]))


# -------------------------------------------------------------------------------------------- statistics


def order_and_balance(memory, settings):
    n, classes = len(memory.y), len(memory.y[0]) if memory.y else 0
    if n < 2:
        return 0.0, 0.0
    products = np.array(memory.y) @ np.array(memory.y).T
    itself = float(np.trace(products)) / n
    strangers = max((float(products.sum()) - float(np.trace(products))) / (n * (n - 1)), 0.0)
    r = 0.0
    if memory.products:
        neighbours = sum(memory.products) / len(memory.products)
        r = min(max((neighbours - strangers) / max(itself - strangers, 1e-12), 0.0), 1.0)
    share = min(1.0, 1.0 / (classes * strangers)) if strangers > 0 else 1.0
    low, high = settings.balance
    g = r**2 / (r**2 + settings.correlation**2)
    h = min(max((high - share) / (high - low), 0.0), 1.0)
    return g, h


def temperature(memory):
    belief = 1.0 + sum(memory.beliefs)
    mean = []
    for place in range(13):
        mean.append(1.0 - place / 12 + sum(row[place] for row in memory.confidences))
    if belief >= mean[0]:
        return EXPONENTS[0]
    for i in range(12):
        if mean[i] >= belief >= mean[i + 1]:
            part = (mean[i] - belief) / (mean[i] - mean[i + 1])
            return math.exp((1 - part) * math.log(EXPONENTS[i]) + part * math.log(EXPONENTS[i + 1]))
    return EXPONENTS[-1]


def statistics(memory, labelled, t, settings):
    """Of all samples and the `labelled` ones, pairs (x, one-hot); None while there are too few."""
    x = np.array(memory.x + [pair[0] for pair in labelled])
    q = np.array(memory.q + [pair[1] for pair in labelled])
    n, (classes, d) = len(x), t.shape
    if n < settings.first_samples:
        return None
    g, h = order_and_balance(memory, settings)
    u = 1 - (1 - g) * (1 - h)
    kappa = settings.anchor_count + (settings.cautious_anchor_count - settings.anchor_count) * u

    counts = [float(sum(q[:, k])) for k in range(classes)]
    centres = [q[:, k] @ x / counts[k] if counts[k] > 0 else np.zeros(d) for k in range(classes)]
    trust = [count / (count + kappa) for count in counts]
    seen = sum(w * centre for w, centre in zip(trust, centres, strict=True)) / sum(trust)
    text_seen = sum(w * t_k for w, t_k in zip(trust, t, strict=True)) / sum(trust)
    middle = (1 - u) * x.mean(axis=0) + u * seen
    text_middle = (1 - u) * t.mean(axis=0) + u * text_seen

    c = 1.0
    if n > settings.spread_samples * classes:
        of_images = sum(w * float(np.sum((m - middle) ** 2)) for w, m in zip(trust, centres, strict=True))
        of_text = sum(w * float(np.sum((t_k - text_middle) ** 2)) for w, t_k in zip(trust, t, strict=True))
        if of_text > NOTHING:
            c = min(max(math.sqrt(of_images / of_text), settings.spread_range[0]), settings.spread_range[1])

    nu = np.array(counts) + kappa
    means = np.zeros((classes, d))
    for k in range(classes):
        anchor = middle + c * (t[k] - text_middle)
        means[k] = (q[:, k] @ x + kappa * anchor) / nu[k]

    scatter = np.zeros((d, d))
    for k in range(classes):
        away = x - means[k]
        scatter += away.T @ (q[:, k, None] * away)
    scatter /= n
    precision = np.zeros((d, d))
    if np.trace(scatter) > ROUNDING * float(np.mean(np.sum(x**2, axis=1))):
        lam = settings.shrinkage + (1 - settings.shrinkage) * d / (d + settings.shrinkage_samples * n)
        precision = np.linalg.inv((1 - lam) * scatter + lam * np.trace(scatter) / d * np.eye(d))
    rho = n / (n + settings.reliability_samples * classes)
    return Statistics(means, precision, nu, kappa, rho, g, u, temperature(memory))


# ---------------------------------------------------------------------------------------------- one sample


def distances(x, found):
    answer = np.zeros(len(found.means))
    for k, mean in enumerate(found.means):
        nu = found.nu[k]
        answer[k] = (x - mean) @ found.precision @ (x - mean) * ((1 - found.caution) * nu / (nu + 1) + found.caution)
    return answer


def learned(log_y, away, found, settings):
    return np.exp(log_softmax(log_y - 0.5 * settings.weight * found.rho * away))


def log_answer(log_y, away, found, settings):
    """Before the temperature."""
    trusted = found.rho * (1 - settings.relief * found.order)
    return log_softmax(log_y - 0.5 * settings.weight * trusted * away)


def belief(log_y, away, answer, found, settings):
    calm = np.exp(log_softmax(log_y - 0.5 * settings.weight * settings.calm * found.rho * away))
    leaders = [k for k in range(len(answer)) if answer[k] >= max(answer) - TIED]
    return sum(calm[k] for k in leaders) / len(leaders)


def confidences(answer):
    return [math.exp(float(np.max(log_softmax(exponent * answer)))) for exponent in EXPONENTS]


def predict(features, memory, labelled, t, settings):
    found = statistics(memory, labelled, t, settings)
    rows = []
    for x in features:
        log_y = log_zero_shot(x, t, settings)
        if found is not None:
            log_y = log_softmax(found.tau * log_answer(log_y, distances(x, found), found, settings))
        rows.append(np.exp(log_y))
    return np.array(rows)


def one_hot(support, classes):
    return [(x, np.eye(classes)[label]) for x, label in zip(*support, strict=True)] if support else []


# ------------------------------------------------------------------------------------------- the two methods


def online(features, t, *, staleness=1 / 32, support=None, memory=None, **parameters):
    """Probabilities of every row, and all that is remembered."""
    settings, memory = Settings(**parameters), memory or Memory()
    labelled, rows, neighbour = one_hot(support, len(t)), [], None
    known = len(memory.y)
    found = statistics(memory, labelled, t, settings)
    for x in features:
        log_y = log_zero_shot(x, t, settings)
        y = np.exp(log_y)
        q, row = y, y
        if found is not None:
            away = distances(x, found)
            answer = log_answer(log_y, away, found, settings)
            q = found.rho * learned(log_y, away, found, settings) + (1 - found.rho) * y
            row = np.exp(log_softmax(found.tau * answer))
            memory.beliefs.append(belief(log_y, away, answer, found, settings))
            memory.confidences.append(confidences(answer))
        rows.append(row)
        if neighbour is not None:
            memory.products.append(float(neighbour @ y))
        neighbour = y
        memory.x.append(x)
        memory.q.append(q)
        memory.y.append(y)
        if len(memory.y) - known >= max(1, min(math.floor(staleness * max(known, len(t))), SELDOM)):
            known = len(memory.y)
            found = statistics(memory, labelled, t, settings)
    return np.array(rows), memory


def transductive(features, t, *, rounds=10, support=None, **parameters):
    """Probabilities of every row, and all that is remembered."""
    settings, labelled = Settings(**parameters), one_hot(support, len(t))
    memory = Memory()
    for number in range(rounds):
        found = statistics(memory, labelled, t, settings)
        memory = Memory()
        for x in features:
            log_y = log_zero_shot(x, t, settings)
            z = np.exp(log_y)
            if found is not None:
                away = distances(x, found)
                z = learned(log_y, away, found, settings)
                if number == rounds - 1:
                    without = np.maximum(found.nu - z, found.kappa)
                    answer = log_answer(log_y, away, found, settings)
                    memory.beliefs.append(belief(log_y, away * (found.nu / without) ** 2, answer, found, settings))
                    memory.confidences.append(confidences(answer))
            memory.x.append(x)
            memory.q.append(z)
            memory.y.append(np.exp(log_y))
    return predict(features, memory, labelled, t, settings), memory

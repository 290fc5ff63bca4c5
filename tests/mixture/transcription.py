"""A slow, simple float64 transcription of the anchored mixture, which the library is compared with.

It is written from the equations and shares no code with the library. The library keeps sums; this keeps every sample,
computes the statistics from all of them each time, and merges two shards by joining their lists.

Details that the equations leave open:

1.  n in the statistics counts labelled samples. The caution and the update schedule count samples of the stream only;
    for the schedule, n is at least K.
2.  With fewer than two samples in the stream, the caution is 0. Without neighbours, r = 0. A variance of the posteriors
    below 1e-10 counts as 1e-10.
3.  A class with count 0 has its centre at the origin and trust 0.
4.  If all prototypes are equal (within 1e-24), the spread is 1. If the trace of S is at most 1e-12 of the samples' mean
    squared length, P = 0. Otherwise, as the ridge, it counts as at least 1e-5.
5.  If several classes have the largest log-posterior (within 1e-9), the reference probability is their mean.
6.  nu - z, the weight of a mean without the sample, is at least kappa.
7.  The prior sample has reference probability 1, and confidences that fall linearly from 1 at the first exponent to 0
    at the last. Between two exponents, the logarithm of tau is linear in the mean confidence; outside, it is that of
    the nearer end.
8.  Reference probabilities and confidences come from samples predicted by a mixture: online not from the first samples,
    for a set from the last round, predicted by the mixture of the round before.
9.  After two streams are merged, the next sample is not a neighbour of either stream's last sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

ZERO_TRACE = 1e-24
SMALLEST_TRACE = 1e-5
SMALLEST_VARIANCE = 1e-10
ROUNDING = 1e-12
TIE = 1e-9
EXPONENTS = [2.0 ** (-i / 2) for i in range(13)]
MAX_PENDING = 256


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
    """Of every sample: features, soft label, zero-shot posterior, product with the posterior before it, confidences."""

    x: list[np.ndarray] = field(default_factory=list)
    q: list[np.ndarray] = field(default_factory=list)
    y: list[np.ndarray] = field(default_factory=list)
    products: list[float] = field(default_factory=list)
    reference_probabilities: list[float] = field(default_factory=list)
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


def order_and_balance(memory, settings):
    n, classes = len(memory.y), len(memory.y[0]) if memory.y else 0
    if n < 2:
        return 0.0, 0.0
    products = np.array(memory.y) @ np.array(memory.y).T
    itself = float(np.trace(products)) / n
    random_pairs = max((float(products.sum()) - float(np.trace(products))) / (n * (n - 1)), 0.0)
    r = 0.0
    if memory.products:
        neighbours = sum(memory.products) / len(memory.products)
        r = min(max((neighbours - random_pairs) / max(itself - random_pairs, SMALLEST_VARIANCE), 0.0), 1.0)
    share = min(1.0, 1.0 / (classes * random_pairs)) if random_pairs > 0 else 1.0
    low, high = settings.balance
    g = r**2 / (r**2 + settings.correlation**2)
    h = min(max((high - share) / (high - low), 0.0), 1.0)
    return g, h


def temperature(memory):
    reference = 1.0 + sum(memory.reference_probabilities)
    mean = []
    for index in range(13):
        mean.append(1.0 - index / 12 + sum(row[index] for row in memory.confidences))
    if reference >= mean[0]:
        return EXPONENTS[0]
    for i in range(12):
        if mean[i] >= reference >= mean[i + 1]:
            part = (mean[i] - reference) / (mean[i] - mean[i + 1])
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
    trusted_center = sum(w * centre for w, centre in zip(trust, centres, strict=True)) / sum(trust)
    trusted_text_center = sum(w * t_k for w, t_k in zip(trust, t, strict=True)) / sum(trust)
    center = (1 - u) * x.mean(axis=0) + u * trusted_center
    text_center = (1 - u) * t.mean(axis=0) + u * trusted_text_center

    c = 1.0
    if n > settings.spread_samples * classes:
        image_spread = sum(w * float(np.sum((m - center) ** 2)) for w, m in zip(trust, centres, strict=True))
        text_spread = sum(w * float(np.sum((t_k - text_center) ** 2)) for w, t_k in zip(trust, t, strict=True))
        if text_spread > ZERO_TRACE:
            c = min(max(math.sqrt(image_spread / text_spread), settings.spread_range[0]), settings.spread_range[1])

    nu = np.array(counts) + kappa
    means = np.zeros((classes, d))
    for k in range(classes):
        anchor = center + c * (t[k] - text_center)
        means[k] = (q[:, k] @ x + kappa * anchor) / nu[k]

    scatter = np.zeros((d, d))
    for k in range(classes):
        difference = x - means[k]
        scatter += difference.T @ (q[:, k, None] * difference)
    scatter /= n
    precision = np.zeros((d, d))
    if np.trace(scatter) > ROUNDING * float(np.mean(np.sum(x**2, axis=1))):
        lam = settings.shrinkage + (1 - settings.shrinkage) * d / (d + settings.shrinkage_samples * n)
        precision = np.linalg.inv((1 - lam) * scatter + lam * max(np.trace(scatter), SMALLEST_TRACE) / d * np.eye(d))
    rho = n / (n + settings.reliability_samples * classes)
    return Statistics(means, precision, nu, kappa, rho, g, u, temperature(memory))


def distances(x, found):
    answer = np.zeros(len(found.means))
    for k, mean in enumerate(found.means):
        nu = found.nu[k]
        answer[k] = (x - mean) @ found.precision @ (x - mean) * ((1 - found.caution) * nu / (nu + 1) + found.caution)
    return answer


def soft_labels(log_y, distance, found, settings):
    return np.exp(log_softmax(log_y - 0.5 * settings.weight * found.rho * distance))


def log_answer(log_y, distance, found, settings):
    """Before the temperature."""
    trusted = found.rho * (1 - settings.relief * found.order)
    return log_softmax(log_y - 0.5 * settings.weight * trusted * distance)


def reference_probability(log_y, distance, answer, found, settings):
    calm = np.exp(log_softmax(log_y - 0.5 * settings.weight * settings.calm * found.rho * distance))
    tied = [k for k in range(len(answer)) if answer[k] >= max(answer) - TIE]
    return sum(calm[k] for k in tied) / len(tied)


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


def online(features, t, *, staleness=1 / 32, support=None, memory=None, **parameters):
    """Probabilities of every row, and the memory."""
    settings, memory = Settings(**parameters), memory or Memory()
    labelled, rows, neighbour = one_hot(support, len(t)), [], None
    known = len(memory.y)
    found = statistics(memory, labelled, t, settings)
    for x in features:
        log_y = log_zero_shot(x, t, settings)
        y = np.exp(log_y)
        q, row = y, y
        if found is not None:
            distance = distances(x, found)
            answer = log_answer(log_y, distance, found, settings)
            q = found.rho * soft_labels(log_y, distance, found, settings) + (1 - found.rho) * y
            row = np.exp(log_softmax(found.tau * answer))
            memory.reference_probabilities.append(reference_probability(log_y, distance, answer, found, settings))
            memory.confidences.append(confidences(answer))
        rows.append(row)
        if neighbour is not None:
            memory.products.append(float(neighbour @ y))
        neighbour = y
        memory.x.append(x)
        memory.q.append(q)
        memory.y.append(y)
        if len(memory.y) - known >= max(1, min(math.floor(staleness * max(known, len(t))), MAX_PENDING)):
            known = len(memory.y)
            found = statistics(memory, labelled, t, settings)
    return np.array(rows), memory


def transductive(features, t, *, rounds=10, support=None, **parameters):
    """Probabilities of every row, and the memory."""
    settings, labelled = Settings(**parameters), one_hot(support, len(t))
    memory = Memory()
    for number in range(rounds):
        found = statistics(memory, labelled, t, settings)
        memory = Memory()
        for x in features:
            log_y = log_zero_shot(x, t, settings)
            z = np.exp(log_y)
            if found is not None:
                distance = distances(x, found)
                z = soft_labels(log_y, distance, found, settings)
                if number == rounds - 1:
                    without = np.maximum(found.nu - z, found.kappa)
                    answer = log_answer(log_y, distance, found, settings)
                    memory.reference_probabilities.append(
                        reference_probability(log_y, distance * (found.nu / without) ** 2, answer, found, settings)
                    )
                    memory.confidences.append(confidences(answer))
            memory.x.append(x)
            memory.q.append(z)
            memory.y.append(np.exp(log_y))
    return predict(features, memory, labelled, t, settings), memory

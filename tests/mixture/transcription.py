"""A slow, simple float64 transcription of the anchored mixture, which the library is compared with.

It is written from the equations in docs/anchored-mixture.md and shares no code with the library. The library keeps
sums; this keeps every sample with its weight, computes the statistics from all of them each time, and merges two shards
by joining their lists. It takes one sample at a time.

Details that the equations leave open:

1.  n in the statistics counts labelled samples. The update schedule and the two shares of the classes count samples of
    the stream only; for the schedule, n is at least K. With a half-life, the schedule counts a sample by its weight and
    rounds the sum down.
2.  Soft labels, zero-shot posteriors, reference probabilities, confidences and agreement are all forgotten together:
    when m samples enter the statistics, the weight of all others is multiplied by 2^(-m / half-life).
3.  If the samples of the stream weigh less than two together, i = h = 0. p is at least 1/K. If the variances of the
    posteriors add up to less than 1e-10, no class varies: that share is 0. If both limits of a share are equal, i or h
    is a step.
4.  A class with count 0 has its centre at the origin and trust 0.
5.  If all prototypes are equal (within 1e-24), the spread is 1. If the trace of S is at most 1e-12 of the samples' mean
    squared length, P = 0 and delta = 0. Otherwise, as the ridge, it counts as at least 1e-5.
6.  The estimate of a. Means of y and frequencies of the classes begin with 0.05 samples of each class. The evidence e
    is y divided by the sum of the y before, normalised. A class that does not stay is drawn by the frequencies, to
    which each sample adds its posterior in random order. The recursion of the estimate uses the most likely value above
    0, this sample included, and starts from equal probabilities. The estimate is the mean over the nine values. A
    sample that follows none says nothing about a; it has a = 0 in the filter.
7.  The statistics use g after the samples they contain; the filter and b use a before each sample. Only the statistics
    wait for the next update.
8.  While there is no mixture, q is the answer, and the answer is that of the chain without Gaussians. There is no
    temperature, and `predict` is zero-shot without b.
9.  `predict` uses g and b after all samples, also those that are not in the statistics yet.
10. The reference posterior weights the distances by rho times `calm` (1 - 3/4 h), whatever g is. It contains the sample
    before and b as the answer does, but no proportions.
11. If several classes have the largest log-posterior (within 1e-9), the reference probability is their mean.
12. nu - z, the weight of a mean without the sample, is at least kappa.
13. The prior sample has reference probability 1, and confidences that fall linearly from 1 at the first exponent to 0
    at the last. Between two exponents, the logarithm of tau is linear in the mean confidence; outside, it is that of
    the nearer end.
14. Reference probabilities, confidences and agreement come from samples predicted by a mixture: online not from the
    first samples, for a set from the last round (agreement: from every round), predicted by the mixture of the round
    before.
15. The second encoder's Gaussians know no labelled samples. Their shrinkage is that of their own dimension and of n
    without labelled samples; o_k and v_k are the first encoder's. Both posteriors of the agreement have the weight rho
    and no filter, b or proportions. Fewer than one sample, or a variance below 1e-10, is no agreement.
16. A late answer has the temperature of the statistics that scored the last sample that came before it was final. The
    answers of `finish` have the present temperature, those of `smooth` the one that `adapt` would have used. `smooth`
    uses one a and the means b after the recording for every sample, except a = 0 for one that follows none.
17. After two streams are merged, the next sample follows neither stream's last sample, and the sums that a is estimated
    from are added.
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

STAY_VALUES = [0.0, 0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98]
PENALTY = 10.0
MEMORY = 100
FICTITIOUS = 0.05
TRUST = 0.95
SMALLEST_STAY = 1e-3

FEW_OCCURRING = (0.7, 0.85)


@dataclass
class Settings:
    logit_scale: float = 100.0
    anchor_count: float = 1.0
    cautious_anchor_count: float = 4.0
    spread_range: tuple[float, float] = (0.3, 3.0)
    shrinkage: float = 0.75
    shrinkage_samples: float = 4.0
    reliability_samples: float = 32.0
    weight: float = 1.0
    first_samples: int = 8
    occurring: tuple[float, float] = (0.4, 0.8)
    varying: tuple[float, float] = (0.4, 0.5)
    calm: float = 1 / 16
    # Online.
    order: str = "auto"
    relative_samples: float = 32.0
    balance: float = 0.75
    half_life: float | None = None
    # Transductive.
    few_classes_weight: float = 1.0
    proportions: float = 0.0


@dataclass
class Sample:
    x: np.ndarray
    """Features."""
    v: np.ndarray | None
    """Features of the second encoder."""
    y: np.ndarray | None
    """Zero-shot posterior; None for a labelled sample, which is not part of the stream."""
    q: np.ndarray
    """Soft label."""
    calibration: tuple[float, list[float]] | None = None
    """Reference probability and confidences, if a mixture predicted it."""
    single: tuple[np.ndarray, np.ndarray] | None = None
    """The posteriors of each encoder alone, if both judged it."""
    weight: float = 1.0


@dataclass
class Chain:
    """The estimate of a."""

    classes: int
    log_likelihoods: list[float] = field(default_factory=lambda: [0.0] * len(STAY_VALUES))
    posteriors: list[np.ndarray] = field(default_factory=list)
    """y of every sample."""
    drawn: list[np.ndarray] = field(default_factory=list)
    """Of every sample, its posterior in random order."""
    last: np.ndarray | None = None
    """Of the last sample, in the estimate of a; None if the next sample follows none."""
    answer: np.ndarray | None = None
    """The answer to the last sample, before the temperature."""

    def estimate(self):
        weights = [
            math.exp(value - max(self.log_likelihoods) - (PENALTY if a else 0.0))
            for a, value in zip(STAY_VALUES, self.log_likelihoods, strict=True)
        ]
        return sum(w * a for w, a in zip(weights, STAY_VALUES, strict=True)) / sum(weights)

    def stay(self):
        """a for the filter."""
        return TRUST * self.estimate() if TRUST * self.estimate() >= SMALLEST_STAY else 0.0

    def order(self):
        """g"""
        return min(1.0, 2 * self.stay())

    def stay_and_order_of_next(self):
        return (0.0, 0.0) if self.last is None else (self.stay(), self.order())

    def b(self):
        """The mean zero-shot posterior, before it is raised to a power."""
        return (1.0 + sum(self.posteriors, np.zeros(self.classes))) / (len(self.posteriors) + self.classes)

    def observe(self, y):
        e = y / (FICTITIOUS + sum(self.posteriors, np.zeros(self.classes)))
        e = e / e.sum()
        frequencies = FICTITIOUS + sum(self.drawn, np.zeros(self.classes))
        frequencies = frequencies / frequencies.sum()
        before = np.full(self.classes, 1 / self.classes) if self.last is None else self.last
        if self.last is not None:
            for index, a in enumerate(STAY_VALUES):
                probability = (a * before + (1 - a) * frequencies) @ e
                forgotten = self.log_likelihoods[index] / MEMORY
                self.log_likelihoods[index] += math.log(probability / (frequencies @ e)) - forgotten
        a = STAY_VALUES[1 + int(np.argmax(self.log_likelihoods[1:]))]
        after = (a * before + (1 - a) * frequencies) * e
        self.last = after / after.sum()
        self.drawn.append(frequencies * e / (frequencies @ e))
        self.posteriors.append(y)

    def joined(self, other):
        added = [mine + theirs for mine, theirs in zip(self.log_likelihoods, other.log_likelihoods, strict=True)]
        return Chain(self.classes, added, self.posteriors + other.posteriors, self.drawn + other.drawn)


@dataclass
class Memory:
    """Everything that was learned."""

    samples: list[Sample]
    chain: Chain

    @classmethod
    def empty(cls, classes):
        return cls([], Chain(classes))

    def joined(self, other: Memory) -> Memory:
        return Memory(self.samples + other.samples, self.chain.joined(other.chain))


@dataclass
class Gaussians:
    means: np.ndarray
    precision: np.ndarray
    center: np.ndarray
    delta: float

    def distance(self, x, k):
        return float((x - self.means[k]) @ self.precision @ (x - self.means[k]))

    def typical(self, x):
        return max(0.0, float((x - self.center) @ self.precision @ (x - self.center)) + self.delta)


@dataclass
class Statistics:
    first: Gaussians
    second: Gaussians | None
    omega: float
    nu: np.ndarray
    counts: np.ndarray
    kappa: float
    rho: float
    stay: float
    order: float
    few: float
    caution: float
    log_proportions: np.ndarray
    """Times h and their weight."""
    tau: float


def log_softmax(scores):
    shifted = scores - np.max(scores)
    return shifted - math.log(float(np.sum(np.exp(shifted))))


def log_zero_shot(x, t, settings):
    return log_softmax(np.array([settings.logit_scale * float(t_k @ x) for t_k in t]))


def ramp(share, limits):
    low, high = limits
    if low == high:
        return 1.0 if share < low else 0.0
    return min(1.0, max(0.0, (high - share) / (high - low)))


def imbalance_and_few_classes(stream, settings):
    """i and h"""
    n = sum(sample.weight for sample in stream)
    if n < 2 - TIE:
        return 0.0, 0.0
    classes = len(stream[0].y)
    total = sum(sample.weight * sample.y for sample in stream)
    squares = sum(sample.weight * sample.y**2 for sample in stream)
    pairs = float(total @ total - squares.sum()) / (n * (n - 1))
    occurring = min(1.0, 1 / (classes * max(pairs, 1 / classes)))
    variances = [
        max(0.0, sum(sample.weight * sample.y[k] ** 2 for sample in stream) / n - (total[k] / n) ** 2)
        for k in range(classes)
    ]
    varying = 0.0
    if sum(variances) >= SMALLEST_VARIANCE:
        varying = min(1.0, (1 + classes / n) * sum(variances) ** 2 / (classes * sum(v**2 for v in variances)))
    return ramp(occurring, settings.occurring), min(ramp(occurring, FEW_OCCURRING), ramp(varying, settings.varying))


def temperature(samples):
    found = [(sample.weight, *sample.calibration) for sample in samples if sample.calibration is not None]
    reference = 1.0 + sum(weight * probability for weight, probability, _ in found)
    curve = [1.0 - i / 12 + sum(weight * confidences[i] for weight, _, confidences in found) for i in range(13)]
    if reference >= curve[0]:
        return EXPONENTS[0]
    for i in range(12):
        if curve[i] >= reference >= curve[i + 1]:
            part = (curve[i] - reference) / (curve[i] - curve[i + 1])
            return math.exp((1 - part) * math.log(EXPONENTS[i]) + part * math.log(EXPONENTS[i + 1]))
    return EXPONENTS[-1]


def agreement(stream):
    both = [(sample.weight, *sample.single) for sample in stream if sample.single is not None]
    n = sum(weight for weight, _, _ in both)
    if n < 1 - TIE:
        return 0.0
    chance = float(sum(w * p for w, p, _ in both) @ sum(w * r for w, _, r in both)) / n**2
    together = sum(w * float(p @ r) for w, p, r in both) / n
    variance = sum(w * float(p @ p) for w, p, _ in both) / n - chance
    return min(1.0, max(0.0, (together - chance) / variance)) if variance > SMALLEST_VARIANCE else 0.0


def gaussians(x, q, kappa, anchors, order, settings):
    """From features (n, d), weighted soft labels (n, K) and anchors (K, d)."""
    n, d = round(float(q.sum()), 6), x.shape[1]
    weights = q.sum(axis=1)
    means = np.array([(q_k @ x + kappa * m_k) / (q_k.sum() + kappa) for q_k, m_k in zip(q.T, anchors, strict=True)])
    within = np.zeros((d, d))
    for k, mean in enumerate(means):
        difference = x - mean
        within += difference.T @ (q[:, k, None] * difference)
    within /= n
    center = weights @ x / n
    if np.trace(within) <= ROUNDING * float(weights @ np.sum(x**2, axis=1)) / n:
        return Gaussians(means, np.zeros((d, d)), center, 0.0)
    lam = settings.shrinkage + (1 - settings.shrinkage) * d / (d + settings.shrinkage_samples * n)
    precision = np.linalg.inv((1 - lam) * within + lam * max(np.trace(within), SMALLEST_TRACE) / d * np.eye(d))
    around = (x - center).T @ (weights[:, None] * (x - center)) / n
    delta = float(np.trace(precision @ within) - np.trace(precision @ around)) if order else 0.0
    return Gaussians(means, precision, center, delta)


def text_anchors(x, q, counts, t, kappa, u, p, settings):
    n = round(float(q.sum()), 6)
    centres = [q_k @ x / count if count > 0 else np.zeros(x.shape[1]) for q_k, count in zip(q.T, counts, strict=True)]
    trust = counts / (counts + kappa)
    center = (1 - u) * q.sum(axis=1) @ x / n
    center = center + u * sum(c * m for c, m in zip(trust, centres, strict=True)) / trust.sum()
    text_center = (1 - u) * t.mean(axis=0) + u * trust @ t / trust.sum()
    images = sum(c * float(np.sum((m - center) ** 2)) for c, m in zip(trust, centres, strict=True))
    text = sum(c * float(np.sum((t_k - text_center) ** 2)) for c, t_k in zip(trust, t, strict=True))
    r = 1.0
    if text > ZERO_TRACE:
        r = min(max(math.sqrt(images / text), settings.spread_range[0]), settings.spread_range[1])
    return [(1 - p) * (center + r * (t_k - text_center)) + p * t_k for t_k in t]


def statistics(memory, labelled, t, settings):
    """Of all samples and the `labelled` ones; None while there are too few."""
    stream = memory.samples
    samples = stream + labelled
    n, classes = round(sum(sample.weight for sample in samples), 6), len(t)
    if n < settings.first_samples:
        return None
    x = np.array([sample.x for sample in samples])
    q = np.array([sample.weight * sample.q for sample in samples])
    g = memory.chain.order()
    i, h = imbalance_and_few_classes(stream, settings)
    u = 1 - (1 - g) * (1 - max(i, h))
    kappa = settings.anchor_count + (settings.cautious_anchor_count - settings.anchor_count) * u
    counts = q.sum(axis=0)
    first = gaussians(x, q, kappa, text_anchors(x, q, counts, t, kappa, u, h * (1 - g), settings), g, settings)
    second, omega = None, 0.0
    if stream and stream[0].v is not None:
        v = np.array([sample.v for sample in stream])
        y = np.array([sample.weight * sample.y for sample in stream])
        anchors = [y_k @ v / (y_k.sum() or 1.0) for y_k in y.T]
        second = gaussians(v, q[: len(stream)], kappa, anchors, g, settings)
        omega = agreement(stream) ** 3
    pi = (counts + 0.1) / (n + 0.1 * classes)
    return Statistics(
        first=first,
        second=second,
        omega=omega,
        nu=counts + kappa,
        counts=counts,
        kappa=kappa,
        rho=n / (n + settings.reliability_samples * classes),
        stay=memory.chain.stay(),
        order=g,
        few=h,
        caution=u,
        log_proportions=settings.proportions * h * np.log(pi),
        tau=temperature(samples),
    )


def distances(x, v, found, settings):
    """D_k in the first encoder's features, and in the second one's."""
    answers = []
    for features, gaussians in ((x, found.first), (v, found.second)):
        if features is None or gaussians is None:
            answers.append(None)
            continue
        distance = np.zeros(len(found.nu))
        typical = gaussians.typical(features)
        for k, (nu, count) in enumerate(zip(found.nu, found.counts, strict=True)):
            g, o = found.order, (1 - found.caution) * nu / (nu + 1) + found.caution
            known = count / (count + settings.relative_samples)
            distance[k] = ((1 - g) * o + g * known) * gaussians.distance(features, k) + g * (1 - known) * typical
        answers.append(distance)
    return answers


def log_gaussians(both, weight, found):
    """What the Gaussians say, with this weight of the distances."""
    first, second = both
    distance = first if second is None else (first + found.omega * second) / (1 + found.omega)
    return -0.5 * weight * distance


def log_answer(both, found, settings):
    """What the Gaussians say in an answer, and the proportions."""
    weight = settings.weight * found.rho * min(1, 2 * (1 - found.stay) / (1 + found.stay))
    weight *= 1 - (1 - settings.few_classes_weight) * found.few
    return log_gaussians(both, weight, found) + found.log_proportions


def calibration(log_prior, both, answer, found, settings):
    """The reference probability of the answer, and its confidence at each exponent."""
    weight = settings.calm * settings.weight * found.rho * (1 - 0.75 * found.few)
    scores = log_prior + log_gaussians(both, weight, found)
    reference = np.exp(log_softmax(scores))
    tied = [k for k in range(len(answer)) if answer[k] >= max(answer) - TIE]
    confidences = [math.exp(float(np.max(log_softmax(exponent * answer)))) for exponent in EXPONENTS]
    return sum(reference[k] for k in tied) / len(tied), confidences


def single_posteriors(log_y, both, found, settings):
    first, second = both
    weight = 0.5 * settings.weight * found.rho
    return np.exp(log_softmax(log_y - weight * first)), np.exp(log_softmax(-weight * second))


def predict(features, memory, labelled, t, settings, second=None, found=None):
    """With the statistics of all samples, or with `found`."""
    found = found or statistics(memory, labelled, t, settings)
    rows = []
    for i, x in enumerate(features):
        answer = log_zero_shot(x, t, settings)
        if found is not None:
            both = distances(x, None if second is None else second[i], found, settings)
            answer = answer + log_answer(both, found, settings)
            answer = answer - settings.balance * memory.chain.order() * np.log(memory.chain.b())
            answer = log_softmax(found.tau * answer)
        rows.append(np.exp(answer))
    return np.array(rows)


def one_hot(support, classes):
    return [Sample(x, None, None, np.eye(classes)[label]) for x, label in zip(*support, strict=True)] if support else []


@dataclass
class Recorded:
    """What is needed for late answers to a sample."""

    evidence: np.ndarray
    """Logarithm of zero-shot and the Gaussians."""
    balanced: np.ndarray
    stay: float
    filtered: np.ndarray
    tau: float


@dataclass
class Run:
    probabilities: np.ndarray
    memory: Memory
    found: Statistics | None
    """The statistics after the last update."""
    recorded: list[Recorded]
    follows: bool
    """Whether the first sample followed another one."""
    first: np.ndarray
    """What the filter started from."""


def online(features, t, *, staleness=1 / 32, support=None, memory=None, second=None, **parameters):
    settings = Settings(**parameters)
    classes = len(t)
    memory = memory or Memory.empty(classes)
    chain, labelled, rows, recorded, pending = memory.chain, one_hot(support, classes), [], [], []
    follows = chain.last is not None
    uniform = np.full(classes, 1 / classes)
    first = chain.answer if follows and chain.answer is not None else uniform
    found = statistics(memory, labelled, t, settings)
    n_counted = len(memory.samples)
    for i, x in enumerate(features):
        v = None if second is None else second[i]
        log_y = log_zero_shot(x, t, settings)
        y = np.exp(log_y)
        stay, order = chain.stay_and_order_of_next() if settings.order == "auto" else (0.0, 0.0)
        before = chain.answer if chain.answer is not None else uniform
        log_prior = np.log(stay * before + (1 - stay) / classes)
        log_b = settings.balance * order * np.log(chain.b())
        both = distances(x, v, found, settings) if found is not None else None
        said = log_answer(both, found, settings) if found is not None else np.zeros(classes)
        answer = log_softmax(log_prior + log_y - log_b + said)
        sample = Sample(x, v, y, np.exp(answer))
        tau = 1.0
        if found is not None:
            s = 1 - (1 - found.rho) * (1 - found.order / 2)
            sample.q = s * np.exp(answer) + (1 - s) * y
            sample.calibration = calibration(log_prior + log_y - log_b, both, answer, found, settings)
            if both[1] is not None:
                sample.single = single_posteriors(log_y, both, found, settings)
            tau = found.tau
        rows.append(np.exp(log_softmax(tau * answer)))
        recorded.append(Recorded(log_y + said, log_y - log_b + said, stay, answer, tau))
        pending.append(sample)
        if settings.order == "auto":
            chain.observe(y)
            chain.answer = np.exp(answer)
        n = n_counted if settings.half_life is None else math.floor(sum(one.weight for one in memory.samples))
        if len(pending) >= max(1, min(math.floor(staleness * max(n, classes)), MAX_PENDING)):
            n_counted += len(pending)
            count(memory, pending, settings)
            pending = []
            found = statistics(memory, labelled, t, settings)
    if pending:
        count(memory, pending, settings)
    return Run(np.array(rows), memory, found, recorded, follows, first)


def count(memory, pending, settings):
    if settings.half_life is not None:
        for sample in memory.samples:
            sample.weight *= 0.5 ** (len(pending) / settings.half_life)
    memory.samples.extend(pending)


def smoothed(filtered, balanced, stays):
    """(K,) the log-posterior of the first sample given those after it: all its filtered log-posterior lacks."""
    classes = len(filtered)
    message = np.ones(classes)
    for evidence, stay in zip(reversed(balanced), reversed(stays), strict=True):
        product = message * np.exp(evidence - np.max(evidence))
        message = stay * product + (1 - stay) / classes * product.sum()
        message = message / message.max()
    return log_softmax(filtered + np.log(message))


def late(run, lag):
    """(N, K) what `adapt_late` and then `finish` answer."""
    rows, recorded = [], run.recorded
    for i, one in enumerate(recorded):
        after = recorded[i + 1 : i + 1 + lag]
        answer = smoothed(one.filtered, [other.balanced for other in after], [other.stay for other in after])
        tau = after[-1].tau if after else one.tau
        if i + lag >= len(recorded):
            tau = 1.0 if run.found is None else run.found.tau
        rows.append(np.exp(log_softmax(tau * answer)))
    return np.array(rows)


def smooth(run, settings):
    """(N, K) what `smooth` answers."""
    chain, recorded = run.memory.chain, run.recorded
    classes = chain.classes
    auto = settings.order == "auto"
    stay, order = (chain.stay(), chain.order()) if auto else (0.0, 0.0)
    before, balanced, filtered, stays = run.first, [], [], []
    for i, one in enumerate(recorded):
        a, g = (stay, order) if i or run.follows else (0.0, 0.0)
        balanced.append(one.evidence - settings.balance * g * np.log(chain.b()))
        filtered.append(log_softmax(np.log(a * before + (1 - a) / classes) + balanced[-1]))
        stays.append(a)
        before = np.exp(filtered[-1])
    answers = [smoothed(filtered[i], balanced[i + 1 :], stays[i + 1 :]) for i in range(len(recorded))]
    return np.array([np.exp(log_softmax(one.tau * answer)) for one, answer in zip(recorded, answers, strict=True)])


def transductive_settings(**parameters):
    return Settings(**{"few_classes_weight": 0.5, "proportions": 1.0, **parameters})


def transductive(features, t, *, rounds=10, support=None, second=None, **parameters):
    """Probabilities of every row, and the memory."""
    settings = transductive_settings(**parameters)
    labelled = one_hot(support, len(t))
    memory = Memory.empty(len(t))
    for number in range(rounds):
        found = statistics(memory, labelled, t, settings)
        memory = Memory.empty(len(t))
        for i, x in enumerate(features):
            v = None if second is None else second[i]
            log_y = log_zero_shot(x, t, settings)
            sample = Sample(x, v, np.exp(log_y), np.exp(log_y))
            if found is not None:
                both = distances(x, v, found, settings)
                answer = log_softmax(log_y + log_answer(both, found, settings))
                sample.q = np.exp(answer)
                without = np.maximum(found.nu - sample.q, found.kappa)
                others = [None if distance is None else distance * (found.nu / without) ** 2 for distance in both]
                if others[1] is not None:
                    sample.single = single_posteriors(log_y, others, found, settings)
                if number == rounds - 1:
                    sample.calibration = calibration(log_y, others, answer, found, settings)
            memory.samples.append(sample)
    return predict(features, memory, labelled, t, settings, second), memory

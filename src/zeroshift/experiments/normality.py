"""Table 10: are the features of a class normal? Two tests, in many random projections to few dimensions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from zeroshift.evaluate import Analysis, Job
from zeroshift.experiments._shared.experiment import Experiment, JobResults, Options
from zeroshift.experiments._shared.findings import Cell, Column, Finding, Lines, Remark, Row, Series, Table, Value
from zeroshift.experiments._shared.paper import PaperRow, paper_table
from zeroshift.experiments._shared.suite import PAPERS_SET, Member, Suite, is_paper_imagenet
from zeroshift.experiments._shared.tables import data_remark, reference
from zeroshift.experiments._shared.trials import analysis
from zeroshift.features import FeatureSet

__all__ = [
    "DIMENSIONS",
    "EXPERIMENT",
    "FEWEST",
    "KINDS",
    "LEVEL",
    "REPEATS",
    "TESTS",
    "PooledSets",
    "counts_of",
    "generalised_shapiro_wilk",
    "henze_zirkler",
    "normality_of_classes",
    "null_moments",
    "pooled",
    "projected",
    "rows_of",
    "shapiro_w",
    "smoothing",
    "whitened",
]


FLAT = 1e-10
"""Relative variance below which the covariance counts as singular."""


def whitened(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whiten sets of samples (R, n, d): S^(-1/2) (x - mean), with the divisor n in S and its symmetric root.

    Also returns whether S is invertible (R,); if it is not, the result is zero.

    >>> z, regular = whitened(np.random.default_rng(0).normal(3.0, 2.0, (1, 50, 2)))
    >>> np.allclose(z[0].T @ z[0] / 50, np.eye(2)), regular
    (True, array([ True]))
    """
    centred = samples - samples.mean(axis=1, keepdims=True)
    covariances = np.matmul(centred.transpose(0, 2, 1), centred) / samples.shape[1]
    values, vectors = np.linalg.eigh(covariances)
    regular = values[:, 0] > FLAT * values[:, -1]
    safe = np.where(regular[:, None], values, 1.0)
    roots = np.matmul(vectors / np.sqrt(safe)[:, None, :], vectors.transpose(0, 2, 1))
    return np.matmul(centred, roots) * regular[:, None, None], regular


# The Henze-Zirkler test of multivariate normality. The statistic is a weighted distance between the empirical
# characteristic function of the whitened samples and that of the standard normal distribution. For normal samples it is
# approximately log-normal, with mean and variance in closed form.
# N. Henze and B. Zirkler, *A class of invariant consistent tests for multivariate normality*, 1990.


PAIRS_AT_ONCE = 2_000_000
"""Maximum number of pairwise distances in memory: 16 MB."""


def smoothing(n: int, d: int) -> float:
    """The kernel width beta of the authors.

    >>> round(smoothing(n=100, d=2), 4)
    1.5811
    """
    return float(((2 * d + 1) * n / 4) ** (1 / (d + 4)) / np.sqrt(2))


def null_moments(n: int, d: int) -> tuple[float, float]:
    """Asymptotic mean and variance of the statistic for normal samples."""
    square = smoothing(n, d) ** 2
    a = 1 + 2 * square
    w = (1 + square) * (1 + 3 * square)
    pairs = d * (d + 2)
    mean = 1 - a ** (-d / 2) * (1 + d * square / a + pairs * square**2 / (2 * a**2))
    variance = 2 * (1 + 4 * square) ** (-d / 2)
    variance += 2 * a**-d * (1 + 2 * d * square**2 / a**2 + 3 * pairs * square**4 / (4 * a**4))
    variance -= 4 * w ** (-d / 2) * (1 + 3 * d * square**2 / (2 * w) + pairs * square**4 / (2 * w**2))
    return float(mean), float(variance)


def henze_zirkler(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Statistics (R,) and p-values (R,) of R sets of n samples in d dimensions (R, n, d).

    Samples with a singular covariance get the statistic 4 n, as defined by the authors, and are rejected.

    >>> draws = np.random.default_rng(0)
    >>> normal, skewed = draws.normal(size=(1, 200, 2)), draws.exponential(size=(1, 200, 2))
    >>> bool(henze_zirkler(normal)[1][0] > 0.05), bool(henze_zirkler(skewed)[1][0] < 1e-6)
    (True, True)
    """
    from scipy.special import ndtr

    _, n, d = samples.shape
    white, regular = whitened(samples)
    at_once = max(1, PAIRS_AT_ONCE // n**2)
    blocks = [_statistics(white[start : start + at_once]) for start in range(0, len(white), at_once)]
    statistics = np.where(regular, np.concatenate(blocks), 4.0 * n)
    mean, variance = null_moments(n, d)
    log_variance = np.log1p(variance / mean**2)
    log_mean = np.log(mean) - log_variance / 2
    return statistics, ndtr((log_mean - np.log(statistics)) / np.sqrt(log_variance))


def _statistics(white: np.ndarray) -> np.ndarray:
    _, n, d = white.shape
    square = smoothing(n, d) ** 2
    lengths = np.sum(white**2, axis=2)
    distances = np.matmul(white, white.transpose(0, 2, 1))
    distances *= square
    distances -= 0.5 * square * lengths[:, :, None]
    distances -= 0.5 * square * lengths[:, None, :]
    pairs = np.exp(distances, out=distances).sum(axis=(1, 2)) / n
    singles = np.exp(-0.5 * square / (1 + square) * lengths).sum(axis=1)
    return np.asarray(pairs - 2 * (1 + square) ** (-d / 2) * singles + n * (1 + 2 * square) ** (-d / 2))


# The Shapiro-Wilk test, generalised to several dimensions by J. A. Villasenor Alva and E. Gonzalez Estrada, *A
# generalization of Shapiro-Wilk's test for multivariate normality*, 2009: the mean of W over whitened coordinates. It
# has a closed form for its p-value and, unlike Royston's H, needs no estimate of correlations between the tests.


FEWEST = 12
"""Minimum number of samples for Royston's distribution of W."""

LAST_WEIGHT = (0.0, 0.221157, -0.147981, -2.071190, 4.434685, -2.706056)
BUT_LAST_WEIGHT = (0.0, 0.042981, -0.293762, -1.752461, 5.682633, -3.582633)
"""Corrections to the two largest weights, in powers of n^(-1/2): Royston, 1995 (AS R94)."""

LOG_MEAN = (-1.5861, -0.31082, -0.083751, 0.0038915)
LOG_DEVIATION = (-0.4803, -0.082676, 0.0030302)
"""Mean of log(1 - W), and logarithm of its standard deviation, in powers of log n: the same, for 12 <= n <= 5000."""


def shapiro_w(samples: np.ndarray) -> np.ndarray:
    """W of every sample along the last axis (..., n), with n of at least 6; NaN if all values are equal.

    >>> shapiro_w(np.arange(20.0)).round(4).tolist()
    0.9604
    """
    ordered = np.sort(samples, axis=-1)
    centred = ordered - ordered.mean(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.sum(centred * _weights(samples.shape[-1]), axis=-1) ** 2 / np.sum(centred**2, axis=-1))


def generalised_shapiro_wilk(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """W* (R,) and p-values (R,) of R sets of n samples in d dimensions (R, n, d), with n of at least 12.

    Samples with a singular covariance get W* = 0 and are rejected.

    >>> draws = np.random.default_rng(0)
    >>> normal, skewed = draws.normal(size=(1, 200, 2)), draws.exponential(size=(1, 200, 2))
    >>> bool(generalised_shapiro_wilk(normal)[1][0] > 0.05), bool(generalised_shapiro_wilk(skewed)[1][0] < 1e-6)
    (True, True)
    """
    from scipy.special import ndtr

    _, n, d = samples.shape
    white, regular = whitened(samples)
    averages = np.where(regular, shapiro_w(white.transpose(0, 2, 1)).mean(axis=1), 0.0)
    mean, variance = _log_one_minus_w(n)
    # The mean of d independent log-normals is approximated by the log-normal of equal mean and variance.
    shared = np.log1p(np.expm1(variance) / d)
    return averages, ndtr((mean + (variance - shared) / 2 - np.log1p(-averages)) / np.sqrt(shared))


def _weights(n: int) -> np.ndarray:
    """Royston's weights of the ordered samples."""
    from scipy.special import ndtri

    expected = ndtri((np.arange(1, n + 1) - 0.375) / (n + 0.25))
    length = float(np.sum(expected**2))
    last = expected[-1] / np.sqrt(length) + _power_series(LAST_WEIGHT, n**-0.5)
    but_last = expected[-2] / np.sqrt(length) + _power_series(BUT_LAST_WEIGHT, n**-0.5)
    left = (length - 2 * expected[-1] ** 2 - 2 * expected[-2] ** 2) / (1 - 2 * last**2 - 2 * but_last**2)
    weights = np.asarray(expected / np.sqrt(left))
    weights[[-1, -2, 1, 0]] = last, but_last, -but_last, -last
    return weights


def _log_one_minus_w(n: int) -> tuple[float, float]:
    """Mean and variance of log(1 - W) of n normal samples."""
    log_n = float(np.log(n))
    return _power_series(LOG_MEAN, log_n), float(np.exp(2 * _power_series(LOG_DEVIATION, log_n)))


def _power_series(coefficients: Sequence[float], x: float) -> float:
    return float(sum(c * x**power for power, c in enumerate(coefficients)))


KINDS = ("coordinates", "directions", "normal")


def projected(samples: np.ndarray, kind: str, d: int, repeats: int, rng: np.random.Generator) -> np.ndarray:
    """`repeats` random projections (R, n, d) of samples (n, D).

    `kind` is "coordinates": d of the D coordinates without replacement, as in the paper; "directions": d random
    orthonormal directions; or "normal": normal samples of the same size, which show what a test returns if its
    hypothesis holds.

    >>> rng = np.random.default_rng(0)
    >>> projected(np.eye(5), "coordinates", 2, repeats=3, rng=rng).sum(axis=(1, 2))
    array([2., 2., 2.])
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}; got {kind!r}.")
    width = samples.shape[1]
    if kind == "coordinates":
        chosen = np.argsort(rng.random((repeats, width)), axis=1)[:, :d]
        return samples[:, chosen].transpose(1, 0, 2)
    if kind == "normal":
        return rng.standard_normal((repeats, len(samples), d))
    bases, _ = np.linalg.qr(rng.standard_normal((repeats, width, d)))
    return np.matmul(samples, bases)


TESTS = {"Henze-Zirkler": henze_zirkler, "Shapiro-Wilk": generalised_shapiro_wilk}

DIMENSIONS = (2, 4, 6, 8, 10)
REPEATS = 100
LEVEL = 0.05
"""Table 10: dimensions, projections per class, and the level for p-values."""

MOST_SAMPLES = 500
"""Maximum number of tested samples per class; the cost is quadratic. ImageNet has 50, the bundled packs 150."""


def normality_of_classes(
    features: FeatureSet,
    *,
    prompt: str,
    kind: str,
    dimensions: Sequence[int] = DIMENSIONS,
    repeats: int = REPEATS,
    level: float = LEVEL,
    most_samples: int = MOST_SAMPLES,
    seed: int = 0,
) -> dict[str, Any]:
    """For each test and dimension: the fraction of classes with a mean p-value above `level`, the mean p-value, and the
    fraction of single tests that reject at `level`. Classes with too few samples are skipped and counted.

    `zero_shot_accuracy` is for the samples tested in the lowest dimension.
    """
    rows = []
    tested: list[np.ndarray] = []
    able = [d for d in dimensions if d <= features.dimension]
    for d in able:
        p_values: dict[str, list[np.ndarray]] = {test: [] for test in TESTS}
        for k, chosen in _tested_rows(features, most_samples, seed):
            if len(chosen) <= d + 1 or len(chosen) < FEWEST:
                continue
            samples = np.asarray(features.features[chosen], dtype=np.float64)
            tested += [chosen] if d == min(able) else []
            views = projected(samples, kind, d, repeats, np.random.default_rng([seed, KINDS.index(kind), d, k]))
            for test, run in TESTS.items():
                p_values[test].append(run(views)[1])
        rows += [_test_summary(test, d, features.n_classes, np.array(found), level) for test, found in p_values.items()]
    return {
        "view": kind,
        "repeats": repeats,
        "level": level,
        "n_classes": features.n_classes,
        "zero_shot_accuracy": features.subset(np.concatenate(tested)).zero_shot_accuracy(prompt) if tested else None,
        "tests": rows,
    }


def _tested_rows(features: FeatureSet, most: int, seed: int) -> Iterator[tuple[int, np.ndarray]]:
    """Each class, and the rows of it that are tested."""
    if features.labels is None:
        raise ValueError("classes can be tested only with labels; this set has none.")
    for k in range(features.n_classes):
        rows = np.flatnonzero(features.labels == k)
        if len(rows) > most:
            rows = np.sort(np.random.default_rng([seed, k]).choice(rows, most, replace=False))
        yield k, rows


def _test_summary(test: str, d: int, n_classes: int, p_values: np.ndarray, level: float) -> dict[str, Any]:
    """Summary of p-values (classes, repeats)."""
    tested = len(p_values)
    averages = p_values.mean(axis=1) if tested else None
    return {
        "test": test,
        "dimension": d,
        "classes": tested,
        "left_out": n_classes - tested,
        "above": None if averages is None else float(np.mean(averages > level)),
        "mean_p": None if averages is None else float(averages.mean()),
        "rejected": float(np.mean(p_values < level)) if tested else None,
    }


PAPERS_VIEW = "coordinates"
"""The projection used in the paper."""

PAPER_NAMES = {"Henze-Zirkler": "Henze–Zirkler", "Shapiro-Wilk": "Shapiro-Wilk"}
"""Names of the tests in the paper."""

Records = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class PooledSets:
    """Sets whose classes are pooled: the paper's ImageNet by itself, or all others."""

    name: str
    """Name of the sets; empty if there is only one group."""
    printed: bool
    """Whether the paper's numbers are for exactly these sets."""
    records: Mapping[str, Records]
    """Records by kind of projection."""


def rows_of(kind: str, part: PooledSets) -> list[Row]:
    """One row per test and dimension."""
    records, normal = part.records[kind], part.records["normal"]
    rows = []
    for test in TESTS:
        for d in DIMENSIONS:
            printed = _printed(test, d) if part.printed and kind == PAPERS_VIEW else None
            above = None if printed is None else printed.number("Frequency of p>0.05 (%)")
            average = None if printed is None else printed.number("Average p-value")
            cells: tuple[Cell, ...] = (
                f"d = {d}",
                pooled(records, test, d, "above", None if above is None else above / 100),
                pooled(records, test, d, "mean_p", average),
                pooled(normal, test, d, "mean_p"),
                pooled(records, test, d, "rejected"),
                pooled(normal, test, d, "rejected"),
            )
            rows.append(Row(cells, f"{test}, {part.name}" if part.name else test))
    return rows


def pooled(records: Records, test: str, d: int, field: str, paper: float | None = None) -> Value | None:
    """The mean over all classes of all sets, with the minimum and maximum over sets; None if no class was tested."""
    rows = [row for r in records for row in r["tests"] if row["test"] == test and row["dimension"] == d]
    rows = [row for row in rows if row["classes"]]
    if not rows:
        return None
    values = [float(row[field]) for row in rows]
    mean = float(np.average(values, weights=[row["classes"] for row in rows]))
    one = len(values) == 1
    return Value(mean, None if one else min(values), None if one else max(values), paper)


def counts_of(records: Records) -> tuple[int, int]:
    """Numbers of tested and skipped classes in the highest dimension."""
    test = next(iter(TESTS))
    rows = [row for r in records for row in r["tests"] if row["test"] == test and row["dimension"] == DIMENSIONS[-1]]
    return sum(row["classes"] for row in rows), sum(row["left_out"] for row in rows)


def _printed(test: str, d: int) -> PaperRow | None:
    return paper_table("normality_tests").row(method=PAPER_NAMES[test], label=f"Low-dim {d}")


VIEWS = {
    "coordinates": "randomly chosen feature dimensions, as in the paper",
    "directions": "random orthonormal directions",
}

FAR_MORE = 2
"""Ratio of rejections to those of normal samples that gets a remark."""


def _job(member: Member, kind: str) -> Analysis:
    return analysis(member, normality_of_classes, {"kind": kind, "seed": 0})


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    return [_job(member, kind) for member in suite.members for kind in (*VIEWS, "normal")]


def _find(suite: Suite, options: Options, results: JobResults) -> Sequence[Finding | None]:
    parts = _parts(suite, results)
    if not parts:
        return [Remark("No set could be tested: there is none, or runs failed on each.", kind="warning")]
    tables = [_table(kind, parts) for kind in VIEWS]
    papers = None if any(part.printed for part in parts) else reference("normality_tests")
    others = (_by_set(suite, results), *(_curves(part) for part in parts), NO_EVIDENCE, _rejected(parts))
    remark = data_remark(suite, needs=(PAPERS_SET,), prompts=False)
    return [*tables, papers, *others, remark]


def _parts(suite: Suite, results: JobResults) -> list[PooledSets]:
    """The paper's ImageNet, and the pool of all other sets; without sets whose runs failed."""
    kinds = (*VIEWS, "normal")
    done = [m for m in suite.members if all(results.record(_job(m, kind)) is not None for kind in kinds)]
    papers = [member for member in done if is_paper_imagenet(member)][:1]
    others = [member for member in done if member not in papers]
    parts = []
    for members in (papers, others):
        if members:
            records = {kind: results.records([_job(m, kind) for m in members]) for kind in kinds}
            several = f"{len(members)} {'other ' if papers else ''}sets pooled"
            parts.append(PooledSets(members[0].name if len(members) == 1 else several, members == papers, records))
    # A single set needs no name.
    return parts if len(done) > 1 else [replace(part, name="") for part in parts]


def _table(kind: str, parts: Sequence[PooledSets]) -> Table:
    rows = [row for part in parts for row in rows_of(kind, part)]
    counts = [counts_of(part.records[kind]) for part in parts]
    tested, n_left_out = (sum(numbers) for numbers in zip(*counts, strict=True))
    return Table(
        kind,
        f"Normality of the classes in {VIEWS[kind]}",
        (
            Column("projected to", "text"),
            Column(f"classes with mean p > {LEVEL:g}"),
            Column("mean p", "number"),
            Column("mean p, normal samples", "number", "for reference"),
            Column(f"rejected at {LEVEL:.0%}", "percent", "of single tests"),
            Column("rejected, normal samples", "percent", "for reference"),
        ),
        tuple(rows),
        (
            f"{REPEATS} projections per class and dimension, {tested} classes tested at d = {DIMENSIONS[-1]}, "
            f"{n_left_out} with too few samples left out. In pooled sets all classes are weighted equally, and ranges "
            "are over the sets.",
            "Henze-Zirkler by the log-normal approximation of its null distribution; Shapiro-Wilk as generalised by "
            "Villasenor Alva and Gonzalez Estrada, the mean of W over whitened coordinates.",
        ),
    )


def _by_set(suite: Suite, results: JobResults) -> Table:
    """Each set in the highest dimension."""
    d = DIMENSIONS[-1]
    rows = []
    for member in suite.members:
        cells: list[Cell] = [member.name]
        for kind in VIEWS:
            records = results.records([_job(member, kind)])
            cells += [pooled(records, test, d, field) for test in TESTS for field in ("above", "rejected")]
        rows.append(Row(tuple(cells)))
    titles = [
        Column(f"{test}, {kind}: {what}")
        for kind in VIEWS
        for test in TESTS
        for what in (f"classes with mean p > {LEVEL:g}", "rejected")
    ]
    return Table("by-set", f"Each set, in {d} dimensions", (Column("set", "text"), *titles), tuple(rows))


def _curves(part: PooledSets) -> Lines:
    series = []
    for test in TESTS:
        for kind, name in (("coordinates", "coordinates"), ("directions", "directions"), ("normal", "normal samples")):
            pairs = [(float(d), pooled(part.records[kind], test, d, "rejected")) for d in DIMENSIONS]
            known = [(d, cell.value) for d, cell in pairs if cell is not None]
            series.append(Series(f"{test}, {name}", tuple(d for d, _ in known), tuple(share for _, share in known)))
    return Lines(
        "rejected-imagenet" if part.printed and part.name else "rejected",
        f"How often normality is rejected{f': {part.name}' if part.name else ''}",
        "dimensions projected to",
        f"share of tests with p < {LEVEL:g}",
        tuple(series),
        "The lines of normal samples show how often the tests reject as many truly normal samples. What is above them "
        "comes from the features.",
        steps=True,
    )


NO_EVIDENCE = Remark(
    f"A mean p-value above {LEVEL:g} is not evidence of normality. For normal samples p is uniform from 0 to 1, so its "
    "mean is near 0.5 and few single tests reject; a mean of 0.2 would come with far more rejections than that. A test "
    "that does not reject may also simply have too few samples, and it sees only a few of many dimensions: normal "
    "projections do not make a normal class. Comparing rejection rates with those of normal samples of the same size "
    "shows more. (Rows of unit length are on a sphere, so they cannot be exactly normal.)"
)


def _rejected(parts: Sequence[PooledSets]) -> Remark | None:
    """Where normality is rejected far more often than for normal samples."""
    d = DIMENSIONS[-1]
    worse = []
    for part in parts:
        for test in TESTS:
            yardstick = pooled(part.records["normal"], test, d, "rejected")
            for kind in VIEWS:
                ours = pooled(part.records[kind], test, d, "rejected")
                if ours is not None and yardstick is not None and ours.value > FAR_MORE * yardstick.value:
                    of = f"{part.name}, " if part.name else ""
                    worse.append(f"{of}{test}, {kind}: {ours.value:.1%} against {yardstick.value:.1%}")
    if not worse:
        return None
    return Remark(
        f"In {d} dimensions normality is rejected more than {FAR_MORE} times as often as for normal samples "
        f"({'; '.join(worse)}). So normality is rejected; these tests do not show how large the departure is. The "
        "paper reads its mean p-values as a sign that classes are approximately Gaussian.",
        kind="warning",
    )


EXPERIMENT = Experiment(
    name="normality",
    title="Are classes Gaussian?",
    question="Do tests of normality reject the Gaussian classes that ADAPT assumes, in random views of few dimensions?",
    plan=_plan,
    find=_find,
    where="Table 10",
    tables=("normality_tests",),
)

"""The interval of a gain, compared with plain resampling, and its coverage."""

import numpy as np
import pytest

from zeroshift.evaluate import gain_interval
from zeroshift.evaluate.metrics import PairedGain

COUNTS = [120, 40, 22, 18]


def samples(counts) -> tuple[np.ndarray, np.ndarray]:
    """Which of the two methods is right on each sample, with these counts."""
    kinds = np.repeat(np.arange(4), counts)
    return np.isin(kinds, (0, 1)), np.isin(kinds, (0, 2))


def test_a_draw_of_counts_is_a_draw_of_samples():
    first, second = samples(COUNTS)
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 200, size=(20_000, 200))
    gains = 100 * (first[rows].mean(axis=1) - second[rows].mean(axis=1))
    metric = PairedGain()
    metric.update(first, second)
    assert list(metric.counts) == COUNTS
    for level in (0.5, 0.8, 0.95):
        plain = np.quantile(gains, [(1 - level) / 2, (1 + level) / 2])
        # Gains go in steps of half a point; either end may be a step off with this many draws.
        np.testing.assert_allclose(metric.interval(level, draws=20_000), plain, atol=0.5)
    # The spread as the formula for paired proportions has it.
    wide = gain_interval(COUNTS, level=0.6827, draws=50_000)
    share = (np.array(COUNTS) / 200)[1:3]
    spread = 100 * np.sqrt((share.sum() - (share[0] - share[1]) ** 2) / 200)
    assert (wide[1] - wide[0]) / 2 == pytest.approx(spread, rel=0.06)


def test_pairing_makes_it_narrower_than_two_samples_would_be():
    low, high = gain_interval([150, 12, 4, 34])
    a, b = 162 / 200, 154 / 200
    unpaired = 100 * 1.96 * np.sqrt((a * (1 - a) + b * (1 - b)) / 200)
    assert (high - low) / 2 < 0.7 * unpaired


def test_coverage_of_the_true_gain_is_close_to_the_level():
    shares = np.array([0.6, 0.2, 0.1, 0.1])
    drawn = np.random.default_rng(1).multinomial(150, shares, size=400)
    inside = [low <= 10.0 <= high for low, high in (gain_interval(c, draws=400, seed=i) for i, c in enumerate(drawn))]
    assert 0.91 < np.mean(inside) < 0.98  # 0.95, give or take three standard errors and a percentile interval's flaws


def test_same_seed_same_interval_and_more_level_more_width():
    assert gain_interval(COUNTS, seed=4) == gain_interval(COUNTS, seed=4)
    narrow, wide = gain_interval(COUNTS, level=0.5), gain_interval(COUNTS, level=0.99)
    assert wide[0] < narrow[0] < 9.0 < narrow[1] < wide[1]


def test_exchanging_the_methods_negates_the_interval():
    low, high = gain_interval(COUNTS, draws=20_000)
    turned = gain_interval([120, 22, 40, 18], draws=20_000)
    np.testing.assert_allclose(turned, (-high, -low), atol=0.5)


def test_several_orders_do_not_count_as_more_samples():
    """Three orders of the same 200 samples: as wide as for one order, not as for 600 samples."""
    added = [3 * count for count in COUNTS]
    assert gain_interval(added, samples=200) == gain_interval(COUNTS)
    as_if = gain_interval(added)
    low, high = gain_interval(COUNTS)
    assert as_if[1] - as_if[0] < 0.7 * (high - low)


def test_more_samples_than_were_counted_are_rejected():
    assert gain_interval(COUNTS, samples=200) == gain_interval(COUNTS)
    with pytest.raises(ValueError, match=r"samples must be at most 200, as many as paired counts; got 201. Fix"):
        gain_interval(COUNTS, samples=201)


@pytest.mark.parametrize("counts", [[1, 2, 3], [0, 0, 0, 0], [1, -1, 0, 0], [0.5, 0.5, 0, 0]])
def test_invalid_counts_are_rejected(counts):
    with pytest.raises(ValueError, match="paired must be four counts"):
        gain_interval(counts)


@pytest.mark.parametrize("bad", [{"level": 0.0}, {"level": 1.5}, {"draws": 0}, {"samples": 0}])
def test_bad_settings(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        gain_interval(COUNTS, **bad)

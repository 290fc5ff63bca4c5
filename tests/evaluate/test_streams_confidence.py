"""Streams by confidence: few confident rows, and wrong early pseudo-labels."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeroshift.evaluate.streams import early_noise, few_confident
from zeroshift.evaluate.streams.long_tail import confident_positions
from zeroshift.zero_shot import confidence, log_softmax, pseudo_class

SHARES = st.just(0.0) | st.floats(1e-15, 1)


@st.composite
def streams(draw):
    """Log-posteriors of a stream of up to 80 samples of 2 to 6 classes, without ties."""
    n, n_classes, seed = draw(st.integers(1, 80)), draw(st.integers(2, 6)), draw(st.integers(0, 10_000))
    return log_softmax(3 * np.random.default_rng(seed).normal(size=(n, n_classes)))


def read(log_y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return confidence(log_y), pseudo_class(log_y)


@given(log_y=streams(), seed=st.integers(0, 50), per_class=st.integers(0, 4), share=SHARES)
def test_a_limited_number_of_confident_rows_per_class_and_all_others_stay(log_y, seed, per_class, share):
    confidences, classes = read(log_y)
    stream = few_confident(confidences, classes, seed, per_class=per_class, share=share)
    assert len(set(stream.rows)) == len(stream)
    kept = np.isin(np.arange(len(log_y)), stream.rows)
    for k in np.unique(classes):
        rows = np.flatnonzero(classes == k)
        rows = rows[np.argsort(-confidences[rows])]
        n_confident = round(share * len(rows))
        assert kept[rows[:n_confident]].sum() == min(per_class, n_confident)
        assert kept[rows[n_confident:]].all()


def test_the_confident_rows_that_stay_are_random():
    confidences, classes = -np.linspace(0, 1, 40), np.zeros(40, int)
    kept = {int(row) for seed in range(60) for row in few_confident(confidences, classes, seed).rows if row < 20}
    assert kept == set(range(20))
    assert len(few_confident(confidences, classes, 0)) == 22


@given(
    log_y=streams(),
    seed=st.integers(0, 50),
    phase=SHARES,
    share=SHARES,
    confident=SHARES,
)
def test_noise_changes_only_the_stated_share_of_early_confident_rows(log_y, seed, phase, share, confident):
    confidences, classes = read(log_y)
    n, n_classes = log_y.shape
    chosen = {"phase": phase, "share": share, "confident": confident}
    noise = early_noise(confidences, classes, n_classes, seed, **chosen)
    early = round(phase * n)
    sure = confident_positions(confidences, confident)
    assert sure.sum() == round(confident * n)
    assert len(noise) == round(share * sure[:early].sum())
    assert len(set(noise.positions)) == len(noise)
    assert (noise.positions < early).all()
    assert sure[noise.positions].all()
    assert (noise.wrong_classes != classes[noise.positions]).all()
    assert ((noise.wrong_classes >= 0) & (noise.wrong_classes < n_classes)).all()
    np.testing.assert_array_equal(
        noise.positions, early_noise(confidences, classes, n_classes, seed, **chosen).positions
    )


@given(log_y=streams(), seed=st.integers(0, 50))
def test_a_noisy_row_is_equally_confident_of_a_wrong_class(log_y, seed):
    confidences, classes = read(log_y)
    noise = early_noise(confidences, classes, log_y.shape[1], seed, phase=1, share=0.5, confident=1)
    before = log_y.copy()
    noisy = noise.apply(log_y)
    np.testing.assert_array_equal(log_y, before)
    np.testing.assert_allclose(confidence(noisy), confidences, rtol=1e-12, atol=1e-15)
    expected = classes.copy()
    expected[noise.positions] = noise.wrong_classes
    np.testing.assert_array_equal(pseudo_class(noisy), expected)
    others = np.setdiff1d(np.arange(len(log_y)), noise.positions)
    np.testing.assert_array_equal(noisy[others], log_y[others])


def test_the_confident_are_the_most_confident():
    confidences = -np.random.default_rng(0).random(50)
    sure = confident_positions(confidences, 0.4)
    assert confidences[sure].min() > confidences[~sure].max()


def test_every_other_class_is_as_likely():
    noise = early_noise(np.zeros(8000), np.full(8000, 2), 4, seed=0, phase=1, share=1, confident=1)
    counts = np.bincount(noise.wrong_classes, minlength=4)
    assert counts[2] == 0
    np.testing.assert_allclose(counts[[0, 1, 3]] / 8000, 1 / 3, atol=0.02)


@given(log_y=streams(), seed=st.integers(0, 50), share=SHARES)
def test_with_labels_no_noisy_row_becomes_right(log_y, seed, share):
    confidences, classes = read(log_y)
    n, n_classes = log_y.shape
    if n_classes == 2:
        return
    labels = np.random.default_rng(seed).integers(0, n_classes, size=n)
    chosen = {"phase": 0.8, "share": share, "confident": 0.9}
    noise = early_noise(confidences, classes, n_classes, seed, labels=labels, **chosen)
    assert len(noise) == round(share * confident_positions(confidences, 0.9)[: round(0.8 * n)].sum())
    assert (noise.wrong_classes != classes[noise.positions]).all()
    assert (noise.wrong_classes != labels[noise.positions]).all()
    assert ((noise.wrong_classes >= 0) & (noise.wrong_classes < n_classes)).all()


@pytest.mark.parametrize(("said", "true"), [(2, 0), (0, 2), (3, 4), (1, 1)])
def test_every_wrong_class_is_as_likely(said, true):
    whole = {"phase": 1, "share": 1, "confident": 1}
    labels = np.full(8000, true)
    noise = early_noise(np.zeros(8000), np.full(8000, said), 5, seed=0, labels=labels, **whole)
    counts = np.bincount(noise.wrong_classes, minlength=5)
    left = sorted(set(range(5)) - {said, true})
    assert counts.sum() == counts[left].sum()
    np.testing.assert_allclose(counts[left] / 8000, 1 / len(left), atol=0.02)


@pytest.mark.parametrize(
    ("labels", "n_classes", "words"),
    [
        ([0, 1, 1], 2, r"n_classes must be at least 3 where labels are given; got 2.*Fix: labels=None"),
        ([0, 1], 3, r"labels must be a vector of class indices, 3 of them.*got 2. Fix: .*labels\[stream.rows\]"),
        ([0, 1, 3], 3, "labels must hold class indices, 0 to 2; got 3 in row 2"),
        ([0.0, 1.0, 2.0], 3, "labels must hold class indices, 0 to 2; got float64"),
    ],
    ids=["two classes", "too few", "no class", "no indices"],
)
def test_labels_for_the_noise_are_checked(labels, n_classes, words):
    with pytest.raises((TypeError, ValueError), match=words):
        early_noise(np.zeros(3), np.zeros(3, int), n_classes, 0, labels=np.array(labels))


def test_the_papers_noise_is_a_share_of_a_share():
    noise = early_noise(-np.random.default_rng(0).random(10_000), np.zeros(10_000, int), 10, seed=0)
    assert len(noise) == pytest.approx(0.3 * 0.3 * 0.9 * 10_000, rel=0.03)
    other = early_noise(-np.random.default_rng(0).random(10_000), np.zeros(10_000, int), 10, seed=1)
    assert set(noise.positions) != set(other.positions)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"n_classes": 1}, "n_classes must be an integer of at least 2; got 1"),
        ({"phase": 1.2}, "phase must be a number from 0 to 1; got 1.2"),
        ({"share": -0.1}, "share must be a number from 0 to 1"),
        ({"confident": 2}, "confident must be a number from 0 to 1; got 2"),
    ],
    ids=["n_classes", "phase", "share", "confident"],
)
def test_parameters_of_the_noise_are_checked(changed, words):
    with pytest.raises(ValueError, match=words):
        early_noise(np.zeros(3), np.zeros(3, int), **{"n_classes": 3, "seed": 0, **changed})


@pytest.mark.parametrize("changed", [{"per_class": -1}, {"share": 1.5}], ids=["per_class", "share"])
def test_parameters_of_few_confident_are_checked(changed):
    (name,) = changed
    with pytest.raises(ValueError, match=f"{name} must be"):
        few_confident(np.zeros(3), np.zeros(3, int), 0, **changed)

"""The chain of sticky classes against its definition: every path of classes enumerated, with its probability."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zeroshift.sticky import FICTITIOUS, MEMORY, PENALTY, STAY_VALUES, TRUST, LateAnswers, StickyClasses, smooth

N, K = 5, 3


def posteriors(n, classes, seed=0, sharpness=1.0):
    drawn = np.random.default_rng(seed).dirichlet(np.full(classes, 1.0 / sharpness), size=n)
    return np.maximum(drawn, 1e-300)


def path_posteriors(evidence, stay, first=None, base=None):
    """(n, K): the probability of each class at each sample given the whole evidence, from all K^n paths."""
    n, classes = evidence.shape
    first = np.full(classes, 1.0 / classes) if first is None else first
    base = np.full((n, classes), 1.0 / classes) if base is None else base
    total = np.zeros((n, classes))
    for path in itertools.product(range(classes), repeat=n):
        probability = (stay[0] * first[path[0]] + (1 - stay[0]) * base[0, path[0]]) * evidence[0, path[0]]
        for t in range(1, n):
            same = path[t] == path[t - 1]
            probability *= (stay[t] * same + (1 - stay[t]) * base[t, path[t]]) * evidence[t, path[t]]
        for t in range(n):
            total[t, path[t]] += probability
    return total / total.sum(axis=1, keepdims=True)


def estimate(y):
    """What the filter uses before each sample and at the end, by the definition, with all paths for the filter."""
    n, classes = y.shape
    sums, counts = np.full(classes, FICTITIOUS), np.full(classes, FICTITIOUS)
    likelihoods, best, evidence, base = [np.ones(len(STAY_VALUES))], [], [], []
    for t in range(n):
        evidence.append(y[t] / sums / (y[t] / sums).sum())
        base.append(counts / counts.sum())
        new = base[t] @ evidence[t]
        now = likelihoods[-1].copy()
        if t:
            before = path_posteriors(np.array(evidence[:-1]), best, base=np.array(base[:-1]))[-1]
            for index, a in enumerate(STAY_VALUES):
                now[index] = now[index] ** (1 - 1 / MEMORY) * (a * before + (1 - a) * base[t]) @ evidence[t] / new
        likelihoods.append(now)
        best.append(max(STAY_VALUES[1:], key=lambda a, now=now: now[STAY_VALUES.index(a)]))
        sums, counts = sums + y[t], counts + base[t] * evidence[t] / new
    weights = np.array(likelihoods) * np.where(np.array(STAY_VALUES) > 0, np.exp(-PENALTY), 1.0)
    used = TRUST * (weights @ np.array(STAY_VALUES)) / weights.sum(axis=1)
    return np.array([0.0, *used[1:-1]]), used[-1], likelihoods[-1]


def run(y, evidence, chain=None, **options):
    chain = StickyClasses(y.shape[1], **options) if chain is None else chain
    stay, chain = chain.observe(y)
    balanced, chain = chain.balance(np.log(evidence), stay)
    answers, chain = chain.filter(balanced, stay)
    return answers, stay, chain


@pytest.mark.parametrize("seed", range(5))
def test_estimate_of_staying_is_the_definition(seed):
    y = posteriors(N, K, seed, sharpness=4.0)
    used, last, likelihoods = estimate(y)
    stay, chain = StickyClasses(K).observe(y)
    np.testing.assert_allclose(stay, used, rtol=1e-10)
    np.testing.assert_allclose(chain.log_likelihoods, np.log(likelihoods), rtol=1e-10, atol=1e-12)
    assert chain.stay == pytest.approx(last, rel=1e-10)


@pytest.mark.parametrize("seed", range(5))
def test_filter_gives_each_sample_the_sum_over_all_paths_up_to_it(seed):
    evidence = posteriors(N, K, seed)
    stay = np.array([0.0, 0.9, 0.2, 0.99, 0.5])
    answers, _ = StickyClasses(K).filter(np.log(evidence), stay)
    expected = [path_posteriors(evidence[: t + 1], stay)[-1] for t in range(N)]
    np.testing.assert_allclose(np.exp(answers), expected, rtol=1e-12)


def test_filter_continues_from_the_last_sample():
    evidence, stay = posteriors(N, K), np.full(N, 0.8)
    chain = StickyClasses(K)
    chain.answer = np.array([0.7, 0.2, 0.1])
    answers, _ = chain.filter(np.log(evidence), stay)
    np.testing.assert_allclose(np.exp(answers[-1]), path_posteriors(evidence, stay, chain.answer)[-1], rtol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_smooth_gives_each_sample_the_sum_over_all_paths(seed):
    evidence, stay = posteriors(N, K, seed), np.array([0.0, 0.9, 0.2, 0.99, 0.5])
    filtered, _ = StickyClasses(K).filter(np.log(evidence), stay)
    smoothed = smooth(filtered, np.log(evidence), stay)
    np.testing.assert_allclose(np.exp(smoothed), path_posteriors(evidence, stay), rtol=1e-12)


@pytest.mark.parametrize("lag", range(N + 2))
@pytest.mark.parametrize("cuts", [(N,), (1, 1, 1, 1, 1), (2, 3), (0, 4, 0, 1)])
def test_late_answers_are_sums_over_paths_up_to_lag_samples_later(lag, cuts):
    evidence, stay = posteriors(N, K, 7), np.array([0.0, 0.9, 0.2, 0.99, 0.5])
    filtered, _ = StickyClasses(K).filter(np.log(evidence), stay)
    late, answers, start = LateAnswers(K, lag), [], 0
    for size in cuts:
        rows = slice(start, start + size)
        final, late = late.add(filtered[rows], np.log(evidence[rows]), stay[rows])
        answers.append(final)
        start += size
        assert len(np.concatenate(answers)) == max(0, start - lag)
        assert late.due == min(start, lag)
    rest, late = late.finish()
    assert late.due == 0
    expected = [path_posteriors(evidence[: t + lag + 1], stay)[t] for t in range(N)]
    np.testing.assert_allclose(np.exp(np.concatenate([*answers, rest])), expected, rtol=1e-12)


streams = st.tuples(st.integers(1, 40), st.integers(1, 6), st.integers(0, 10**6), st.sampled_from([0.5, 3.0, 50.0]))


@given(streams, st.lists(st.integers(0, 40), max_size=4))
def test_calls_do_not_show(stream, cuts):
    y, evidence = posteriors(*stream), posteriors(stream[0], stream[1], stream[2] + 1, stream[3])
    whole, stay, chain = run(y, evidence)
    pieces, stays, other = [], [], StickyClasses(stream[1])
    for a, b in itertools.pairwise([0, *sorted(min(cut, len(y)) for cut in cuts), len(y)]):
        answers, some, other = run(y[a:b], evidence[a:b], other)
        pieces.append(answers)
        stays.append(some)
    np.testing.assert_allclose(np.concatenate(pieces), whole, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(np.concatenate(stays), stay, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(other.log_likelihoods, chain.log_likelihoods, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(other.answer, chain.answer, rtol=1e-12, atol=1e-300)


@given(streams, st.floats(0, 1e6))
def test_answers_are_probabilities_whatever_the_evidence(stream, size):
    n, classes, seed, _ = stream
    y = posteriors(*stream)
    y = np.where(y < 0.05, 0.0, y)  # exact zeros
    y = np.where(y.sum(axis=1, keepdims=True) > 0, y, 1.0)
    y /= y.sum(axis=1, keepdims=True)
    scores = size * np.random.default_rng(seed).normal(size=(n, classes))
    stay, chain = StickyClasses(classes).observe(y)
    for evidence in (scores, np.log(np.where(y > 0, y, 1e-320)), np.where(scores < 0, -np.inf, scores)):
        answers, after = chain.filter(evidence, stay)
        late, _ = LateAnswers(classes, 2).add(answers, evidence, stay)
        for found in (answers, late, smooth(answers, evidence, stay)):
            assert not np.isnan(found).any()
            np.testing.assert_allclose(np.exp(found).sum(axis=1), 1.0, rtol=1e-9)
        assert after.answer.sum() == pytest.approx(1.0)
    assert 0.0 <= chain.stay < 1.0
    assert ((stay >= 0) & (stay < 1)).all()


@given(streams)
def test_without_staying_the_answers_are_those_of_the_evidence(stream):
    evidence = posteriors(*stream)
    answers, _ = StickyClasses(stream[1]).filter(np.log(evidence), np.zeros(stream[0]))
    np.testing.assert_allclose(np.exp(answers), evidence, rtol=1e-12)
    np.testing.assert_allclose(np.exp(smooth(answers, np.log(evidence), np.zeros(stream[0]))), evidence, rtol=1e-12)


@settings(max_examples=20)
@given(st.integers(2, 20), st.integers(0, 10**6), st.floats(0, 0.9))
def test_in_random_order_nothing_stays(classes, seed, bias):
    """Also where the posteriors favour one class throughout, as those of a shifted domain do."""
    rng = np.random.default_rng(seed)
    y = 0.3 / classes + 0.7 * np.eye(classes)[rng.integers(classes, size=400)]
    y = (1 - bias) * y + bias * np.eye(classes)[0]
    stay, _ = StickyClasses(classes).observe(y)
    assert stay.mean() < 0.05


@pytest.mark.parametrize("classes", [2, 5, 10, 100])
def test_staying_is_found_in_sorted_order(classes):
    labels = np.repeat(np.arange(10) % classes, 50)
    y = 0.4 / classes + 0.6 * np.eye(classes)[labels]
    _, chain = StickyClasses(classes).observe(y)
    assert chain.stay > 0.8


def test_a_larger_penalty_asks_for_more_samples():
    y = 0.1 + 0.6 * np.eye(4)[np.arange(100) // 10 % 4]
    found = [(StickyClasses(4, penalty=penalty).observe(y)[0] > 0.5).argmax() for penalty in (1.0, 10.0, 20.0)]
    assert 0 < found[0] < found[1] < found[2]


def test_trust_scales_what_the_filter_uses():
    y = 0.1 + 0.6 * np.eye(4)[np.arange(100) // 10 % 4]
    full, half = (StickyClasses(4, trust=trust).observe(y) for trust in (1.0, 0.5))
    np.testing.assert_allclose(half[0], 0.5 * full[0])
    assert half[1].stay == pytest.approx(0.5 * full[1].stay)
    np.testing.assert_array_equal(half[1].log_likelihoods, full[1].log_likelihoods)


def test_balanced_evidence_is_the_definition():
    evidence, exponents = posteriors(N, K, 3), np.array([0.0, 0.9, 0.2, 0.99, 0.5])
    balanced, chain = StickyClasses(K).balance(7.0 + np.log(evidence), exponents)
    for t in range(N):
        mean = (1 + evidence[:t].sum(axis=0)) / (K + t)
        expected = np.log(evidence[t]) - exponents[t] * np.log(mean)
        difference = balanced[t] - expected
        np.testing.assert_allclose(difference, difference[0], atol=1e-12)  # up to a constant per row
    np.testing.assert_allclose(chain.evidence, 1 + evidence.sum(axis=0))
    whole, _ = StickyClasses(K).balance(np.log(evidence), exponents, whole=True)
    difference = whole - np.log(evidence) + exponents[:, None] * np.log(chain.evidence / (K + N))
    np.testing.assert_allclose(difference, difference[:, :1] + np.zeros((N, K)), atol=1e-12)


@given(streams)
def test_in_random_order_evidence_is_not_balanced(stream):
    evidence = posteriors(*stream)
    balanced, _ = StickyClasses(stream[1]).balance(np.log(evidence), np.zeros(stream[0]))
    np.testing.assert_allclose(np.exp(balanced) / np.exp(balanced).sum(axis=1, keepdims=True), evidence, rtol=1e-12)


def test_a_row_that_excludes_every_class_says_nothing():
    evidence = np.log(posteriors(3, 4))
    evidence[1] = -np.inf
    stay = np.array([0.0, 0.5, 0.5])
    answers, chain = StickyClasses(4).filter(evidence, stay)
    np.testing.assert_allclose(np.exp(answers[1]), 0.5 * np.exp(answers[0]) + 0.5 / 4)
    assert np.isfinite(chain.answer).all()


def test_nothing_is_changed_in_place():
    y = posteriors(20, 4)
    _, _, chain = run(y, y)
    before = chain.state()
    arrays = {name: array.copy() for name, array in before[0].items()}
    run(y, y, chain)
    assert chain.state()[1] == before[1]
    for name, array in chain.state()[0].items():
        np.testing.assert_array_equal(array, arrays[name])


def test_merged_chains_add_their_sums_and_follow_no_sample():
    y, z = posteriors(20, 4, 1), posteriors(30, 4, 2)
    first, second = run(y, y)[2], run(z, z)[2]
    both = first.merged(second)
    np.testing.assert_array_equal(both.log_likelihoods, first.log_likelihoods + second.log_likelihoods)
    for name in ("posteriors", "frequencies", "evidence"):
        fresh, ours, theirs = (getattr(chain, name) for chain in (StickyClasses(4), first, second))
        np.testing.assert_allclose(getattr(both, name) - fresh, (ours - fresh) + (theirs - fresh))
    answers, stay, after = run(z[:1], z[:1], both)
    np.testing.assert_allclose(np.exp(answers), z[:1])
    assert stay[0] == 0.0
    np.testing.assert_array_equal(after.log_likelihoods, both.log_likelihoods)  # it follows none


def test_a_restored_chain_continues_bit_for_bit():
    y = posteriors(40, 4)
    whole = run(y, y)[0]
    chain = run(y[:25], y[:25])[2]
    restored = StickyClasses(4).restore(*chain.state())
    np.testing.assert_array_equal(run(y[25:], y[25:], restored)[0], whole[25:])


def test_restored_late_answers_continue_bit_for_bit():
    evidence = np.log(posteriors(10, 4))
    stay = np.full(10, 0.7)
    filtered, _ = StickyClasses(4).filter(evidence, stay)
    _, late = LateAnswers(4, 3).add(filtered[:6], evidence[:6], stay[:6])
    restored = LateAnswers(4, 3).restore(*late.state())
    rest = filtered[6:], evidence[6:], stay[6:]
    np.testing.assert_array_equal(restored.add(*rest)[0], late.add(*rest)[0])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"log_likelihoods": np.ones(len(STAY_VALUES))}, "random order"),
        ({"log_likelihoods": np.zeros(3)}, "log_likelihoods has shape"),
        ({"posteriors": np.array([-1.0, 1.0, 1.0, 1.0])}, "posteriors"),
        ({"frequencies": np.array([-1.0, 1.0, 1.0, 1.0])}, "frequencies"),
        ({"evidence": np.array([0.5, 1.0, 1.0, 1.0])}, "evidence"),
        ({"follows": 1}, "follows"),
        ({"zero_shot": np.ones(4)}, "zero_shot"),
        ({"answer": np.array([2.0, -1.0, 0.0, 0.0])}, "answer"),
        ({"answer": np.ones(3) / 3}, "shape"),
    ],
)
def test_states_that_no_samples_lead_to_are_refused(changes, words):
    arrays, values = run(posteriors(9, 4), posteriors(9, 4))[2].state()
    arrays = {name: changes.get(name, array) for name, array in arrays.items()}
    values = {name: changes.get(name, value) for name, value in values.items()}
    with pytest.raises(ValueError, match=words):
        StickyClasses(4).restore(arrays, values)


def test_sums_of_more_samples_than_were_seen_are_refused():
    chain = run(posteriors(9, 4), posteriors(9, 4))[2]
    chain.check(9)
    with pytest.raises(ValueError, match="sum of posteriors"):
        chain.check(5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"stay": np.array([0.5, 2.0])}, "stay"),
        ({"stay": np.full(3, 0.5)}, "shapes"),
        ({"filtered": np.zeros((2, 5))}, "shapes"),
    ],
)
def test_late_answers_that_no_samples_lead_to_are_refused(changes, words):
    arrays = {"filtered": np.zeros((2, 4)), "evidence": np.zeros((2, 4)), "stay": np.full(2, 0.5)}
    LateAnswers(4, 2).restore(arrays, {})
    with pytest.raises(ValueError, match=words):
        LateAnswers(4, 2).restore(arrays | changes, {})
    with pytest.raises(ValueError, match="more than lag = 1"):
        LateAnswers(4, 1).restore(arrays, {})


def test_a_stream_may_come_to_have_an_order_and_lose_it():
    rng = np.random.default_rng(0)
    unordered, ordered = rng.integers(5, size=2000), np.repeat(rng.integers(5, size=100), 20)
    chain = StickyClasses(5)
    for labels, expected in ((unordered, False), (ordered, True), (unordered, False)):
        _, chain = chain.observe(np.full((2000, 5), 0.1) + 0.5 * np.eye(5)[labels])
        assert (chain.stay > 0.7) == expected
        assert (chain.stay < 0.05) != expected

"""The oracle against cases worked by hand.

Most of them use t_0 = (1, 0), t_1 = (0, 1), logit scale 1, alpha = 1/2 and two samples, a = (.6, .8) and
b = (1, 0):

    y(a) = softmax(.6, .8) = (0.450166, 0.549834)    pseudo-class 1
    y(b) = softmax(1, 0)   = (0.731059, 0.268941)    pseudo-class 0
"""

from __future__ import annotations

import numpy as np
import pytest

import oracle

T = np.eye(2)
A = np.array([0.6, 0.8])
B = np.array([1.0, 0.0])
PA = 1.0 / (1.0 + np.exp(-0.2))  # y(a)_1 = 0.549834
PB = 1.0 / (1.0 + np.exp(-1.0))  # y(b)_0 = 0.731059
LOG_A = np.log([1.0 - PA, PA])
LOG_B = np.log([PB, 1.0 - PB])


def unit_rows(seed: int, n: int, d: int) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(n, d))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def softmax(scores: np.ndarray) -> np.ndarray:
    e = np.exp(scores - scores.max())
    return e / e.sum()


def test_posterior_and_confidence() -> None:
    y, log_y = oracle.posterior(A, T, 1.0)
    np.testing.assert_allclose(y, [0.450166, 0.549834], atol=1e-6)
    np.testing.assert_allclose(log_y, LOG_A, atol=1e-15)
    # .450166 * -.798139 + .549834 * -.598139 = -.688172
    assert oracle.confidence(log_y) == pytest.approx(-0.688172, abs=1e-6)
    _, far = oracle.posterior(B, T, 1e6)  # y = (1, 0) exactly: 0 * -1e6, never NaN
    assert oracle.confidence(far) == 0.0


def test_first_sample() -> None:
    # bank_1 = {a}; mu_0 = t_0, mu_1 = (a + t_1)/2 = (.3, .9)
    # a - mu_1 = (.3, -.1), N = 1, tr = .1, P = (2/.1) I
    # g_0 = 20*.6 - 10*1 = 2;  g_1 = 20*(.18+.72) - 10*(.09+.81) = 9;  r = (0, .549834)
    answer = oracle.online([A], T, logit_scale=1.0, alpha=0.5)
    np.testing.assert_allclose(answer.means, [[1.0, 0.0], [0.3, 0.9]], atol=1e-15)
    np.testing.assert_allclose(answer.precision, 20.0 * np.eye(2), atol=1e-12)
    np.testing.assert_allclose(answer.scores[0], [1.201861, 8.951695], atol=2e-6)
    np.testing.assert_allclose(answer.probabilities[0, 0], 1.0 / (1.0 + np.exp(7.749834)), rtol=1e-5)
    assert answer.bank_counts.tolist() == [0, 1]
    assert answer.learnt_from == 1


# Both samples banked: S = [[.09, -.03], [-.03, .01]], N = 2, Sigma = S/2, tr = .05,
# (N-1) Sigma + tr I = [[.095, -.015], [-.015, .055]], determinant .005,
# P = 2 * [[11, 3], [3, 19]] = [[22, 6], [6, 38]].
# P mu_0 = (22, 6), mu_0 P mu_0 = 22;  P mu_1 = (12, 36), mu_1 P mu_1 = 36.
SCORES_B = LOG_B + np.array([22 - 11, 12 - 18]) + np.array([PB, 0.6 * PA])
SCORES_A = LOG_A + np.array([18 - 11, 36 - 18]) + np.array([0.6 * PB, PA])


def test_second_sample() -> None:
    answer = oracle.online([A, B], T, logit_scale=1.0, alpha=0.5)
    np.testing.assert_allclose(answer.precision, [[22, 6], [6, 38]], atol=1e-12)
    np.testing.assert_allclose(answer.scores[1], SCORES_B, atol=1e-12)
    np.testing.assert_allclose(answer.probabilities[1], softmax(SCORES_B), atol=1e-14)


def test_batch_of_two_shares_the_statistics_and_predict_repeats_them() -> None:
    answer = oracle.online([A, B], T, logit_scale=1.0, alpha=0.5, batch_size=2)
    np.testing.assert_allclose(answer.scores, [SCORES_A, SCORES_B], atol=1e-12)
    z, scores = oracle.predict([A, B], answer, T, logit_scale=1.0)
    np.testing.assert_array_equal(scores, answer.scores)
    np.testing.assert_array_equal(z, answer.probabilities)


def test_beta_gives_the_mixing_weight() -> None:
    # beta = p: a_1 = p/(p+p) = 1/2, the first sample again
    fixed = oracle.online([A], T, logit_scale=1.0, alpha=0.5)
    mixed = oracle.online([A], T, logit_scale=1.0, beta=PA)
    np.testing.assert_allclose(mixed.scores, fixed.scores, atol=1e-12)


def test_bank_term_ignores_negative_similarity() -> None:
    # -b is of class 1 (logits -1, 0): x.x_j = -1 with b in bank_0 contributes nothing to r_0
    kwargs = {"logit_scale": 1.0, "alpha": 0.5}
    with_term = oracle.online([B, -B], T, **kwargs)
    without = oracle.online([B, -B], T, use_bank_term=False, **kwargs)
    np.testing.assert_allclose(with_term.scores[1] - without.scores[1], [0.0, PB], atol=1e-12)


def test_switches() -> None:
    # mu = t, P = I: g = t.x - 1/2
    plain = {"update_mean": False, "update_covariance": False, "use_bank_term": False}
    for run in (oracle.online, oracle.transductive):
        answer = run([A], T, logit_scale=1.0, **plain)
        np.testing.assert_allclose(answer.scores[0], LOG_A + np.array([0.1, 0.3]), atol=1e-15)
    # mu = t only: a - t_1 = (.6, -.2), tr = .4, P = 5 I
    answer = oracle.online([A], T, logit_scale=1.0, update_mean=False)
    np.testing.assert_allclose(answer.precision, 5.0 * np.eye(2), atol=1e-12)


def test_one_sample_precision_is_isotropic() -> None:
    t = unit_rows(0, 3, 5)
    x = unit_rows(1, 1, 5)
    answer = oracle.online(x, t)
    k = int(np.argmax(t @ x[0]))
    trace = 0.01 * float(np.sum((x[0] - t[k]) ** 2))  # x - mu = .1 (x - t)
    np.testing.assert_allclose(answer.precision, 5.0 / trace * np.eye(5), rtol=1e-10)


def test_equal_samples_with_alpha_one_have_identity_precision() -> None:
    t = unit_rows(2, 3, 4)
    x = np.repeat(unit_rows(3, 1, 4), 5, axis=0)
    for covariance in ("shared", "per_class"):
        answer = oracle.online(x, t, alpha=1.0, covariance=covariance)
        np.testing.assert_array_equal(answer.precision - np.eye(4), np.zeros(answer.precision.shape))


def test_per_class_precision() -> None:
    # P_0 = I (empty), P_1 = 20 I: g_0 = .6 - .5, g_1 = 9
    answer = oracle.online([A], T, logit_scale=1.0, alpha=0.5, covariance="per_class")
    np.testing.assert_allclose(answer.precision, [np.eye(2), 20.0 * np.eye(2)], atol=1e-12)
    np.testing.assert_allclose(answer.scores[0], LOG_A + np.array([0.1, 9.0]) + np.array([0.0, PA]), atol=1e-12)
    with pytest.raises(ValueError, match="per_class"):
        oracle.online([A], T, covariance="per_class", bank_size=0)


def test_bank_replaces_only_the_least_confident_in_place() -> None:
    angles = [0.3, 0.2, 0.3, 0.1, 0.25, 0.1]  # all of class 0; smaller is more confident
    rows = [[np.cos(v), np.sin(v)] for v in angles]
    answer = oracle.online(rows, T, logit_scale=1.0, bank_size=2)
    # .3 | .3 .2 | (equal: not strictly more confident) | .1 takes slot 0 | (.25 < .2) | .1 takes slot 1
    assert [round(float(np.arctan2(x[1], x[0])), 6) for x, _, _ in answer.banks[0]] == [0.1, 0.1]
    before = oracle.online(rows[:5], T, logit_scale=1.0, bank_size=2)
    assert [round(float(np.arctan2(x[1], x[0])), 6) for x, _, _ in before.banks[0]] == [0.1, 0.2]


def test_prune_drops_the_least_confident() -> None:
    rows = [[np.cos(v), np.sin(v)] for v in (0.1, 0.4, 0.2, 0.3, 0.35)]
    answer = oracle.online(rows, T, logit_scale=1.0, prune=(4, 0.5))
    # after 4 samples floor(.5*4) = 2 go: .4 and .3; then .35 comes in at the end
    assert [round(float(np.arctan2(x[1], x[0])), 6) for x, _, _ in answer.banks[0]] == [0.1, 0.2, 0.35]
    supported = oracle.online(rows[:4], T, logit_scale=1.0, prune=(4, 1.0), support=([A], [0]))
    assert supported.bank_counts.tolist() == [1, 0]
    assert supported.banks[0][0][1:] == (1.0, 0.0)


def test_support_does_not_count_towards_the_capacity() -> None:
    # bank_0 = {a (support, p = 1), b}, L = 1. mu'_0 = (a + p_b b)/(1 + p_b)
    answer = oracle.online([B], T, logit_scale=1.0, alpha=1.0, bank_size=1, support=([A], [0]))
    assert answer.bank_counts.tolist() == [2, 0]
    np.testing.assert_allclose(answer.means[0], (A + PB * B) / (1.0 + PB), atol=1e-15)
    np.testing.assert_allclose(answer.means[1], T[1])


def test_bank_off_counts_every_sample_softly() -> None:
    # one sample: mu_0 = (a + t_0)/2 = (.8, .4), mu_1 = (.3, .9); tr = y_0 * .2 + y_1 * .1, N = 1, P = 2/tr I
    scale = 2.0 / (0.2 * (1.0 - PA) + 0.1 * PA)
    answer = oracle.online([A], T, logit_scale=1.0, alpha=0.5, bank_size=0)
    np.testing.assert_allclose(answer.precision, scale * np.eye(2), atol=1e-11)
    # g_0 = P (.48 + .32 - .4) = .4 P;  g_1 = P (.9 - .45) = .45 P
    np.testing.assert_allclose(answer.scores[0], LOG_A + scale * np.array([0.4, 0.45]), atol=1e-11)
    assert answer.bank_counts.tolist() == [0, 0]
    assert answer.learnt_from == 1
    both = oracle.online([A, B], T, logit_scale=1.0, alpha=1.0, bank_size=0)
    np.testing.assert_allclose(both.means[0], ((1 - PA) * A + PB * B) / (1 - PA + PB), atol=1e-15)
    whole = oracle.transductive([A, B], T, logit_scale=1.0, alpha=1.0, bank_size=0)
    np.testing.assert_allclose(whole.scores[1], both.scores[1], atol=1e-12)


def test_transductive_mean_counts_banked_samples_twice() -> None:
    answer = oracle.transductive([A, B], T, logit_scale=1.0, alpha=1.0, bank_size=1)
    mu0 = ((1 - PA) * A + 2 * PB * B) / (1 - PA + 2 * PB)
    mu1 = (2 * PA * A + (1 - PB) * B) / (2 * PA + 1 - PB)
    np.testing.assert_allclose(answer.means, [mu0, mu1], atol=1e-15)
    sigma = (np.outer(B - mu0, B - mu0) + np.outer(A - mu1, A - mu1)) / 2
    p = 2.0 * np.linalg.inv(sigma + np.trace(sigma) * np.eye(2))
    g = np.array([mu0 @ p @ A - mu0 @ p @ mu0 / 2, mu1 @ p @ A - mu1 @ p @ mu1 / 2])
    np.testing.assert_allclose(answer.scores[0], LOG_A + g + [0.6 * PB, PA], atol=1e-10)


def test_transductive_keeps_the_most_confident() -> None:
    rows = [[np.cos(v), np.sin(v)] for v in (0.3, 0.1, 0.2)]
    answer = oracle.transductive(rows, T, logit_scale=1.0, bank_size=2)
    assert [round(float(np.arctan2(x[1], x[0])), 6) for x, _, _ in answer.banks[0]] == [0.1, 0.2]


def test_second_round_counts_the_batch_by_z() -> None:
    # first sample: bank_1 = {a}, so mu'_1 = a whatever z is, and the empty class keeps t_0: nothing changes
    one = oracle.online([A], T, logit_scale=1.0, alpha=0.5)
    two = oracle.online([A], T, logit_scale=1.0, alpha=0.5, iterations=5)
    np.testing.assert_allclose(two.scores, one.scores, atol=1e-12)
    # a, b as a batch, P = I for short: round 2 mean by hand from the z of round 1
    kwargs = {"logit_scale": 1.0, "alpha": 1.0, "update_covariance": False}
    z = oracle.online([A, B], T, batch_size=2, **kwargs).probabilities
    mu0 = (PB * B + z[0, 0] * A + z[1, 0] * B) / (PB + z[0, 0] + z[1, 0])
    mu1 = (PA * A + z[0, 1] * A + z[1, 1] * B) / (PA + z[0, 1] + z[1, 1])
    r = np.array([0.6 * PB, PA])
    expected = LOG_A + np.array([mu0 @ A - mu0 @ mu0 / 2, mu1 @ A - mu1 @ mu1 / 2]) + r
    answer = oracle.online([A, B], T, batch_size=2, iterations=2, **kwargs)
    np.testing.assert_allclose(answer.scores[0], expected, atol=1e-14)
    np.testing.assert_array_equal(answer.means, [B, A])  # reported: the bank alone
    # transductive: z in place of y in Eq. 12, reported as of the last round
    z = oracle.transductive([A, B], T, **kwargs).probabilities
    mu0 = (PB * B + z[0, 0] * A + z[1, 0] * B) / (PB + z[0, 0] + z[1, 0])
    mu1 = (PA * A + z[0, 1] * A + z[1, 1] * B) / (PA + z[0, 1] + z[1, 1])
    answer = oracle.transductive([A, B], T, iterations=2, **kwargs)
    np.testing.assert_allclose(answer.means, [mu0, mu1], atol=1e-14)


def test_rounds_stop_when_z_no_longer_changes() -> None:
    t, x = unit_rows(4, 3, 6), unit_rows(5, 12, 6)
    many = oracle.transductive(x, t, logit_scale=5.0, iterations=500)
    more = oracle.transductive(x, t, logit_scale=5.0, iterations=1000)
    np.testing.assert_array_equal(many.probabilities, more.probabilities)


def test_an_empty_stream_gives_zero_shot() -> None:
    empty = oracle.online(np.zeros((0, 2)), T)
    assert empty.probabilities.shape == (0, 2)
    z, scores = oracle.predict([A], empty, T, logit_scale=1.0)
    np.testing.assert_allclose(scores[0], LOG_A, atol=1e-15)
    np.testing.assert_allclose(z[0], [1.0 - PA, PA], atol=1e-15)


@pytest.mark.parametrize("bank_size", [0, 2])
@pytest.mark.parametrize("iterations", [1, 3])
def test_probabilities_sum_to_one_and_follow_eq_8(bank_size: int, iterations: int) -> None:
    t, x = unit_rows(6, 4, 5), unit_rows(7, 20, 5)
    for answer in (
        oracle.online(x, t, logit_scale=10.0, bank_size=bank_size, iterations=iterations, batch_size=3),
        oracle.transductive(x, t, logit_scale=10.0, bank_size=bank_size, iterations=iterations),
    ):
        np.testing.assert_allclose(answer.probabilities.sum(axis=1), np.ones(20), atol=1e-14)
        for z, s in zip(answer.probabilities, answer.scores, strict=True):
            np.testing.assert_allclose(z, softmax(s), atol=1e-14)
        assert max(answer.bank_counts) <= bank_size

"""The reject score: its definition, that it changes no state, and that samples of no class score high."""

from __future__ import annotations

import numpy as np
import pytest

from mixture.sets import make_support, pack_stream
from zeroshift import OnlineAnchoredMixture, TransductiveAnchoredMixture, normalize
from zeroshift.mixture.base import negative_log_evidence

KINDS = [OnlineAnchoredMixture, TransductiveAnchoredMixture]
CLASSES = 5

both = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.protocol)


def adapted_method(kind, rows=200, **parameters):
    stream = pack_stream(rows)
    method = kind(stream.prototypes, logit_scale=stream.logit_scale, **parameters)
    method.adapt(stream.features)
    return method, stream


def expected(method, stream, x):
    """The definition, one sample and one class at a time. `stream` contains everything learned."""
    total = stream.features.sum(axis=0)
    n = len(stream.features)
    if method.support is not None:
        total, n = total + method.support[0].sum(axis=0), n + len(method.support[0])
    center, scores = total / n, []
    for row in x:
        center_distance = (row - center) @ method.precision_matrix @ (row - center)
        evidence = 0.0
        for prototype, mean in zip(stream.prototypes, method.means, strict=True):
            distance = (row - mean) @ method.precision_matrix @ (row - mean)
            distance_weight = 0.5 * method.weight * method.calm * method.reliability
            evidence += np.exp(
                stream.logit_scale * (row @ prototype - 1.0) - distance_weight * (distance - center_distance)
            )
        scores.append(-np.log(evidence))
    return np.array(scores)


@both
@pytest.mark.parametrize("parameters", [{}, {"calm": 0.5, "weight": 0.7}], ids=["default", "other"])
def test_scores_equal_the_definition(kind, parameters):
    method, stream = adapted_method(kind, **parameters)
    x = pack_stream(260).features[200:]
    np.testing.assert_allclose(method.reject_scores(x), expected(method, stream, x), rtol=0, atol=1e-9)


@both
def test_support_is_part_of_the_mean_of_all_samples(kind):
    stream = pack_stream(200)
    method = kind(stream.prototypes, logit_scale=stream.logit_scale, support=make_support(stream, per_class=6))
    method.adapt(stream.features)
    x = stream.features[:20]
    np.testing.assert_allclose(method.reject_scores(x), expected(method, stream, x), rtol=0, atol=1e-9)


@both
def test_scores_follow_from_cosines_before_the_mixture_has_samples(kind):
    stream = pack_stream(20)
    method = kind(stream.prototypes, logit_scale=stream.logit_scale)
    logits = stream.logit_scale * (stream.features @ stream.prototypes.T - 1.0)
    np.testing.assert_allclose(method.reject_scores(stream.features), -np.log(np.exp(logits).sum(axis=1)), atol=1e-12)
    assert method.n_seen == 0


@both
def test_a_sample_at_a_distant_prototype_scores_zero(kind):
    method = kind(np.eye(3), logit_scale=100.0)
    assert method.reject_scores(np.eye(3)) == pytest.approx(np.zeros(3), abs=1e-12)


@both
def test_one_sample_gives_one_number_in_the_callers_precision(kind):
    method, stream = adapted_method(kind)
    many = method.reject_scores(stream.features[:5])
    assert many.shape == (5,)
    assert many.dtype == np.float64
    one = method.reject_scores(stream.features[3])
    assert one.shape == ()
    assert one == pytest.approx(many[3], abs=1e-12)
    narrow = method.reject_scores(stream.features[:5].astype(np.float32))
    assert narrow.dtype == np.float32
    np.testing.assert_allclose(narrow, many, atol=1e-4)


@both
def test_reject_scores_do_not_change_the_state(kind, tmp_path):
    """The saved state and later answers are the same with and without a call of `reject_scores`."""
    (queried, stream), (untouched, _) = adapted_method(kind), adapted_method(kind)
    queried.reject_scores(stream.features)
    arrays, others = queried._state()[0], untouched._state()[0]
    assert all(np.array_equal(arrays[name], others[name]) for name in others)
    again = stream.features[:50]
    np.testing.assert_array_equal(queried.adapt(again), untouched.adapt(again))
    queried.save(tmp_path / "mixture.safetensors")
    loaded = kind.load(tmp_path / "mixture.safetensors")
    np.testing.assert_array_equal(loaded.reject_scores(again), queried.reject_scores(again))


@both
def test_torch_equals_numpy(kind):
    torch = pytest.importorskip("torch")
    method, stream = adapted_method(kind)
    given = torch.from_numpy(stream.features[:30])
    in_torch = kind(torch.from_numpy(stream.prototypes), logit_scale=stream.logit_scale)
    in_torch.adapt(torch.from_numpy(stream.features))
    assert isinstance(method.reject_scores(given), torch.Tensor)
    scores = in_torch.reject_scores(given)
    assert isinstance(scores, torch.Tensor)
    np.testing.assert_allclose(scores.numpy(), method.reject_scores(stream.features[:30]), atol=1e-8)


@both
@pytest.mark.parametrize(
    ("features", "message"),
    [(np.ones((2, 3)), "features"), (np.zeros((0, 2, 2)), "features"), (np.full((2, 256), np.nan), "features")],
    ids=["other width", "three axes", "not a number"],
)
def test_invalid_features_are_rejected_as_by_predict(kind, features, message):
    method, _ = adapted_method(kind, rows=20)
    with pytest.raises(ValueError, match=message) as ours:
        method.reject_scores(features)
    with pytest.raises(ValueError, match=message) as theirs:
        method.predict(features)
    assert str(ours.value) == str(theirs.value)


@both
def test_samples_between_the_classes_score_highest(kind):
    draw = np.random.default_rng(3)
    labels = np.arange(40 * CLASSES) % CLASSES
    members = normalize(np.eye(8)[labels] + 0.05 * draw.normal(size=(len(labels), 8)))
    outliers = normalize(np.eye(8)[[6, 7] * 10] + 0.05 * draw.normal(size=(20, 8)))
    method = kind(np.eye(8)[:CLASSES], logit_scale=10.0)
    method.adapt(draw.permutation(np.concatenate([members, outliers])))
    assert method.reject_scores(outliers).min() > method.reject_scores(members).max()


@both
def test_an_unknown_sample_with_a_confident_posterior_scores_high(kind):
    """Far away on the side of one class: the other class is so much farther that the posterior is confident."""
    prototypes = normalize(np.array([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]]) + np.array([0.0, 0.3, 0.0]))
    draw = np.random.default_rng(5)
    members = normalize(prototypes[np.arange(100) % 2] + 0.05 * draw.normal(size=(100, 3)))
    method = kind(prototypes, logit_scale=30.0)
    method.adapt(members)
    outlier = normalize(np.array([[0.6, -0.6, 0.6]]))
    assert method.predict(outlier).max() > 0.99
    assert method.reject_scores(outlier)[0] > method.reject_scores(members).max()


def test_tiny_evidence_does_not_underflow():
    assert negative_log_evidence(np.array([[-2000.0, -2000.0]]))[0] == pytest.approx(2000 - np.log(2))
    assert negative_log_evidence(np.array([[800.0, 0.0]]))[0] == pytest.approx(-800)

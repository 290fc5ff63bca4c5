"""The reject score: what it is made of, that asking teaches nothing, and that strangers score high."""

from __future__ import annotations

import numpy as np
import pytest

from mixture.sets import of_a_pack, support_of
from zeroshift import OnlineAnchoredMixture, TransductiveAnchoredMixture, normalize
from zeroshift.mixture.base import negative_log_evidence

KINDS = [OnlineAnchoredMixture, TransductiveAnchoredMixture]
CLASSES = 5

both = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.protocol)


def made(kind, rows=200, **parameters):
    stream = of_a_pack(rows)
    method = kind(stream.prototypes, logit_scale=stream.logit_scale, **parameters)
    method.adapt(stream.features)
    return method, stream


def expected(method, stream, x):
    """Sample by sample and class by class, as the definition reads; everything seen is in `stream`."""
    total = stream.features.sum(axis=0)
    n = len(stream.features)
    if method.support is not None:
        total, n = total + method.support[0].sum(axis=0), n + len(method.support[0])
    middle, scores = total / n, []
    for row in x:
        far = (row - middle) @ method.precision @ (row - middle)
        evidence = 0.0
        for prototype, mean in zip(stream.prototypes, method.means, strict=True):
            distance = (row - mean) @ method.precision @ (row - mean)
            pull = 0.5 * method.weight * method.calm * method.reliability
            evidence += np.exp(stream.logit_scale * (row @ prototype - 1.0) - pull * (distance - far))
        scores.append(-np.log(evidence))
    return np.array(scores)


@both
@pytest.mark.parametrize("parameters", [{}, {"calm": 0.5, "weight": 0.7}], ids=["default", "other"])
def test_it_is_the_classes_evidence_against_the_middle(kind, parameters):
    method, stream = made(kind, **parameters)
    x = of_a_pack(260).features[200:]
    np.testing.assert_allclose(method.reject_scores(x), expected(method, stream, x), rtol=0, atol=1e-9)


@both
def test_labelled_samples_are_in_the_middle(kind):
    stream = of_a_pack(200)
    method = kind(stream.prototypes, logit_scale=stream.logit_scale, support=support_of(stream, per_class=6))
    method.adapt(stream.features)
    x = stream.features[:20]
    np.testing.assert_allclose(method.reject_scores(x), expected(method, stream, x), rtol=0, atol=1e-9)


@both
def test_before_the_mixture_is_in_force_the_cosines_decide(kind):
    stream = of_a_pack(20)
    method = kind(stream.prototypes, logit_scale=stream.logit_scale)
    logits = stream.logit_scale * (stream.features @ stream.prototypes.T - 1.0)
    np.testing.assert_allclose(method.reject_scores(stream.features), -np.log(np.exp(logits).sum(axis=1)), atol=1e-12)
    assert method.n_seen == 0


@both
def test_a_sample_on_a_lone_prototype_scores_nothing(kind):
    method = kind(np.eye(3), logit_scale=100.0)
    assert method.reject_scores(np.eye(3)) == pytest.approx(np.zeros(3), abs=1e-12)


@both
def test_one_sample_gives_one_number_and_precision_is_the_callers(kind):
    method, stream = made(kind)
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
def test_asking_teaches_nothing(kind, tmp_path):
    """What is saved, and what is answered next, is the same whether it was asked or not."""
    (asked, stream), (not_asked, _) = made(kind), made(kind)
    asked.reject_scores(stream.features)
    arrays, others = asked._state()[0], not_asked._state()[0]
    assert all(np.array_equal(arrays[name], others[name]) for name in others)
    again = stream.features[:50]
    np.testing.assert_array_equal(asked.adapt(again), not_asked.adapt(again))
    asked.save(tmp_path / "mixture.safetensors")
    loaded = kind.load(tmp_path / "mixture.safetensors")
    np.testing.assert_array_equal(loaded.reject_scores(again), asked.reject_scores(again))


@both
def test_tensors_give_tensors_of_the_same_numbers(kind):
    torch = pytest.importorskip("torch")
    method, stream = made(kind)
    given = torch.from_numpy(stream.features[:30])
    there = kind(torch.from_numpy(stream.prototypes), logit_scale=stream.logit_scale)
    there.adapt(torch.from_numpy(stream.features))
    assert isinstance(method.reject_scores(given), torch.Tensor)
    scores = there.reject_scores(given)
    assert isinstance(scores, torch.Tensor)
    np.testing.assert_allclose(scores.numpy(), method.reject_scores(stream.features[:30]), atol=1e-8)


@both
@pytest.mark.parametrize(
    ("features", "words"),
    [(np.ones((2, 3)), "features"), (np.zeros((0, 2, 2)), "features"), (np.full((2, 256), np.nan), "features")],
    ids=["other width", "three axes", "not a number"],
)
def test_what_predict_refuses_is_refused_alike(kind, features, words):
    method, _ = made(kind, rows=20)
    with pytest.raises(ValueError, match=words) as ours:
        method.reject_scores(features)
    with pytest.raises(ValueError, match=words) as theirs:
        method.predict(features)
    assert str(ours.value) == str(theirs.value)


@both
def test_strangers_between_the_classes_score_higher_than_all_members(kind):
    draw = np.random.default_rng(3)
    labels = np.arange(40 * CLASSES) % CLASSES
    members = normalize(np.eye(8)[labels] + 0.05 * draw.normal(size=(len(labels), 8)))
    strangers = normalize(np.eye(8)[[6, 7] * 10] + 0.05 * draw.normal(size=(20, 8)))
    method = kind(np.eye(8)[:CLASSES], logit_scale=10.0)
    method.adapt(draw.permutation(np.concatenate([members, strangers])))
    assert method.reject_scores(strangers).min() > method.reject_scores(members).max()


@both
def test_a_stranger_is_told_that_the_posterior_is_sure_of(kind):
    """Far out on the side of one class: all others are so much farther that nothing is left to doubt."""
    prototypes = normalize(np.array([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]]) + np.array([0.0, 0.3, 0.0]))
    draw = np.random.default_rng(5)
    members = normalize(prototypes[np.arange(100) % 2] + 0.05 * draw.normal(size=(100, 3)))
    method = kind(prototypes, logit_scale=30.0)
    method.adapt(members)
    stranger = normalize(np.array([[0.6, -0.6, 0.6]]))
    assert method.predict(stranger).max() > 0.99
    assert method.reject_scores(stranger)[0] > method.reject_scores(members).max()


def test_evidence_too_small_for_a_number_still_has_a_logarithm():
    assert negative_log_evidence(np.array([[-2000.0, -2000.0]]))[0] == pytest.approx(2000 - np.log(2))
    assert negative_log_evidence(np.array([[800.0, 0.0]]))[0] == pytest.approx(-800)

"""TCA's reservoir against a reference with lists, and its checks of input."""

import numpy as np
import pytest

from zeroshift.methods import TCA
from zeroshift.testing import make_problem
from zeroshift.testing.case import fingerprint
from zeroshift.zero_shot import posterior

SCALE = 20.0


def reference_scores(features, tokens, prototypes, *, size, scale, weight, beta):
    """The steps of the specification: scores, and the samples kept per class."""
    depth = tokens.shape[1]
    layer = np.exp(np.linspace(0, 1, depth) / scale)
    layer /= layer.sum()
    kept_by_class = {k: [] for k in range(len(prototypes))}
    scores = []
    for x, z in zip(features, tokens, strict=True):
        logits = SCALE * prototypes @ x
        p = np.exp(logits - logits.max())
        p /= p.sum()
        items = kept_by_class[int(np.argmax(logits))]
        items.append((-(p * np.log(p)).sum(), z))
        if len(items) > size:
            means = [unit(item[1].mean(axis=0)) for item in items]
            similarities = [np.mean([means[i] @ m for j, m in enumerate(means) if j != i]) for i in range(len(items))]
            del items[int(np.argmax([item[0] + s for item, s in zip(items, similarities, strict=True)]))]
        items.sort(key=lambda item: item[0])
        vote = np.zeros(len(prototypes))
        for k, kept in kept_by_class.items():
            for _, other in kept:
                cosine = sum(layer[i] * unit(z[i]) @ unit(other[i]) for i in range(depth))
                vote[k] += weight * np.exp(-beta * (1 - cosine))
        scores.append(logits + vote)
    return np.array(scores), kept_by_class


def unit(vector):
    return vector / np.linalg.norm(vector)


@pytest.fixture
def stream():
    problem = make_problem(classes=4, dimension=12, samples=60, seed=3)
    tokens = np.random.default_rng(0).normal(size=(60, 5, 7)) + np.arange(1, 6)[None, :, None]
    return problem, tokens


def test_features_alone_are_tokens_of_one_layer(stream):
    problem, _ = stream
    expected, _ = reference_scores(
        problem.features, problem.features[:, None, :], problem.prototypes, size=3, scale=0.1, weight=3.0, beta=5.0
    )
    actual = TCA(problem.prototypes, logit_scale=SCALE).adapt_scores(problem.features)
    np.testing.assert_allclose(actual, expected, atol=1e-9)


@pytest.mark.parametrize(("size", "scale"), [(1, 0.01), (2, 5.0), (3, 1.0)])
def test_tokens_of_many_layers(stream, size, scale):
    problem, tokens = stream
    settings = {"weight": 2.0, "beta": 6.0}
    expected, kept_by_class = reference_scores(
        problem.features, tokens, problem.prototypes, size=size, scale=scale, **settings
    )
    method = TCA(problem.prototypes, logit_scale=SCALE, reservoir_size=size, layer_scale=scale, **settings)
    actual = np.concatenate(
        [method.adapt_tokens_scores(problem.features[i : i + 7], tokens[i : i + 7]) for i in range(0, 60, 7)]
    )
    np.testing.assert_allclose(actual, expected, atol=1e-9)
    assert method.n_seen == 60
    if all(len(items) > 1 for items in kept_by_class.values()):
        means = [np.mean([item[1] for item in items], axis=0) for items in kept_by_class.values()]
        np.testing.assert_allclose(method.anchors, means)
    else:
        assert method.anchors is None


def test_a_small_layer_scale_uses_the_last_layer_only(stream):
    problem, tokens = stream
    other = tokens.copy()
    other[:, :-1] = np.random.default_rng(1).normal(size=other[:, :-1].shape)
    # With a slot for every sample none is removed, so the mean over layers is never compared.
    few = {"logit_scale": SCALE, "layer_scale": 1e-3, "reservoir_size": 60}
    np.testing.assert_allclose(
        TCA(problem.prototypes, **few).adapt_tokens_scores(problem.features, tokens),
        TCA(problem.prototypes, **few).adapt_tokens_scores(problem.features, other),
        atol=1e-9,
    )


def test_a_loaded_state_with_tokens_continues(stream, tmp_path):
    problem, tokens = stream
    method = TCA(problem.prototypes, logit_scale=SCALE)
    method.adapt_tokens(problem.features[:40], tokens[:40])
    method.save(tmp_path / "tca.safetensors")
    again = TCA.load(tmp_path / "tca.safetensors")
    rest = (problem.features[40:], tokens[40:])
    assert np.array_equal(again.adapt_tokens(*rest), method.adapt_tokens(*rest))


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (np.ones((59, 5, 7)), r"tokens must have the shape \(N, L, w\) with N = 60; got \(59, 5, 7\)"),
        (np.ones((60, 7)), r"got \(60, 7\)"),
        ([1.0], "got list"),
        (np.full((60, 5, 7), np.nan), r"tokens\[:, 0\] row 0 holds NaN"),
    ],
)
def test_wrong_tokens_raise_and_nothing_is_learned(stream, tokens, message):
    problem, _ = stream
    method = TCA(problem.prototypes, logit_scale=SCALE)
    with pytest.raises((TypeError, ValueError), match=message):
        method.adapt_tokens(problem.features, tokens)
    assert method.n_seen == 0


def test_features_and_tokens_cannot_be_mixed(stream):
    problem, tokens = stream
    method = TCA(problem.prototypes, logit_scale=SCALE)
    method.adapt_tokens(problem.features[:5], tokens[:5])
    for call in (method.adapt, method.predict):
        with pytest.raises(ValueError, match=r"those learned from have \(5, 7\)\. Fix: keep to adapt and predict, or"):
            call(problem.features[5:])


def test_predict_tokens_learns_nothing(stream):
    problem, tokens = stream
    method = TCA(problem.prototypes, logit_scale=SCALE)
    zero_shot = posterior(problem.features, problem.prototypes, SCALE)
    np.testing.assert_allclose(method.predict_tokens(problem.features, tokens), zero_shot, atol=1e-12)
    method.adapt_tokens(problem.features[:30], tokens[:30])
    before = fingerprint(method)
    answer = method.predict_tokens(problem.features[30:], tokens[30:])
    assert fingerprint(method) == before
    assert np.abs(answer - zero_shot[30:]).max() > 1e-3

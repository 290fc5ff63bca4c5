"""A frozen head computes what `predict` does, in NumPy. `zeroshift.testing` checks it for every method."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import numpy as np
import pytest

from zeroshift import OnlineADAPT, OnlineAnchoredMixture, TransductiveAnchoredMixture, ZeroShot
from zeroshift.data import packs
from zeroshift.frozen import evaluate, record
from zeroshift.methods import ECALP, TCA, TDA, ZERO, list_methods
from zeroshift.testing import make_problem


@pytest.fixture(scope="module")
def problem():
    return make_problem(classes=5, dimension=12, samples=60)


def test_operations_compute_what_their_names_say():
    rng = np.random.default_rng(0)
    x, weights, slots = rng.normal(size=(6, 4)), rng.normal(size=(4, 3)), rng.normal(size=(3, 2, 4))

    def compute(e):
        votes = (e.to_each(slots) * 0.5).relu().sum().columns()
        scores = (e @ weights + votes).exp() / ((e * e).sum() + 1.0).sqrt()
        return (scores - scores.max()).softmax()

    votes = np.maximum(np.einsum("nd,kmd->nkm", x, slots) * 0.5, 0).sum(axis=2)
    scores = np.exp(x @ weights + votes) / np.sqrt((x * x).sum(axis=1, keepdims=True) + 1)
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    expected = powers / powers.sum(axis=1, keepdims=True)
    head = record(4, 3, compute)
    np.testing.assert_allclose(evaluate(head.steps, head.arrays, x), expected, atol=1e-12)


def test_linear_scores_are_centred(problem):
    """Without what all classes share: float32 loses less."""
    head = ZeroShot(problem.prototypes, logit_scale=30.0).freeze()
    (weights,) = head.arrays.values()
    np.testing.assert_allclose(weights.mean(axis=1), 0, atol=1e-12)
    np.testing.assert_allclose(weights.T, 30 * (problem.prototypes - problem.prototypes.mean(axis=0)), atol=1e-12)


def test_mixture_on_an_ordered_stream():
    """Classes one after the other: order counts, and so do the typical distance and what zero-shot favours."""
    pack = packs.load("cifar10").subset(slice(0, 600))
    order = np.argsort(pack.labels, kind="stable")
    features = np.asarray(pack.features[order], dtype=np.float64)
    mixture = OnlineAnchoredMixture(pack.prototypes_for(), logit_scale=pack.logit_scale)
    mixture.adapt(features)
    assert mixture.stay > 0.5
    head = mixture.freeze()
    assert "relu" in [step.operation for step in head.steps]
    np.testing.assert_allclose(head.predict(features), mixture.predict(features), atol=1e-9)
    flat = OnlineAnchoredMixture(pack.prototypes_for(), logit_scale=pack.logit_scale, order="none")
    flat.adapt(features)
    assert np.abs(flat.freeze().predict(features) - head.predict(features)).max() > 0.01


def test_mixture_with_a_second_encoder_is_frozen_for_the_first(problem):
    second = make_problem(classes=5, dimension=7, samples=60, seed=3).features
    mixture = TransductiveAnchoredMixture(problem.prototypes, logit_scale=20.0)
    mixture.adapt(problem.features, second=second)
    expected = mixture.predict(problem.features)
    np.testing.assert_allclose(mixture.freeze().predict(problem.features), expected, atol=1e-9)


def test_torch_state_is_frozen_to_numpy(problem):
    torch = pytest.importorskip("torch", reason="the extra `torch` brings it")
    for cls in (OnlineADAPT, OnlineAnchoredMixture, TDA):
        method = cls(torch.tensor(problem.prototypes), logit_scale=20.0)
        method.adapt(problem.features)
        head = method.freeze()
        assert all(type(array) is np.ndarray for array in head.arrays.values())
        np.testing.assert_allclose(head.predict(problem.features), method.predict(problem.features), atol=1e-9)


def test_answers_have_the_form_of_the_input(problem):
    torch = pytest.importorskip("torch", reason="the extra `torch` brings it")
    head = ZeroShot(problem.prototypes, logit_scale=20.0).freeze()
    expected = head.predict(problem.features)
    assert expected.dtype == np.float64
    np.testing.assert_allclose(head.predict(problem.features[0]), expected[0], atol=1e-15)
    half = head.predict(problem.features.astype(np.float16))
    assert half.dtype == np.float32
    tensor = head.predict(torch.tensor(problem.features, dtype=torch.float32))
    assert tensor.dtype == torch.float32
    np.testing.assert_allclose(tensor.numpy(), expected, atol=1e-6)


def test_many_rows_are_computed_in_blocks(problem, monkeypatch):
    method = OnlineADAPT(problem.prototypes, logit_scale=20.0)
    method.adapt(problem.features)
    head = method.freeze()
    expected = head.predict(problem.features)
    assert head._numbers_per_row == 5 * method.bank_counts.max()
    monkeypatch.setattr("zeroshift.frozen.WORK_NUMBERS", 3 * head._numbers_per_row)
    np.testing.assert_allclose(head.predict(problem.features), expected, atol=1e-12)


def test_rows_can_be_scaled(problem):
    method = TCA(problem.prototypes, logit_scale=20.0)
    method.adapt(problem.features)
    with pytest.raises(ValueError, match="features row 0 has length 3"):
        method.freeze().predict(3 * problem.features)
    scaled = method.freeze(normalize=True)
    assert scaled.normalize
    np.testing.assert_allclose(scaled.predict(3 * problem.features), method.predict(problem.features), atol=1e-9)


def test_heads_are_copies(problem):
    method = TDA(problem.prototypes, logit_scale=20.0)
    head = method.freeze()
    with pytest.raises(ValueError, match="read-only"):
        next(iter(head.arrays.values()))[...] = 0
    again = pickle.loads(pickle.dumps(head))
    np.testing.assert_array_equal(again.predict(problem.features), head.predict(problem.features))


@pytest.mark.parametrize(("names", "given"), [(["a", "b"], "2 of them"), ("abcde", "'abcde'")])
def test_wrong_class_names(problem, names, given):
    with pytest.raises(ValueError, match=f"class_names must be 5 names.*got {given}"):
        ZeroShot(problem.prototypes).freeze(names)


@pytest.mark.parametrize(
    ("cls", "reason"), [(ECALP, "the nearest of all samples before"), (ZERO, "adapts to every image that it predicts")]
)
def test_methods_that_cannot_be_frozen_say_why_and_which_can(problem, cls, reason):
    with pytest.raises(TypeError, match=f"{cls.name} cannot be frozen.*{reason}.*adapt_online.*tip_adapter.*zero_shot"):
        cls(problem.prototypes).freeze()


def test_a_failed_method_cannot_be_frozen(problem):
    method = OnlineADAPT(problem.prototypes)
    method._failure = "an example"
    with pytest.raises(RuntimeError, match="reset"):
        method.freeze()


def test_results_must_be_the_last_step():
    def compute(x):
        first = x.softmax()
        x.exp()
        return first

    with pytest.raises(ValueError, match="the last step, exp_1; got softmax_0"):
        record(3, 3, compute)


def test_documentation_lists_what_can_be_frozen():
    page = (Path(__file__).parents[1] / "docs" / "integrations.md").read_text()
    table, others = page.split("## What can be frozen")[1].split("Not possible")
    names = {info.name for info in list_methods()}
    frozen = {info.name for info in list_methods() if info.cls.can_freeze()}
    assert set(re.findall(r"`(\w+)`", table)) & names == frozen
    episodic = {info.name for info in list_methods("episodic")}
    assert set(re.findall(r"`(\w+)`", others)) & names == names - frozen - episodic
    assert not episodic & frozen

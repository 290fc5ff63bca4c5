"""TDA against the authors' code, a plain version of it, and its properties."""

import numpy as np
import pytest
import torch

from goldens import golden, problem, views
from plain import tda as plain
from zeroshift.methods import TDA, ZeroShot
from zeroshift.testing import check_method, make_problem
from zeroshift.views import select_lowest_entropy
from zeroshift.zero_shot import logits

TOLERANCE = 2e-4

SETTINGS = {
    "logits": {},
    "pos_only_logits": {"negative_capacity": 0},
    "neg_only_logits": {"positive_capacity": 0},
    "alt_logits": {"positive_alpha": 4.0, "positive_beta": 8.0},
}


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
@pytest.mark.parametrize("array", SETTINGS)
def test_the_authors_logits(array, dtype):
    given = problem(dtype)
    method = TDA(given["prototypes"], released=True, **SETTINGS[array])
    scores = method.adapt_scores(given["features"])
    np.testing.assert_allclose(scores, golden("tda")[array], rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(scores.argmax(axis=1), golden("tda")[array].argmax(axis=1))


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_the_authors_probabilities_and_caches(dtype):
    given = problem(dtype)
    method = TDA(given["prototypes"], released=True)
    np.testing.assert_allclose(method.adapt(given["features"]), golden("tda")["probs"], rtol=0, atol=4e-5)
    assert (method.positive_counts.sum(), method.negative_counts.sum()) == (36, 24)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_the_authors_logits_of_views(dtype):
    given, expected = views(dtype), golden("tda_views")
    kept = select_lowest_entropy(logits(given["views"], given["prototypes"], 100.0), 0.1)
    np.testing.assert_array_equal(kept, expected["selected_views"])
    scores = TDA(given["prototypes"], released=True).adapt_views_scores(given["views"])
    np.testing.assert_allclose(scores, expected["logits"], rtol=0, atol=1e-4)
    np.testing.assert_array_equal(scores.argmax(axis=1), expected["logits"].argmax(axis=1))


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_the_authors_logits_with_torch(dtype):
    given, images = problem(dtype), views(dtype)
    method = TDA(torch.tensor(given["prototypes"]), released=True)
    scores = method.adapt_scores(torch.tensor(given["features"]))
    np.testing.assert_allclose(scores.numpy(), golden("tda")["logits"], rtol=0, atol=TOLERANCE)
    method.reset()
    scores = method.adapt_views_scores(torch.tensor(images["views"]))
    np.testing.assert_allclose(scores.numpy(), golden("tda_views")["logits"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("released", [False, True])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_plain_version_agrees(seed, released):
    given = make_problem(classes=9, dimension=24, samples=700, seed=seed)
    ours = TDA(given.prototypes, logit_scale=20.0, released=released, positive_capacity=4, negative_beta=2.0)
    expected = plain.scores(
        torch.tensor(given.features),
        torch.tensor(given.prototypes),
        logit_scale=20.0,
        released=released,
        positive_capacity=4,
        negative_beta=2.0,
    )
    np.testing.assert_allclose(ours.adapt_scores(given.features), expected.numpy(), rtol=0, atol=1e-10)
    assert ours.negative_counts.sum() > 0


def test_entropies_are_divided_by_their_largest_value_unless_released():
    """0.58 nats are 84 % of ln 2, and 58 % of log2 2: a window up to 60 % distinguishes the two."""
    x = np.array([[0.8, 0.6], [0.6, 0.8]])
    window = {"logit_scale": 5.0, "entropy_window": (0.2, 0.6)}
    released = TDA(np.eye(2), released=True, **window)
    np.testing.assert_allclose(released.adapt_scores(x)[1], [4.408049, 5.770588], atol=1e-6)
    corrected = TDA(np.eye(2), **window)
    np.testing.assert_allclose(corrected.adapt_scores(x)[1], [4.637462, 6.0], atol=1e-6)
    assert (released.negative_counts.tolist(), corrected.negative_counts.tolist()) == ([1, 1], [0, 0])


def test_the_negative_cache_lowers_plausible_classes_only():
    """Three classes, one of them impossible for the stored sample: its logit does not change."""
    prototypes = np.eye(3)
    x = np.array([[0.8, 0.6, 0.0]])
    method = TDA(prototypes, logit_scale=10.0, positive_capacity=0)
    scores = method.adapt_scores(x)
    assert method.negative_counts.tolist() == [1, 0, 0]
    np.testing.assert_allclose(scores, 10 * x @ prototypes.T - 0.117 * np.array([[1, 1, 0]]), atol=1e-12)


@pytest.mark.parametrize("calls", ["one by one", "together"])
def test_the_negative_cache_spares_classes_above_the_window_too(calls):
    """Probabilities of 0.88, 0.12 and 0.0003: only the second is inside a window from 0.03 to 0.5."""
    x = np.array([[0.8, 0.6, 0.0]])
    method = TDA(np.eye(3), logit_scale=10.0, positive_capacity=0, probability_window=(0.03, 0.5))
    rows = np.concatenate([x, x])
    scores = method.adapt_scores(rows)[-1:] if calls == "together" else [method.adapt_scores(row) for row in rows][1:]
    assert method.negative_counts.tolist() == [2, 0, 0]
    np.testing.assert_allclose(scores, 10 * x - 2 * 0.117 * np.array([[0, 1, 0]]), atol=1e-12)


@pytest.mark.parametrize("window", [(0.1, 0.6), (0.3, 1.0), (0.0, 0.2)])
def test_probability_windows_agree_with_the_plain_version(window):
    given = make_problem(classes=9, dimension=24, samples=300, seed=4)
    setting = {"logit_scale": 20.0, "negative_alpha": 1.0, "entropy_window": (0.1, 0.9), "probability_window": window}
    expected = plain.scores(torch.tensor(given.features), torch.tensor(given.prototypes), **setting).numpy()
    together = TDA(given.prototypes, **setting).adapt_scores(given.features)
    np.testing.assert_allclose(together, expected, rtol=0, atol=1e-10)
    method = TDA(given.prototypes, **setting)
    np.testing.assert_allclose([method.adapt_scores(x) for x in given.features], expected, rtol=0, atol=1e-10)


def test_without_caches_the_logits_are_zero_shot():
    given = make_problem()
    method = TDA(given.prototypes, positive_capacity=0, negative_capacity=0)
    expected = ZeroShot(given.prototypes).predict_scores(given.features)
    np.testing.assert_allclose(method.adapt_scores(given.features), expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(method.predict_scores(given.features), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", ["together", "one by one"])
def test_equal_views_are_the_sample_itself(shape):
    given = make_problem()
    alike = np.repeat(given.features[:, None, :], 12, axis=1)
    method = TDA(given.prototypes, logit_scale=20.0)
    answer = method.adapt_views(alike) if shape == "together" else np.stack([method.adapt_views(v) for v in alike])
    expected = TDA(given.prototypes, logit_scale=20.0).adapt(given.features)
    np.testing.assert_allclose(answer, expected, rtol=0, atol=1e-12)


def test_there_are_fifteen_presets():
    assert len(TDA.presets) == 15
    method = TDA(np.eye(2), **TDA.preset("imagenet_sketch"))
    assert (method.positive_alpha, method.positive_beta) == (2.363, 7.45)


def test_a_reversed_window_raises():
    with pytest.raises(ValueError, match=r"entropy_window .*got \(0\.5, 0\.2\)\. Fix: \(0\.2, 0\.5\)"):
        TDA(np.eye(2), entropy_window=(0.5, 0.2))


def test_a_loaded_torch_method_continues(tmp_path):
    given = make_problem()
    method = TDA(torch.tensor(given.prototypes), logit_scale=20.0)
    method.adapt(torch.tensor(given.features[:40]))
    method.save(tmp_path / "tda.safetensors")
    loaded = TDA.load(tmp_path / "tda.safetensors")
    rest = torch.tensor(given.features[40:])
    assert torch.equal(loaded.adapt(rest), method.adapt(rest))


@pytest.mark.slow  # tests/common runs the same checks one by one
@pytest.mark.parametrize("parameters", [{}, {"released": True}, {"positive_capacity": 0, "negative_capacity": 1}])
def test_common_checks(parameters):
    check_method(TDA, parameters=parameters)

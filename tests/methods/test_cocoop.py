"""CoCoOp against the outputs of the authors' trainer on a tiny CLIP (tests/golden/README.md), and its properties."""

import numpy as np
import pytest

from goldens import golden
from zeroshift.methods import CoCoOp
from zeroshift.testing import make_problem
from zeroshift.testing.examples import ExampleText

NET = ("linear1_weight", "linear1_bias", "linear2_weight", "linear2_bias")

LOSS, PARAMETERS, LOGITS = 2e-5, 1.7e-6, 7.1e-5
"""Differences from the goldens, which are float32, that the specification states for an independent version."""


def golden_method(precision="float32", **changes):
    pytest.importorskip("transformers")
    from tiny_clip import few_shot_features, moved_text, tiny_scale

    arrays, text = golden("tiny_clip_fewshot_prompt"), moved_text("end", precision=precision)
    settings = {
        "epochs": 3,
        "order": arrays["cocoop_order"],
        "initial": arrays["cocoop_init_ctx"],
        "meta_net": tuple(arrays[f"cocoop_init_meta_net_{part}"] for part in NET),
        **changes,
    }
    support, test = few_shot_features(precision)
    settings = {"support": support, **settings}
    return CoCoOp(text.features(text.context), text=text, logit_scale=tiny_scale(), **settings), test


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_agrees_with_the_golden(precision):
    expected = {key.removeprefix("cocoop_"): array for key, array in golden("tiny_clip_fewshot_prompt").items()}
    method, test = golden_method(precision)
    np.testing.assert_allclose(method.losses, expected["loss"], rtol=0, atol=LOSS)
    np.testing.assert_allclose(method.rates, expected["lr"], rtol=1e-12)
    np.testing.assert_allclose(method.context, expected["final_ctx"], rtol=0, atol=PARAMETERS)
    for part, name in zip(method.learned_meta_net, NET, strict=True):
        np.testing.assert_allclose(part, expected[f"final_meta_net_{name}"], rtol=0, atol=PARAMETERS)
        assert np.abs(part - expected[f"init_meta_net_{name}"]).max() > 1e-3
    scores = method.predict_scores(test)
    np.testing.assert_allclose(scores, expected["logits"], rtol=0, atol=LOGITS)
    np.testing.assert_array_equal(scores.argmax(axis=1), expected["logits"].argmax(axis=1))


@pytest.fixture
def problem():
    return make_problem(classes=5, dimension=32, samples=40, seed=3)


def make_method(problem, **settings):
    prototypes = problem.prototypes
    given = {"text": ExampleText(prototypes), "support": (problem.features[:20], problem.labels[:20]), "epochs": 3}
    return CoCoOp(prototypes, **{**given, "logit_scale": 20.0, **settings})


def test_what_was_learned_predicts_other_classes(problem):
    method = make_method(problem)
    others = make_problem(classes=4, dimension=32, samples=10, seed=9)
    text = ExampleText(others.prototypes)
    transferred = CoCoOp(
        others.prototypes, text=text, support=(others.features[:1], others.labels[:1]), epochs=0, logit_scale=20.0,
        initial=method.context, meta_net=method.learned_meta_net,
    )  # fmt: skip
    shifts = method.learned_meta_net.outputs(others.features)
    expected = [20.0 * text.features(method.context + s) @ x for s, x in zip(shifts, others.features, strict=True)]
    np.testing.assert_allclose(transferred.predict_scores(others.features), expected, atol=1e-12)
    assert transferred.losses.shape == (0,)


def test_the_seed_draws_network_and_order(problem):
    first, again = (make_method(problem, seed=0) for _ in range(2))
    np.testing.assert_array_equal(first.losses, again.losses)
    drawn = [make_method(problem, seed=seed, epochs=0).learned_meta_net.weights1 for seed in (0, 1)]
    assert np.abs(drawn[0] - drawn[1]).max() > 1e-2
    assert drawn[0].shape == (2, 32)
    assert np.abs(drawn[0]).max() <= 1 / np.sqrt(32)


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"meta_net": np.zeros((2, 32))}, TypeError, r"meta_net must be four arrays: weights \(h, 32\).*got ndarray"),
        (
            {"meta_net": (np.zeros((2, 32)), np.zeros(3), np.zeros((3, 2)), np.zeros(3))},
            ValueError,
            r"meta_net\[1\] must have the shape \(2,\); got \(3,\)",
        ),
        (
            {"meta_net": (np.full((2, 32), np.inf), np.zeros(2), np.zeros((3, 2)), np.zeros(3))},
            ValueError,
            r"meta_net\[0\] must hold finite numbers",
        ),
        ({"initial": np.zeros((5, 2, 3))}, ValueError, r"initial must have the shape \(2, 3\)"),
        ({"order": np.zeros((2, 20), int)}, ValueError, r"order must have one row per epoch"),
    ],
)
def test_parameters_that_do_not_fit_raise(problem, changes, kind, message):
    with pytest.raises(kind, match=message):
        make_method(problem, **changes)

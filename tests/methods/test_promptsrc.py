"""PromptSRC on an example of both encoders, without torch. `tests/encode/test_tuning_deep_prompts.py` compares it with
a plain loop in torch on CLIP; of the authors' code there is no output."""

import numpy as np
import pytest

from zeroshift.methods import PromptSRC
from zeroshift.methods.promptsrc import divergence, epoch_weights, near_frozen
from zeroshift.testing import make_problem
from zeroshift.testing.examples import ExampleTowers, example_prompt_parameters
from zeroshift.zero_shot import softmax

SCALE = 20.0


@pytest.fixture
def problem():
    return make_problem(classes=5, dimension=12, samples=40, seed=3)


def make_method(problem, **settings):
    prototypes = problem.prototypes
    given = {
        "towers": ExampleTowers(prototypes),
        "support": (problem.features[:20], problem.labels[:20]),
        "initial": example_prompt_parameters(prototypes),
        "epochs": 4,
        "batch_size": 5,
        "logit_scale": SCALE,
    }
    return PromptSRC(prototypes, **{**given, **settings})


def total_loss(method, prompts, rows):
    """The specification's loss of some support images."""
    text, x = method.towers.text(prompts), method.towers.encode_images(method.support[0][rows], prompts).features
    frozen, labels = method.support[0][rows], method.support[1][rows]
    y, target = softmax(SCALE * x @ text.T), softmax(SCALE * frozen @ method.prototypes.T)
    loss = -np.log(y[np.arange(len(rows)), labels]).mean()
    loss += method.text_weight * np.abs(text - method.prototypes).mean()
    loss += method.image_weight * np.abs(x - frozen).mean()
    return loss + method.logit_weight * (target * np.log(target / y)).sum() / y.size


@pytest.mark.parametrize("function", [near_frozen, divergence])
def test_distances_are_zero_at_the_frozen_ones_and_never_negative(function):
    draw = np.random.default_rng(1)
    here, there = draw.normal(size=(4, 6)), draw.normal(size=(4, 6))
    assert function(here, here)[0] == 0
    value, gradient = function(here, there)
    assert value > 0
    direction = draw.normal(size=here.shape)
    ends = [function(here + step * direction, there)[0] for step in (1e-6, -1e-6)]
    assert (gradient * direction).sum() == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-6)


def plain_training(method, average):
    """The loop with difference quotients as gradients, and SGD written out."""
    prompts = np.array(example_prompt_parameters(method.prototypes))
    velocity, total = None, 0.0
    for epoch, order in enumerate(method.order):
        rate = 1e-5 if epoch == 0 else method.rate * (1 + np.cos(np.pi * (epoch - 1) / len(method.order))) / 2
        for start in range(0, 20, 5):
            rows, gradient = order[start : start + 5], np.empty_like(prompts)
            for i, step in enumerate(1e-6 * np.eye(len(prompts))):
                gradient[i] = (
                    total_loss(method, prompts + step, rows) - total_loss(method, prompts - step, rows)
                ) / 2e-6
            gradient += 5e-4 * prompts
            velocity = gradient if velocity is None else 0.9 * velocity + gradient
            prompts = prompts - rate * velocity
        total = total + average[epoch] * prompts
    return total


@pytest.mark.parametrize("average", [None, (2.0, 1.0)])
def test_training_equals_a_plain_loop(problem, average):
    order = np.stack([np.random.default_rng(i).permutation(20) for i in range(4)])
    method = make_method(problem, order=order, average=average, rate=2e-2)
    weights = np.eye(4)[3] if average is None else epoch_weights(4, *average)
    np.testing.assert_allclose(method.prompts, plain_training(method, weights), atol=1e-6)
    assert np.abs(method.prompts - example_prompt_parameters(problem.prototypes)).max() > 1e-2


def test_without_epochs_the_initial_prompts_predict(problem):
    method = make_method(problem, epochs=0, initial=None)
    np.testing.assert_array_equal(method.prompts, method.towers.parameters)
    expected = SCALE * method.towers.encode_images(problem.features, method.prompts).features @ problem.prototypes.T
    np.testing.assert_allclose(method.predict_scores(problem.features), expected, atol=1e-10)


def test_weights_of_epochs():
    assert epoch_weights(20, 15.0, 1.0).sum() == pytest.approx(1)
    assert epoch_weights(20, 15.0, 1.0).argmax() == 14
    np.testing.assert_allclose(epoch_weights(3, 1000.0, 1e-3), [0, 0, 1])
    assert epoch_weights(0, 15.0, 1.0).shape == (0,)

"""DPCore against its specification in torch, with torch's gradients and optimiser; its coreset; its source."""

import numpy as np
import pytest
import torch

from saved import saved_state
from zeroshift.methods._shared.source_statistics import Moments, distance, distance_gradient, moments, source_statistics
from zeroshift.methods.dpcore import DPCore
from zeroshift.testing import CHECKS, Case, make_problem
from zeroshift.testing.examples import ExampleVision, example_source
from zeroshift.zero_shot import posterior

SCALE = 20.0
MAX_ENTROPY = 1.2
SETTINGS = {"logit_scale": SCALE, "batch_size": 8, "n_tokens": 3, "steps_new": 6, "threshold": 0.6}


@pytest.fixture
def problem():
    return make_problem(classes=5, dimension=12, samples=60, seed=3)


def make_method(problem, **changes):
    settings = {"vision": ExampleVision(problem.prototypes), "source": example_source(problem.prototypes)}
    return DPCore(problem.prototypes, **{**settings, **SETTINGS, **changes})


def in_torch(vision):
    """The example image side as a torch function, for gradients by torch."""
    directions, mixing = torch.tensor(vision._directions), torch.tensor(vision._mixing)

    def encode(images, prompt):
        if prompt is None:
            return images, images @ directions.T
        raw = images + torch.tanh(prompt @ mixing.T).mean(dim=0) @ directions
        features = raw / raw.norm(dim=1, keepdim=True)
        return features, features @ directions.T

    return encode


def initial_prompt(method):
    bound = (6 / (method.vision.patches.inputs + method.vision.width)) ** 0.5
    return torch.tensor(np.random.default_rng(0).uniform(-bound, bound, (method.n_tokens, method.vision.width)))


def as_specified(method, images, *, steps_known=1):
    """The specification's steps over batches; scores, coreset, and which batches were known."""
    encode = in_torch(method.vision)
    source = [torch.tensor(part) for part in method.source]
    text = torch.tensor(method.prototypes)

    def statistics(states):
        return states.mean(dim=0), states.std(dim=0)

    def gap(one, other):
        return (one[0] - other[0]).norm() + (one[1] - other[1]).norm()

    def tuned(batch, start, steps):
        prompt = start.clone().requires_grad_()
        optimiser = torch.optim.AdamW([prompt], lr=0.1)
        for _ in range(steps):
            features, states = encode(batch, prompt)
            loss = gap(statistics(states), source)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        return prompt.detach(), features.detach(), statistics(states.detach())

    coreset, scores, known = [], [], []
    for start in range(0, len(images), method.batch_size):
        batch = torch.tensor(images[start : start + method.batch_size])
        plain = statistics(encode(batch, None)[1])
        is_known = False
        if coreset:
            weights = torch.softmax(torch.stack([-gap(plain, (m, s)) / 3.0 for m, s, _ in coreset]), dim=0)
            mixed = sum(w * p for w, (_, _, p) in zip(weights, coreset, strict=True))
            is_known = bool(gap(statistics(encode(batch, mixed)[1]), source) < method.threshold * gap(plain, source))
        known.append(is_known)
        if is_known:
            prompt, features, (mean, std) = tuned(batch, mixed, steps_known)
            for j, (m, s, p) in enumerate(coreset):
                share = 0.999 * weights[j]
                coreset[j] = (m + share * (mean - m), s + share * torch.relu(std - s), p + share * (prompt - p))
        else:
            prompt, features, _ = tuned(batch, initial_prompt(method), method.steps_new)
            coreset.append((*plain, prompt))
        scores.append(SCALE * features @ text.T)
    return torch.cat(scores).numpy(), coreset, known


@pytest.mark.parametrize("steps_known", [1, 3])
def test_agrees_with_the_specification(problem, steps_known, tmp_path):
    method = make_method(problem, steps_known=steps_known)
    expected, coreset, known = as_specified(method, problem.features, steps_known=steps_known)
    assert any(known), "no batch was known, so the test does not cover known batches"
    assert not all(known[1:])
    np.testing.assert_allclose(method.adapt_scores(problem.features), expected, atol=1e-8)
    assert method.coreset_size == len(coreset) == known.count(False)
    arrays = saved_state(method, tmp_path)
    for place, name in enumerate(("mean", "std", "prompts")):
        np.testing.assert_allclose(arrays[name], [element[place].numpy() for element in coreset], atol=1e-8)


def test_nothing_is_learned_from_a_single_image(problem, tmp_path):
    method = make_method(problem)
    answer = method.adapt(problem.features[0])
    np.testing.assert_allclose(answer, posterior(problem.features[:1], problem.prototypes, SCALE)[0], atol=1e-12)
    assert (method.n_seen, method.coreset_size) == (1, 0)
    method.adapt(problem.features[:16])
    before = saved_state(method, tmp_path)
    answer = method.adapt(problem.features[20])
    for name, array in saved_state(method, tmp_path).items():
        np.testing.assert_array_equal(array, before[name])
    np.testing.assert_array_equal(answer, method.predict(problem.features[20]))


def test_predict_uses_the_prompts_for_known_batches(problem):
    method = make_method(problem, steps_new=50, threshold=0.9)
    method.adapt(problem.features[:8])
    zero_shot = posterior(problem.features, problem.prototypes, SCALE)
    assert np.abs(method.predict(problem.features[:8]) - zero_shot[:8]).max() > 1e-3
    strict = make_method(problem, threshold=0.0)
    strict.adapt(problem.features)
    np.testing.assert_allclose(strict.predict(problem.features), zero_shot, atol=1e-12)


def test_capacity_removes_the_oldest(problem, tmp_path):
    whole, few = make_method(problem, threshold=0.0), make_method(problem, threshold=0.0, capacity=3)
    whole.adapt(problem.features)
    few.adapt(problem.features)
    assert (whole.coreset_size, few.coreset_size) == (8, 3)
    kept = saved_state(whole, tmp_path)
    for name, array in saved_state(few, tmp_path).items():
        np.testing.assert_array_equal(array, kept[name][-3:])


def test_memory_is_bounded_with_a_capacity():
    CHECKS["memory_is_bounded"](Case(DPCore, {"capacity": 3}))


def test_gradient_of_the_distance():
    draw = np.random.default_rng(0)
    states, target = draw.normal(size=(6, 4)), Moments(draw.normal(size=4), np.abs(draw.normal(size=4)))
    given = torch.tensor(states, requires_grad=True)
    loss = (given.mean(0) - torch.tensor(target.mean)).norm() + 0.7 * (given.std(0) - torch.tensor(target.std)).norm()
    loss.backward()
    np.testing.assert_allclose(distance(moments(states), target, 0.7), loss.item(), atol=1e-12)
    np.testing.assert_allclose(distance_gradient(states, target, 0.7), given.grad.numpy(), atol=1e-12)


def test_zero_deviation_and_zero_distance_have_gradient_zero():
    """There torch's gradient is NaN."""
    states = np.ones((3, 2))
    target = Moments(np.ones(2), np.array([1.0, 0.0]))
    np.testing.assert_array_equal(distance_gradient(states, target, 1.0), np.zeros((3, 2)))


def test_source_statistics_use_the_first_confident_images(problem):
    vision = ExampleVision(problem.prototypes)
    y = posterior(problem.features, problem.prototypes, SCALE)
    confident = np.flatnonzero(-(y * np.log(y)).sum(axis=1) < MAX_ENTROPY)
    assert 12 < len(confident) < 60
    states = vision.encode(problem.features[confident[:12]], None).states
    settings = {"logit_scale": SCALE, "max_entropy": MAX_ENTROPY, "limit": 12}
    for batch_size in (1, 7, 64):
        found = source_statistics(vision, problem.features, problem.prototypes, **settings, batch_size=batch_size)
        np.testing.assert_allclose(found.mean, states.mean(axis=0), atol=1e-12)
        np.testing.assert_allclose(found.std, states.std(axis=0, ddof=1), atol=1e-12)
    assert make_method(problem, source=found).source[0].shape == (vision.width,)


def test_the_authors_bound_keeps_no_image_with_few_classes(problem):
    vision = ExampleVision(problem.prototypes)
    with pytest.raises(ValueError, match=r"0 of 60 images .* below max_entropy = -0\.195; .*Fix: more images, or a la"):
        source_statistics(vision, problem.features, problem.prototypes)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (np.ones(3), r"source must be a pair \(mean, std\); got ndarray"),
        ((np.ones(3), np.ones(4)), r"source's std must have the shape \(3,\); got \(4,\)\. Fix: source="),
        (([1.0, 1.0, 1.0], np.ones(3)), "source's mean must be an array; got list"),
        ((np.array([1.0, np.nan, 0.0]), np.ones(3)), "source's mean must hold finite numbers; it has NaN"),
        ((np.ones(3), -np.ones(3)), "source's std must be at least 0; it has -1"),
    ],
    ids=["an array", "too long", "a list", "NaN", "negative"],
)
def test_a_wrong_source_raises(problem, source, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make_method(problem, source=source)

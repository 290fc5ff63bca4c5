"""B2TPT's search against a loop written from the specification; the choice without labels; prompts from latents."""

import inspect

import numpy as np
import pytest

from zeroshift.methods._shared.cma_es import CMAES
from zeroshift.methods._shared.towers import Patches
from zeroshift.methods.b2tpt import B2TPT, LatentPrompts
from zeroshift.testing import checks, make_problem
from zeroshift.testing.examples import ExampleText, ExampleVision
from zeroshift.zero_shot import posterior

SCALE = 20.0
SETTINGS = {"logit_scale": SCALE, "batch_size": 8, "population": 6, "generations": 3, "text_latent": 3}


@pytest.fixture
def problem():
    return make_problem(classes=5, dimension=12, samples=24, seed=3)


def make_method(problem, *, with_vision=True, **changes):
    vision = ExampleVision(problem.prototypes) if with_vision else None
    settings = {**SETTINGS, "vision_latent": 4, **changes}
    return B2TPT(problem.prototypes, text=ExampleText(problem.prototypes), vision=vision, **settings)


def log_softmax(scores):
    return (
        scores
        - np.log(np.exp(scores - scores.max(axis=1, keepdims=True)).sum(axis=1, keepdims=True))
        - scores.max(axis=1, keepdims=True)
    )


def as_specified(method, images):
    """Every candidate's loss, and the scores of the last generation's best, batch after batch."""
    prompts = method._prompts
    search = CMAES(np.zeros(prompts.size), sigma=1.0, population=method.population, seed=method.seed)
    answers, losses, chosen = [], [], None
    for start in range(0, len(images), method.batch_size):
        batch = images[start : start + method.batch_size]
        clip = log_softmax(SCALE * batch @ method.prototypes.T)
        for generation in range(method.generations):
            candidates, fitness, scores = search.ask(), [], []
            for z in candidates:
                text = method.text.features(prompts.context(z))
                x = batch if method.vision is None else method.vision.encode(batch, prompts.tokens(z)).features
                scores.append(SCALE * x @ text.T)
                own, loss = log_softmax(scores[-1]), 0.0
                for i in range(len(batch)):
                    label = clip[i].argmax()
                    if generation == method.generations - 1 and own[i].max() > clip[i].max():
                        label = own[i].argmax()
                    loss -= own[i, label] / len(batch)
                fitness.append(loss)
            search.tell(candidates, np.array(fitness))
            losses.append(fitness)
        best = int(np.argmin(fitness))
        answers.append(scores[best])
        chosen = candidates[best]
    return np.concatenate(answers), np.array(losses), chosen


@pytest.mark.parametrize("with_vision", [True, False], ids=["both sides", "text alone"])
def test_agrees_with_the_specification(problem, with_vision):
    method = make_method(problem, with_vision=with_vision)
    expected, losses, chosen = as_specified(method, problem.features)
    assert len(losses) == 9
    np.testing.assert_allclose(method.adapt_scores(problem.features), expected, atol=1e-9)
    np.testing.assert_allclose(method._chosen, chosen, atol=1e-12)
    assert method._search.generation == 9  # the search continues from batch to batch
    # `predict` uses the prompts chosen for the last batch.
    text = method.text.features(method._prompts.context(chosen))
    x = (
        method.vision.encode(problem.features, method._prompts.tokens(chosen)).features
        if with_vision
        else problem.features
    )
    np.testing.assert_allclose(method.predict_scores(problem.features), SCALE * x @ text.T, atol=1e-9)


def test_the_choice_is_the_lowest_loss_of_the_last_generation(problem, monkeypatch):
    """Not of all generations, and by the loss only."""
    method, calls = make_method(problem), []
    tell = CMAES.tell
    monkeypatch.setattr(CMAES, "tell", lambda self, *given: (calls.append(given), tell(self, *given))[1])
    method.adapt(problem.features[:8])
    candidates, losses = calls[-1]
    np.testing.assert_array_equal(method._chosen, candidates[losses.argmin()])
    assert len(calls) == 3


def test_the_search_lowers_the_loss(problem):
    """In expectation: the mean loss of the pseudo-labels' generations falls over a long search on one batch."""
    method = make_method(problem, generations=40, batch_size=24)
    _, losses, _ = as_specified(method, problem.features)
    assert losses[30:39].mean() < 0.8 * losses[:5].mean()


def test_no_function_takes_labels():
    """The published accuracy is the best of 120 candidates by true labels. No function here takes labels."""
    for call in (B2TPT.__init__, B2TPT.adapt, B2TPT._adapt_batch, B2TPT._evaluate, B2TPT._loss, CMAES.tell):
        assert not {"label", "labels", "targets", "accuracy"} & set(inspect.signature(call).parameters)


def test_before_the_first_batch_it_is_zero_shot_with_or_without_vision(problem):
    for with_vision in (True, False):
        answer = make_method(problem, with_vision=with_vision).predict(problem.features)
        np.testing.assert_allclose(answer, posterior(problem.features, problem.prototypes, SCALE), atol=1e-12)


def test_scale_of_the_random_matrices():
    class Text:
        context = np.random.default_rng(0).normal(0, 0.02, size=(8, 64))

    class Vision:
        width, patches = 64, Patches(inputs=768, mean=1e-3, std=0.01)

    settings = {"text_size": 50, "vision_size": 100, "tokens": 5, "sigma": 2.0}
    prompts = LatentPrompts(Text(), Vision(), **settings, seed=1)
    assert prompts.size == 150
    assert prompts._context_matrix.std() == pytest.approx(Text.context.std() / (50**0.5 * 2), rel=0.02)
    assert prompts._token_matrix.mean() == pytest.approx(1e-3 * 30.72, rel=0.05)
    assert prompts._token_matrix.std() == pytest.approx(0.01 * 30.72**0.5 * 2, rel=0.02)
    # A latent of the first generation gives a context with the standard deviation of the initial one.
    latent = 2.0 * np.random.default_rng(2).normal(size=150)
    assert prompts.context(latent).shape == (8, 64)
    assert prompts.context(latent).std() == pytest.approx(Text.context.std(), rel=0.2)
    assert prompts.tokens(latent).shape == (5, 64)
    assert not prompts.context(np.zeros(150)).any()
    # The matrix of each side depends on the seed only, not on whether the other side exists.
    alone = LatentPrompts(Text(), None, **settings, seed=1)
    assert alone.size == 50
    np.testing.assert_array_equal(alone._context_matrix, prompts._context_matrix)
    assert np.abs(LatentPrompts(Text(), None, **settings, seed=2)._context_matrix - alone._context_matrix).max() > 0


def test_loading_requires_both_models(problem, tmp_path):
    method = make_method(problem)
    method.adapt(problem.features[:16])
    method.save(tmp_path / "b2tpt.safetensors")
    with pytest.raises(TypeError, match="does not contain the model vision"):
        B2TPT.load(tmp_path / "b2tpt.safetensors")
    models = {"text": method.text, "vision": method.vision}
    again = B2TPT.load(tmp_path / "b2tpt.safetensors", **models)
    np.testing.assert_array_equal(again.adapt(problem.features[16:]), method.adapt(problem.features[16:]))


def test_text_of_other_classes_raises(problem):
    with pytest.raises(ValueError, match=r"text has 3 classes in d = 12, the prototypes have 5 in d = 12\. Fix: make"):
        B2TPT(problem.prototypes, text=ExampleText(problem.prototypes[:3]))


KINDS = (
    "calls_do_not_show_in_a_stream",
    "saved_and_continued_bit_for_bit",
    "wrong_shapes_are_refused",
    "reset_forgets",
)


@pytest.mark.parametrize("name", KINDS)
def test_common_checks_without_vision(name):
    dict(checks(B2TPT, {"vision": None}))[name]()


def test_the_context_has_eight_words():
    assert B2TPT.context_words.split() == ["X"] * 8

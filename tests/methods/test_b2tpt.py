"""B2TPT's search against a loop written from the specification; the honest choice; prompts from latents."""

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


def made(problem, *, seeing=True, **changes):
    vision = ExampleVision(problem.prototypes) if seeing else None
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
                text = method.text.features(prompts.words(z))
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


@pytest.mark.parametrize("seeing", [True, False], ids=["both sides", "text alone"])
def test_as_the_specification_says(problem, seeing):
    method = made(problem, seeing=seeing)
    expected, losses, chosen = as_specified(method, problem.features)
    assert len(losses) == 9
    np.testing.assert_allclose(method.adapt_scores(problem.features), expected, atol=1e-9)
    np.testing.assert_allclose(method._chosen, chosen, atol=1e-12)
    assert method._search.generation == 9  # the search goes on from batch to batch
    # What is asked afterwards is answered with the prompts of the last batch's choice.
    text = method.text.features(method._prompts.words(chosen))
    x = method.vision.encode(problem.features, method._prompts.tokens(chosen)).features if seeing else problem.features
    np.testing.assert_allclose(method.predict_scores(problem.features), SCALE * x @ text.T, atol=1e-9)


def test_the_choice_is_the_lowest_loss_of_the_last_generation(problem, monkeypatch):
    """Not of all generations, and by nothing but the loss."""
    method, told = made(problem), []
    tell = CMAES.tell
    monkeypatch.setattr(CMAES, "tell", lambda self, *given: (told.append(given), tell(self, *given))[1])
    method.adapt(problem.features[:8])
    candidates, losses = told[-1]
    np.testing.assert_array_equal(method._chosen, candidates[losses.argmin()])
    assert len(told) == 3


def test_the_search_lowers_the_loss(problem):
    """In expectation: the mean loss of the pseudo-labels' generations falls over a long search on one batch."""
    method = made(problem, generations=40, batch_size=24)
    _, losses, _ = as_specified(method, problem.features)
    assert losses[30:39].mean() < 0.8 * losses[:5].mean()


def test_no_label_comes_in():
    """The published accuracy is the best of 120 candidates by true labels. There is nothing here to give them to."""
    for call in (B2TPT.__init__, B2TPT.adapt, B2TPT._learned, B2TPT._tried, B2TPT._loss, CMAES.tell):
        assert not {"label", "labels", "targets", "accuracy"} & set(inspect.signature(call).parameters)


def test_before_the_first_batch_it_is_zero_shot_and_features_will_do(problem):
    for seeing in (True, False):
        answer = made(problem, seeing=seeing).predict(problem.features)
        np.testing.assert_allclose(answer, posterior(problem.features, problem.prototypes, SCALE), atol=1e-12)


def test_matrices_are_drawn_on_the_scale_of_what_they_stand_in_for():
    class Text:
        context = np.random.default_rng(0).normal(0, 0.02, size=(8, 64))

    class Vision:
        width, patches = 64, Patches(inputs=768, mean=1e-3, std=0.01)

    settings = {"text_size": 50, "vision_size": 100, "tokens": 5, "sigma": 2.0}
    prompts = LatentPrompts(Text(), Vision(), **settings, seed=1)
    assert prompts.size == 150
    assert prompts._to_words.std() == pytest.approx(Text.context.std() / (50**0.5 * 2), rel=0.02)
    assert prompts._to_tokens.mean() == pytest.approx(1e-3 * 30.72, rel=0.05)
    assert prompts._to_tokens.std() == pytest.approx(0.01 * 30.72**0.5 * 2, rel=0.02)
    # A latent of the search's first generation makes words as spread as those it replaces.
    latent = 2.0 * np.random.default_rng(2).normal(size=150)
    assert prompts.words(latent).shape == (8, 64)
    assert prompts.words(latent).std() == pytest.approx(Text.context.std(), rel=0.2)
    assert prompts.tokens(latent).shape == (5, 64)
    assert not prompts.words(np.zeros(150)).any()
    # Each side's matrix depends on the seed alone, not on whether the other is there.
    alone = LatentPrompts(Text(), None, **settings, seed=1)
    assert alone.size == 50
    np.testing.assert_array_equal(alone._to_words, prompts._to_words)
    assert np.abs(LatentPrompts(Text(), None, **settings, seed=2)._to_words - alone._to_words).max() > 0


def test_a_state_is_loaded_with_both_models(problem, tmp_path):
    method = made(problem)
    method.adapt(problem.features[:16])
    method.save(tmp_path / "b2tpt.safetensors")
    with pytest.raises(TypeError, match="does not hold text, a model"):
        B2TPT.load(tmp_path / "b2tpt.safetensors")
    models = {"text": method.text, "vision": method.vision}
    again = B2TPT.load(tmp_path / "b2tpt.safetensors", **models)
    np.testing.assert_array_equal(again.adapt(problem.features[16:]), method.adapt(problem.features[16:]))


def test_text_of_other_classes_is_refused(problem):
    with pytest.raises(ValueError, match=r"text has 3 classes in d = 12, the prototypes have 5 in d = 12\. Fix: make"):
        B2TPT(problem.prototypes, text=ExampleText(problem.prototypes[:3]))


KINDS = (
    "calls_do_not_show_in_a_stream",
    "saved_and_continued_bit_for_bit",
    "wrong_shapes_are_refused",
    "reset_forgets",
)


@pytest.mark.parametrize("name", KINDS)
def test_promises_hold_for_features_alone(name):
    dict(checks(B2TPT, {"vision": None}))[name]()


def test_the_words_it_replaces_are_eight():
    assert B2TPT.context_words.split() == ["X"] * 8

"""B2TPT's search against a loop written from the specification; the choice without labels; prompts from latents."""

import numpy as np
import pytest

from saved import saved_state
from zeroshift.methods._shared.cma_es import CMAES
from zeroshift.methods.b2tpt import B2TPT
from zeroshift.serialization import read_header
from zeroshift.testing import checks, make_problem
from zeroshift.testing.examples import ExampleText, ExampleVision
from zeroshift.zero_shot import log_softmax, posterior

SCALE = 20.0
SETTINGS = {"logit_scale": SCALE, "batch_size": 8, "population": 6, "generations": 3, "text_latent": 3}


@pytest.fixture
def problem():
    return make_problem(classes=5, dimension=12, samples=24, seed=3)


def make_method(problem, *, with_vision=True, **changes):
    vision = ExampleVision(problem.prototypes) if with_vision else None
    settings = {**SETTINGS, "vision_latent": 4, **changes}
    return B2TPT(problem.prototypes, text=ExampleText(problem.prototypes), vision=vision, **settings)


def prompts_of(method, z):
    """The context and the tokens of a latent vector, by matrices on the scales that the specification states."""
    text, vision = method.text, method.vision
    draws, sizes = np.random.default_rng(method.seed).spawn(2), (method.text_latent, method.vision_latent)
    context = draws[0].normal(0, text.context.std() / sizes[0] ** 0.5, size=(text.context.size, sizes[0]))
    context = (context @ z[: sizes[0]]).reshape(text.context.shape)
    if vision is None:
        return context, None
    mean, std = vision.patches.mean * 3072 / sizes[1], vision.patches.std * (3072 / sizes[1]) ** 0.5
    tokens = draws[1].normal(mean, std, size=(method.vision_tokens * vision.width, sizes[1]))
    return context, (tokens @ z[sizes[0] :]).reshape(method.vision_tokens, vision.width)


def scores_under(method, images, z):
    context, tokens = prompts_of(method, z)
    x = images if method.vision is None else method.vision.encode(images, tokens).features
    return SCALE * x @ method.text.features(context).T


def as_specified(method, images):
    """Every candidate's loss, and the scores of the last generation's best, batch after batch."""
    size = method.text_latent + (0 if method.vision is None else method.vision_latent)
    search = CMAES(np.zeros(size), sigma=1.0, population=method.population, seed=method.seed)
    answers, losses, chosen = [], [], None
    for start in range(0, len(images), method.batch_size):
        batch = images[start : start + method.batch_size]
        clip = log_softmax(SCALE * batch @ method.prototypes.T)
        for generation in range(method.generations):
            candidates, fitness = search.ask(), []
            scores = [scores_under(method, batch, z) for z in candidates]
            for own in map(log_softmax, scores):
                loss = 0.0
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
def test_agrees_with_the_specification(problem, with_vision, tmp_path):
    method = make_method(problem, with_vision=with_vision)
    expected, losses, chosen = as_specified(method, problem.features)
    assert len(losses) == 9
    np.testing.assert_allclose(method.adapt_scores(problem.features), expected, atol=1e-9)
    np.testing.assert_allclose(saved_state(method, tmp_path)["chosen"], chosen, atol=1e-12)
    # The search continues from batch to batch.
    assert read_header(tmp_path / "state.safetensors")["values"]["search"]["generation"] == 9
    # `predict` uses the prompts chosen for the last batch.
    found = method.predict_scores(problem.features)
    np.testing.assert_allclose(found, scores_under(method, problem.features, chosen), atol=1e-9)


def test_the_search_lowers_the_loss(problem):
    """In expectation: the mean loss of the pseudo-labels' generations falls over a long search on one batch."""
    _, losses, _ = as_specified(make_method(problem, generations=40, batch_size=24), problem.features)
    assert losses[30:39].mean() < 0.8 * losses[:5].mean()


def test_before_the_first_batch_it_is_zero_shot_with_or_without_vision(problem):
    for with_vision in (True, False):
        answer = make_method(problem, with_vision=with_vision).predict(problem.features)
        np.testing.assert_allclose(answer, posterior(problem.features, problem.prototypes, SCALE), atol=1e-12)


def test_candidates_of_the_first_generation_vary_like_the_initial_context(problem):
    """Whatever the standard deviation of the search is."""
    contexts = []

    class Recorded(ExampleText):
        def features(self, context):
            contexts.append(context)
            return super().features(context)

    text = Recorded(problem.prototypes)
    settings = {**SETTINGS, "population": 50, "generations": 1, "text_latent": 50, "sigma": 4.0}
    B2TPT(problem.prototypes, text=text, **settings).adapt(problem.features[:2])
    assert np.std(contexts[:50]) == pytest.approx(text.context.std(), rel=0.1)


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

"""DynaPrompt against the authors' loop on a tiny CLIP, a plain loop with torch's gradients, and its own rules."""

import json

import numpy as np
import pytest
import torch

from goldens import golden
from tiny_clip import exact_text, exact_views, initial_context, text_features, tiny_scale, tiny_text, tiny_views
from zeroshift.files import FileFormatError
from zeroshift.methods import ZeroShot
from zeroshift.methods.dynaprompt import DynaPrompt, select_prompts
from zeroshift.serialization import KIND, STATE_SCHEMA
from zeroshift.tensor_files import read_tensors, write_tensors
from zeroshift.testing import checks, make_problem
from zeroshift.testing.examples import ExampleText

AUTHORS = golden("tiny_clip_prompt_tuning")
ROUNDING = 2e-5  # see test_tpt.py
RANDOM = AUTHORS["init_dynaprompt_rand"]
SETTING = {"view_ratio": 0.2, "n_prompts": 5, "residuals": RANDOM}


def tuner(text=None, **parameters):
    text = text or exact_text()
    return DynaPrompt(text.features(text.context), text=text, logit_scale=tiny_scale(), **parameters)


def example(**parameters):
    problem = make_problem(samples=240)
    method = DynaPrompt(problem.prototypes, text=ExampleText(problem.prototypes), logit_scale=20.0, **parameters)
    return method, problem.features.reshape(-1, 12, 16)


def test_the_authors_logits_residuals_and_order():
    method = tuner(tiny_text(), mode="released", **SETTING)
    orders = [json.loads(line) for line in json.loads(str(AUTHORS["log_dynaprompt_rand"])) if line.startswith("[")]
    for image, views in enumerate(tiny_views()):
        assert list(method.buffer.order) == orders[image]
        scores = method.adapt_views_scores(views)
        expected = AUTHORS["logits_dynaprompt_rand"][image]
        np.testing.assert_allclose(scores, expected, rtol=0, atol=ROUNDING)
        assert scores.argmax() == expected.argmax()
        np.testing.assert_allclose(method.buffer.residuals, AUTHORS["ctx_dynaprompt_rand"][image], rtol=0, atol=1e-6)


def plain_selection(scores, first):
    """The selection of the paper, from logits (V, M, K)."""
    y, classes = scores.softmax(-1), scores[0].argmax(-1)
    entropies = -(y * y.log()).sum(-1).mean(0)
    of_class = torch.stack([y[:, i, k] for i, k in enumerate(classes)], dim=1)
    differences = (of_class[0] - of_class[1:]).mean(0)
    better = (entropies < entropies[first]) & (differences > differences[first])
    return [*better.nonzero()[:, 0].tolist(), first]


def test_a_plain_loop_of_the_paper_agrees():
    """The whole buffer is a parameter of torch's AdamW, with gradients through every prompt."""
    method = tuner(**SETTING)
    buffer = torch.tensor(RANDOM).double().requires_grad_()
    order, uses, several = list(range(5)), [0] * 5, 0
    for views in exact_views()[:7]:
        image = torch.tensor(views)
        if 0 not in uses:
            uses[order[0]] = 0
            with torch.no_grad():
                buffer[order[0]] = 0
        optimiser = torch.optim.AdamW([buffer], 5e-3)
        scores = torch.stack([tiny_scale() * image @ text_features(initial_context() + r).T for r in buffer], dim=1)
        chosen = plain_selection(scores.detach(), order[0])
        for i in chosen:
            order = [*(n for n in order if n != i), i]
            uses[i] += 1
        mine = scores[:, chosen]
        kept = (-(mine.softmax(-1) * mine.log_softmax(-1)).sum(-1)).mean(1).argsort()[:6]
        mean = mine[kept].softmax(-1).mean(0)
        (-(mean * mean.log()).sum(-1)).mean().backward()
        optimiser.step()
        with torch.no_grad():
            text = torch.stack([text_features(initial_context() + buffer[i]) for i in chosen])
            expected = (tiny_scale() * text @ image[0]).mean(0)
        buffer.grad = None
        answer = method.adapt_views_scores(views)
        assert list(method.buffer.chosen) == chosen
        assert (list(method.buffer.order), list(method.buffer.uses)) == (order, uses)
        np.testing.assert_allclose(method.buffer.residuals, buffer.detach(), rtol=0, atol=1e-9)
        np.testing.assert_allclose(answer, expected, rtol=0, atol=1e-7)
        several += len(chosen) > 1
    assert several > 2


def test_released_selection_by_hand():
    """By entropy 4 3 2 1 0, by difference 0 1 2 3 4: for reference 2, of rank 2, {1, 0} have lower entropy, {0, 1} are
    cut off the list of differences, and 0 and 1, used as ranks, are prompts 4 and 3, those of highest entropy."""
    ratings = np.arange(5.0), np.arange(5.0)[::-1]
    assert select_prompts(*ratings, 2, "released") == (4, 3, 2)
    assert select_prompts(*ratings, 4, "released") == (4,)
    # The most confident prompt is compared with itself, and selected.
    assert select_prompts(*ratings, 0, "released") == (4, 0)
    # An index that equals the reference's own rank selects it twice.
    assert select_prompts(np.array([3.0, 1.0, 2.0]), np.array([0.0, 2.0, 1.0]), 2, "released") == (2, 2)


@pytest.mark.parametrize("mode", ["paper", "released"])
def test_equal_prompts_are_used_in_order(mode):
    method, images = example(n_prompts=4, mode=mode, rate=0.0)
    for expected in (0, 1, 2, 3, 0):
        first = method.buffer.order[0]
        method.adapt_views(images[0])
        assert first == method.buffer.chosen[-1] == expected
        assert mode == "released" or method.buffer.chosen == (expected,)


def test_a_single_prompt_is_never_reset():
    method, images = example(n_prompts=1)
    method.adapt_views(images[:4])
    assert method.buffer.uses == (4,)
    assert np.abs(method.buffer.residuals).max() > 2 * method.rate


def test_predict_uses_the_prompts_chosen_last():
    method, images = example(n_prompts=4)
    zero_shot = ZeroShot(method.prototypes, logit_scale=20.0).predict(images[:, 0])
    np.testing.assert_allclose(method.predict(images[:, 0]), zero_shot, rtol=0, atol=1e-12)
    for views in images[:6]:
        answer = method.adapt_views_scores(views)
        np.testing.assert_allclose(method.predict_scores(views[0]), answer, rtol=0, atol=1e-12)
    buffer = method.buffer
    each = [method.text.features(method.text.context + buffer.residuals[i]) for i in buffer.chosen]
    expected = 20.0 * np.mean([images[9, 0] @ text.T for text in each], axis=0)
    np.testing.assert_allclose(method.predict_scores(images[9, 0]), expected, rtol=0, atol=1e-12)


def test_text_features_of_initial_prompts_are_not_computed_again():
    method, images = example(n_prompts=4)
    calls, features = [], method.text.features
    method.text.features = lambda context: calls.append(1) or features(context)
    method.adapt_views(images[0])
    assert len(calls) == 1  # of the one prompt that was tuned


@pytest.mark.parametrize(
    "wrong", [{"order": [0, 0, 1]}, {"order": [0.0, 1, 2]}, {"uses": [0, 0]}, {"uses": [0, -1, 0]}, {"chosen": [3]}]
)
def test_a_state_of_another_buffer_is_refused(tmp_path, wrong):
    method, images = example(n_prompts=3)
    method.adapt_views(images[:2])
    method.save(path := tmp_path / "state.safetensors")
    arrays, header = read_tensors(path, kind=KIND, schema=STATE_SCHEMA)
    write_tensors(path, arrays, {**header, "values": {**header["values"], **wrong}})
    with pytest.raises(FileFormatError, match="do not fit 3 prompts"):
        DynaPrompt.load(path, text=method.text)


@pytest.mark.parametrize(
    ("residuals", "kind", "message"),
    [
        ([[0.0]], TypeError, "residuals must be an array; got list"),
        (np.zeros((4, 2, 3)), ValueError, r"residuals must have the shape \(3, 2, 3\); got \(4, 2, 3\)"),
        (np.full((3, 2, 3), np.nan), ValueError, "residuals must hold finite numbers"),
    ],
    ids=["list", "shape", "nan"],
)
def test_residuals_that_do_not_fit_raise(residuals, kind, message):
    with pytest.raises(kind, match=message):
        example(n_prompts=3, residuals=residuals)


def test_given_residuals_are_initial_values_and_do_not_change():
    residuals = np.random.default_rng(4).normal(size=(3, 2, 3))
    method, images = example(n_prompts=3, residuals=residuals)
    np.testing.assert_array_equal(method.buffer.residuals, residuals)
    method.adapt_views(images[:3])
    np.testing.assert_array_equal(method.residuals, residuals)
    method.reset()
    np.testing.assert_array_equal(method.buffer.residuals, residuals)


QUICK = (
    "views_all_alike_are_one_sample",
    "calls_do_not_show_in_a_stream",
    "class_order_does_not_matter",
    "torch_equals_numpy",
)


@pytest.mark.parametrize("name", QUICK)
def test_common_checks_of_the_released_selection(name):
    residuals = np.random.default_rng(5).normal(scale=0.1, size=(3, 2, 3))
    dict(checks(DynaPrompt, {"mode": "released", "residuals": residuals}))[name]()

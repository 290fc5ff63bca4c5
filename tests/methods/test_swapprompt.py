"""SwapPrompt against a plain loop over torch's own gradients and optimiser, and its rules."""

import numpy as np
import pytest
import torch

from prompt_loops import clip_text, images, in_torch
from tiny_clip import tiny_scale, tiny_text, tiny_views
from zeroshift.arrays import Backend, Rows
from zeroshift.methods import swapprompt
from zeroshift.methods.swapprompt import (
    ImageViews,
    PseudoLabels,
    SwapPrompt,
    most_confident_per_class,
    pseudo_loss,
    swap_loss,
    two_views,
)
from zeroshift.testing.examples import ExampleText
from zeroshift.zero_shot import posterior

SCALE = 20.0
SMALL = {"epochs": 6, "n_surest": 3, "swap_weight": 0.7, "momentum": 0.6, "rate": 0.02, "weight_decay": 0.1}


def cross_entropy(targets, logits):
    return -(targets * logits.log_softmax(1)).sum(1)


def plain_loop(views, features, context, scale, *, epochs, n_surest, swap_weight, momentum, rate, weight_decay):
    """The specification, with the whole set for a batch: logits, and both contexts. Views 1 and 2, or the last."""
    online, target = context.clone().requires_grad_(), context.clone()
    optimiser = torch.optim.AdamW([online], lr=rate, weight_decay=weight_decay)
    with torch.no_grad():
        views = views.to(features(target).dtype)
        y = (scale * views[:, 0] @ features(target).T).softmax(1)
    labels = y.argmax(1)
    chosen = []
    for k in range(y.shape[1]):
        rows = [i for i in range(len(y)) if labels[i] == k]
        chosen += sorted(rows, key=lambda i: -float(y[i, k]))[:n_surest]
    x, x1, x2 = views[chosen, 0], views[:, 1 if views.shape[1] > 2 else 0], views[:, min(2, views.shape[1] - 1)]
    for _ in range(epochs):
        with torch.no_grad():
            predicted1, predicted2 = ((scale * some @ features(target).T).softmax(1) for some in (x1, x2))
        text = features(online)
        swap = cross_entropy(predicted1, scale * x2 @ text.T) + cross_entropy(predicted2, scale * x1 @ text.T)
        pseudo = torch.nn.functional.cross_entropy(scale * x @ text.T, labels[chosen])
        optimiser.zero_grad()
        (pseudo + swap_weight * swap.mean()).backward()
        optimiser.step()
        target = momentum * target + (1 - momentum) * online.detach()
    with torch.no_grad():
        return scale * views[:, 0] @ features(target).T, online.detach(), target


@pytest.mark.parametrize("swap_weight", [0.0, 0.7, 20.0])
@pytest.mark.parametrize("n_views", [1, 2, 3])
def test_a_plain_loop_agrees(n_views, swap_weight):
    prototypes, views = images(40, n_views)
    text, parameters = ExampleText(prototypes), {**SMALL, "swap_weight": swap_weight}
    start = torch.tensor(text.context)
    expected, online, target = plain_loop(torch.tensor(views), in_torch(text), start, SCALE, **parameters)
    method = SwapPrompt(prototypes, text=text, logit_scale=SCALE, **parameters)
    np.testing.assert_allclose(method.adapt_views_scores(views), expected, rtol=0, atol=1e-9)
    np.testing.assert_allclose(method.online, online, rtol=0, atol=1e-10)
    np.testing.assert_allclose(method.target, target, rtol=0, atol=1e-10)
    assert np.abs(method.target - text.context).max() > 0.01
    np.testing.assert_allclose(method.predict_scores(views[:, 0]), expected, rtol=0, atol=1e-9)


def test_a_plain_loop_agrees_on_a_tiny_clip():
    text, views = tiny_text(), tiny_views()[:, :3]
    parameters = {**SMALL, "epochs": 3, "rate": 2e-3}
    expected, online, target = plain_loop(
        torch.tensor(views),
        clip_text,
        torch.tensor(text.context),
        tiny_scale(),
        **parameters,
    )
    method = SwapPrompt(text.features(text.context), text=text, logit_scale=tiny_scale(), **parameters)
    scores = method.adapt_views_scores(views)
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-4)
    np.testing.assert_array_equal(scores.argmax(axis=1), expected.argmax(1))
    np.testing.assert_allclose(method.online, online, rtol=0, atol=2e-6)
    np.testing.assert_allclose(method.target, target, rtol=0, atol=2e-6)
    assert np.abs(method.target - text.context).max() > 1e-3


def test_losses_and_gradients_agree_with_torch():
    prototypes, views = images(40, 3)
    other = np.roll(prototypes, 1, axis=0)
    x1, x2 = torch.tensor(views[:, 1]), torch.tensor(views[:, 2])
    online, target = torch.tensor(prototypes, requires_grad=True), torch.tensor(other)
    predicted1, predicted2 = ((SCALE * some @ target.T).softmax(1) for some in (x1, x2))
    swap = cross_entropy(predicted1, SCALE * x2 @ online.T) + cross_entropy(predicted2, SCALE * x1 @ online.T)
    (expected,) = torch.autograd.grad(swap.sum(), online)
    loss, gradient = swap_loss((views[:, 1], views[:, 2]), prototypes, other, SCALE)
    np.testing.assert_allclose(loss, swap.sum().detach(), rtol=1e-12)
    np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-10)
    classes = np.arange(40) % 5
    pseudo = torch.nn.functional.cross_entropy(SCALE * x1 @ online.T, torch.tensor(classes), reduction="sum")
    (expected,) = torch.autograd.grad(pseudo, online)
    loss, gradient = pseudo_loss(PseudoLabels(views[:, 1], classes), prototypes, SCALE)
    np.testing.assert_allclose(loss, pseudo.detach(), rtol=1e-12)
    np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-10)


def test_swap_loss_of_equal_views_and_prompts_is_the_entropy_with_gradient_zero():
    prototypes, views = images(40, 3)
    x = views[:, 0]
    y = posterior(x, prototypes, SCALE)
    loss, gradient = swap_loss((x, x), prototypes, prototypes, SCALE)
    np.testing.assert_allclose(loss / 2, -(y * np.log(y)).sum(), rtol=1e-12)
    np.testing.assert_allclose(gradient, 0, atol=1e-10)


def test_momentum_one_freezes_the_target_and_zero_makes_it_the_online_prompt():
    prototypes, views = images(40, 3)
    text = ExampleText(prototypes)
    frozen = SwapPrompt(prototypes, text=text, logit_scale=SCALE, **{**SMALL, "momentum": 1.0})
    np.testing.assert_allclose(frozen.adapt_views(views), posterior(views[:, 0], prototypes, SCALE), atol=1e-12)
    np.testing.assert_array_equal(frozen.target, text.context)
    assert np.abs(frozen.online - text.context).max() > 0.01
    same = SwapPrompt(prototypes, text=text, logit_scale=SCALE, **{**SMALL, "momentum": 0.0})
    same.adapt_views(views)
    np.testing.assert_array_equal(same.target, same.online)


def test_without_swapped_predictions_the_other_views_do_not_matter():
    prototypes, views = images(40, 3)
    alone = {**SMALL, "swap_weight": 0.0}
    one = SwapPrompt(prototypes, text=ExampleText(prototypes), logit_scale=SCALE, **alone).adapt(views[:, 0])
    several = SwapPrompt(prototypes, text=ExampleText(prototypes), logit_scale=SCALE, **alone).adapt_views(views)
    np.testing.assert_array_equal(one, several)
    both = SwapPrompt(prototypes, text=ExampleText(prototypes), logit_scale=SCALE, **SMALL).adapt_views(views)
    assert np.abs(both - several).max() > 1e-4


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_pseudo_labels_are_the_most_confident_per_class(library):
    prototypes, views = images(60, 3)
    y = posterior(views[:, 0], prototypes, SCALE)
    expected = set()
    for k in range(5):
        rows = np.flatnonzero(y.argmax(axis=1) == k)
        expected |= {(k, *views[i, 0]) for i in rows[np.argsort(-y[rows, k])][:4]}
    given, text = (views, prototypes) if library == "numpy" else (torch.tensor(views), torch.tensor(prototypes))
    backend = Backend.of(text)
    labels = most_confident_per_class(ImageViews(Rows(given, backend, backend.xp.float64), 5), text, SCALE, 4)
    found = {(int(k), *x.tolist()) for k, x in zip(labels.classes, labels.features, strict=True)}
    assert found == expected
    assert len(found) > 8


def test_two_views_other_than_the_image_are_drawn_per_epoch():
    draw = np.random.default_rng(0)
    pairs = [two_views(draw, 5) for _ in range(200)]
    assert {number for pair in pairs for number in pair} == {1, 2, 3, 4}
    assert all(first != second for first, second in pairs)
    assert [two_views(draw, n) for n in (1, 2)] == [(0, 0), (0, 1)]
    prototypes, views = images(40, 6)
    text = ExampleText(prototypes)
    first, again, other = (
        SwapPrompt(prototypes, text=text, logit_scale=SCALE, seed=seed, **SMALL).adapt_views(views)
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-9
    # If all views except the image are equal, it does not matter which two are drawn.
    equal = np.concatenate([views[:, :1], np.repeat(views[:, 1:2], 5, axis=1)], axis=1)
    six, three = (
        SwapPrompt(prototypes, text=text, logit_scale=SCALE, **SMALL).adapt_views(some)
        for some in (equal, equal[:, :3])
    )
    np.testing.assert_array_equal(six, three)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_results_do_not_depend_on_order_or_block_size(library, monkeypatch):
    prototypes, views = images(40, 5)
    order = np.random.default_rng(0).permutation(len(views))
    if library == "torch":
        prototypes, views = torch.tensor(prototypes), torch.tensor(views)
    text = ExampleText(prototypes)
    expected = SwapPrompt(prototypes, text=text, logit_scale=SCALE, **SMALL).adapt_views(views)
    shuffled = SwapPrompt(prototypes, text=text, logit_scale=SCALE, **SMALL).adapt_views(views[order])
    np.testing.assert_allclose(shuffled, expected[order], rtol=0, atol=1e-10)
    monkeypatch.setattr(swapprompt, "WORK_NUMBERS", 7 * 12)
    monkeypatch.setattr(swapprompt, "LABEL_ROWS", 4)
    in_pieces = SwapPrompt(prototypes, text=text, logit_scale=SCALE, **SMALL).adapt_views(views)
    np.testing.assert_allclose(in_pieces, expected, rtol=0, atol=1e-10)


def test_views_from_a_memory_mapped_half_precision_file(tmp_path):
    prototypes, views = images(40, 5)
    text, narrow = ExampleText(prototypes), views.astype("float16")
    np.save(tmp_path / "views.npy", narrow)
    mapped = np.load(tmp_path / "views.npy", mmap_mode="r")
    expected = SwapPrompt(prototypes, text=text, logit_scale=SCALE, **SMALL).adapt_views(narrow.astype("float64"))
    answer = SwapPrompt(prototypes, text=text, logit_scale=SCALE, **SMALL).adapt_views(mapped)
    assert answer.dtype == np.float32
    np.testing.assert_allclose(answer, expected, rtol=0, atol=1e-6)


def test_each_set_starts_from_the_initial_prompt():
    prototypes, views = images(40, 3)
    method = SwapPrompt(prototypes, text=ExampleText(prototypes), logit_scale=SCALE, **SMALL)
    expected = method.adapt_views(views)
    method.adapt(views[:10, 0])
    assert method.n_seen == 10
    np.testing.assert_array_equal(method.adapt_views(views), expected)


class InterruptingText(ExampleText):
    """Raises KeyboardInterrupt at the n-th gradient."""

    remaining_calls = None

    def pull_back(self, context, upstream):
        if self.remaining_calls is not None:
            self.remaining_calls -= 1
            if self.remaining_calls == 0:
                raise KeyboardInterrupt
        return super().pull_back(context, upstream)


@pytest.mark.parametrize("stop", [1, 3, 6])
def test_an_interrupted_set_changes_nothing(stop):
    prototypes, views = images(40, 3)
    text = InterruptingText(prototypes)
    method = SwapPrompt(prototypes, text=text, logit_scale=SCALE, **SMALL)
    method.adapt_views(views[:20])
    before, online = method.predict(views[:, 0]), method.online
    text.remaining_calls = stop
    with pytest.raises(KeyboardInterrupt):
        method.adapt_views(views)
    text.remaining_calls = None
    assert method.n_seen == 20
    np.testing.assert_array_equal(method.predict(views[:, 0]), before)
    np.testing.assert_array_equal(method.online, online)


def test_tuning_lowers_the_loss_on_the_pseudo_labels():
    prototypes, views = images(40, 3)
    method = SwapPrompt(prototypes, text=ExampleText(prototypes), logit_scale=SCALE, **{**SMALL, "momentum": 0.0})
    rows = ImageViews(Rows(views, Backend.of(views), np.float64), 5)
    labels = most_confident_per_class(rows, prototypes, SCALE, 3)
    before, _ = pseudo_loss(labels, prototypes, SCALE)
    method.adapt_views(views)
    after, _ = pseudo_loss(labels, method.text.features(method.online), SCALE)
    assert after < 0.95 * before

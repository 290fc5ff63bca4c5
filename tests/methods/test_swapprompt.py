"""SwapPrompt against a plain loop over torch's own gradients and optimiser, and its rules."""

import numpy as np
import pytest
import torch

from prompt_loops import images, in_torch
from zeroshift.features import checks
from zeroshift.methods.swapprompt import SwapPrompt, two_views
from zeroshift.testing.examples import ExampleText

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


def test_two_views_other_than_the_image_are_drawn_per_epoch():
    draw = np.random.default_rng(0)
    pairs = [two_views(draw, 5) for _ in range(200)]
    assert {number for pair in pairs for number in pair} == {1, 2, 3, 4}
    assert all(first != second for first, second in pairs)
    assert [two_views(draw, n) for n in (1, 2)] == [(0, 0), (0, 1)]
    prototypes, views = images(40, 6)
    text = ExampleText(prototypes)
    # If all views except the image are equal, it does not matter which two are drawn.
    equal = np.concatenate([views[:, :1], np.repeat(views[:, 1:2], 5, axis=1)], axis=1)
    six, three = (
        SwapPrompt(prototypes, text=text, logit_scale=SCALE, **SMALL).adapt_views(some)
        for some in (equal, equal[:, :3])
    )
    np.testing.assert_array_equal(six, three)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_results_do_not_depend_on_the_order_or_the_size_of_parts(library, monkeypatch):
    prototypes, views = images(40, 5)
    order = np.random.default_rng(0).permutation(len(views))
    if library == "torch":
        prototypes, views = torch.tensor(prototypes), torch.tensor(views)
    text = ExampleText(prototypes)
    expected = SwapPrompt(prototypes, text=text, logit_scale=SCALE, **SMALL).adapt_views(views)
    shuffled = SwapPrompt(prototypes, text=text, logit_scale=SCALE, **SMALL).adapt_views(views[order])
    np.testing.assert_allclose(shuffled, expected[order], rtol=0, atol=1e-10)
    monkeypatch.setattr(checks, "BLOCK_ENTRIES", 7 * 12)
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

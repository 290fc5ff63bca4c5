"""HisTPT against a plain loop over torch's own gradients and optimiser, and the rules of its banks."""

import numpy as np
import pytest
import torch

from prompt_loops import images, in_torch
from zeroshift.methods.histpt import HisTPT
from zeroshift.testing import checks
from zeroshift.testing.examples import ExampleText

SCALE = 20.0
SMALL = {"local_size": 4, "hard_size": 3, "n_hard": 2, "momentum": 0.8, "rate": 0.03, "view_ratio": 0.3}
DEFAULTS = {
    "local_size": 32,
    "hard_size": 32,
    "n_hard": 16,
    "momentum": 0.99,
    "rate": 5e-3,
    "weight_decay": 0.01,
    "view_ratio": 0.1,
}


def plain_loop(
    views, features, context, scale, *, local_size, hard_size, n_hard, momentum, rate, weight_decay, view_ratio
):
    """The specification, image by image: logits of the prompt and of the banks, the context, both queues."""
    context = context.clone().requires_grad_()
    optimiser = torch.optim.AdamW([context], lr=rate, weight_decay=weight_decay)
    prompted, fused_all = [], []
    for number, image in enumerate(views):
        text = features(context)
        logits = scale * image.to(text.dtype) @ text.T
        order = (-(logits.softmax(1) * logits.log_softmax(1)).sum(1)).argsort(stable=True)
        kept = logits[order[: max(int(len(image) * view_ratio), 1)]]
        mean = kept.detach().softmax(1).mean(0)
        entropy = float(-(mean * mean.log()).sum())
        now = text.detach()
        if number == 0:
            local, entropies, hard, average = [now] * local_size, [entropy] * local_size, [now] * hard_size, now
        else:
            local, entropies = [now, *local[:-1]], [entropy, *entropies[:-1]]
            hardest = sorted(range(local_size), key=lambda i: -entropies[i])[:n_hard]
            hard = [torch.stack([local[i] for i in hardest]).mean(0), *hard[:-1]]
            average = momentum * average + (1 - momentum) * 0.5 * (local[-1] + hard[-1])
        banks = [average, torch.stack(local).mean(0), torch.stack(hard).mean(0)]
        by_bank = torch.stack([scale * image[0].to(text.dtype) @ bank.T for bank in banks])
        weights = (by_bank.softmax(1) * by_bank.log_softmax(1)).sum(1).softmax(0)
        fused = (weights[:, None] * by_bank).sum(0)
        label = fused.softmax(0).argmax()
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(kept, label.expand(len(kept))).backward()
        optimiser.step()
        prompted.append(scale * image[0].to(text.dtype) @ features(context).detach().T)
        fused_all.append(fused.detach())
    return (
        torch.stack(prompted),
        torch.stack(fused_all),
        context.detach(),
        torch.stack(local),
        torch.stack(hard),
        average,
    )


@pytest.mark.parametrize("parameters", [{}, SMALL, {**SMALL, "local_size": 1, "hard_size": 1, "n_hard": 1}])
@pytest.mark.parametrize("n_views", [1, 7])
def test_a_plain_loop_agrees(parameters, n_views):
    prototypes, views = images(24, n_views)
    text = ExampleText(prototypes)
    prompted, fused, context, local, hard, average = plain_loop(
        torch.tensor(views), in_torch(text), torch.tensor(text.context), SCALE, **{**DEFAULTS, **parameters}
    )
    method = HisTPT(prototypes, text=text, logit_scale=SCALE, **parameters)
    np.testing.assert_allclose(method.adapt_views_scores(views), prompted, rtol=0, atol=1e-9)
    np.testing.assert_allclose(method.context, context, rtol=0, atol=1e-10)
    assert np.abs(method.context - text.context).max() > 0.01
    for name, expected in (("local", local), ("hard", hard), ("global", average)):
        np.testing.assert_allclose(method.banks[name], expected, rtol=0, atol=1e-10)
    method = HisTPT(prototypes, text=text, logit_scale=SCALE, answer="fused", **parameters)
    np.testing.assert_allclose(method.adapt_views_scores(views), fused, rtol=0, atol=1e-9)
    np.testing.assert_allclose(method.context, context, rtol=0, atol=1e-10)


def test_the_first_image_fills_every_bank_and_is_predicted_zero_shot():
    prototypes, views = images(24, 7)
    method = HisTPT(prototypes, text=ExampleText(prototypes), logit_scale=SCALE, answer="fused")
    scores = method.adapt_views_scores(views[0])
    np.testing.assert_allclose(scores, SCALE * views[0, 0] @ prototypes.T, rtol=0, atol=1e-10)
    banks = method.banks
    assert (banks["local"].shape, banks["hard"].shape, banks["global"].shape) == ((32, 5, 12), (32, 5, 12), (5, 12))
    for bank in banks.values():
        np.testing.assert_allclose(bank, np.broadcast_to(prototypes, bank.shape), rtol=0, atol=1e-12)


def test_predict_uses_the_present_prompt_or_banks():
    prototypes, views = images(24, 7)
    text = ExampleText(prototypes)
    method = HisTPT(prototypes, text=text, logit_scale=SCALE, **SMALL)
    last = method.adapt_views_scores(views)[-1]
    np.testing.assert_allclose(method.predict_scores(views[-1, 0]), last, rtol=0, atol=1e-12)
    x = views[:, 0]
    np.testing.assert_allclose(
        method.predict_scores(x), SCALE * x @ text.features(method.context).T, rtol=0, atol=1e-12
    )
    fused = HisTPT(prototypes, text=text, logit_scale=SCALE, answer="fused", **SMALL)
    last = fused.adapt_views_scores(views)[-1]
    np.testing.assert_allclose(fused.predict_scores(views[-1, 0]), last, rtol=0, atol=1e-12)


def test_n_hard_above_local_size_raises():
    prototypes, _ = images(24, 7)
    with pytest.raises(ValueError, match=r"n_hard must be at most local_size, 8.*got 16\. Fix: n_hard=8"):
        HisTPT(prototypes, text=ExampleText(prototypes), local_size=8)


FUSED = (
    "predict_before_adapt_is_zero_shot",
    "predict_is_pure",
    "saved_and_continued_bit_for_bit",
    "class_order_does_not_matter",
    "views_all_alike_are_one_sample",
    "torch_equals_numpy",
)


@pytest.mark.parametrize("name", FUSED)
def test_common_checks_with_fused_banks(name):
    dict(checks(HisTPT, {"answer": "fused", **SMALL}))[name]()

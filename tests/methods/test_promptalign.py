"""PromptAlign against its specification in torch, on the example encoder; its alignment; its errors."""

import numpy as np
import pytest
import torch

from zeroshift.methods.promptalign import PromptAlign, alignment
from zeroshift.testing import make_problem
from zeroshift.testing.examples import MAPLE_REACH, ExampleMaple, example_token_source

SCALE = 20.0
RATIO = 0.4


@pytest.fixture
def problem():
    return make_problem(classes=5, dimension=12, samples=60, seed=3)


@pytest.fixture
def views(problem):
    """(4, 10, d): ten views of each of four images."""
    draw = np.random.default_rng(4)
    rows = problem.features[:4, None, :] + 0.15 * draw.normal(size=(4, 10, 12))
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


class Recorded(ExampleMaple):
    """It keeps the parameters of the last call, with which an image is predicted."""

    def encode_images(self, images, parameters, layers=0):
        self.last = parameters
        return super().encode_images(images, parameters, layers)


def make_method(problem, **changes):
    settings = {"maple": Recorded(problem.prototypes), "source": example_token_source(problem.prototypes)}
    return PromptAlign(problem.prototypes, **{**settings, "logit_scale": SCALE, "view_ratio": RATIO, **changes})


def in_torch(maple):
    """The example sides as torch functions of the flat parameters, for gradients by torch."""
    text, directions = maple._text, torch.tensor(maple._directions)
    own, mixing = torch.tensor(text._prototypes), torch.tensor(text._mixing)
    sides, context = torch.tensor(text._directions), torch.tensor(text.context)

    def read(flat):
        weights = torch.tanh(mixing @ (flat[:6] - context.reshape(-1)))
        return torch.nn.functional.normalize(own + (weights[:, None, None] * sides).sum(0), dim=-1)

    def encode(images, flat, layers):
        prompt = flat[6:].reshape(3, 3) @ flat[:6].reshape(2, 3).mean(0)
        shift = MAPLE_REACH * torch.tanh(prompt) @ directions
        tokens = [
            torch.stack([(images + layer * shift) @ directions.T, ((layer + 1) * prompt).expand(len(images), 3)], dim=1)
            for layer in range(layers)
        ]
        return torch.nn.functional.normalize(images + shift, dim=-1), torch.stack(tokens, dim=1)

    return read, encode


def as_specified(method, views, *, keep, steps=1, rate=4e-2, weight=100 / 3, layers=2):
    """One image, with torch's gradients and torch's AdamW: the logits of view 0, and the parameters tuned to it."""
    read, encode = in_torch(method.maple)
    means, variances = (torch.tensor(part) for part in method.source)
    views = torch.tensor(views)
    flat = torch.tensor(method.maple.parameters).requires_grad_()
    optimiser, kept = torch.optim.AdamW([flat], lr=rate), None
    for _ in range(steps):
        features, tokens = encode(views, flat, layers)
        logits = SCALE * features @ read(flat).T
        if kept is None:
            kept = (-(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1)).argsort()[:keep]
        mean = logits[kept].softmax(-1).mean(0)
        loss = -(mean * mean.log()).sum()
        for layer in range(layers):
            chosen = tokens[kept, layer]
            loss = loss + weight * 0.5 * torch.nn.functional.l1_loss(chosen.mean(0), means[layer])
            loss = loss + weight * 0.5 * torch.nn.functional.l1_loss(chosen.var(0, correction=0), variances[layer])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        return (SCALE * encode(views[:1], flat, 1)[0] @ read(flat).T)[0].numpy(), flat.detach().numpy()


@pytest.mark.parametrize(
    ("changes", "expected_changes"),
    [
        ({}, {}),
        ({"layers": 3, "align_weight": 5.0}, {"layers": 3, "weight": 5.0}),
        ({"layers": 1, "steps": 3, "rate": 5e-3}, {"layers": 1, "steps": 3, "rate": 5e-3}),
        ({"align_weight": 0.0}, {"weight": 0.0}),
    ],
    ids=["released", "as the paper", "steps", "no alignment"],
)
def test_agrees_with_the_specification(problem, views, changes, expected_changes):
    method = make_method(problem, **changes)
    scores = method.adapt_views_scores(views)
    for image, answer in zip(views, scores, strict=True):
        expected, tuned = as_specified(method, image, keep=4, **expected_changes)
        np.testing.assert_allclose(answer, expected, atol=1e-9)
        method.predict_views(image)
        np.testing.assert_allclose(method.maple.last, tuned, atol=1e-10)


def test_alignment_is_torchs_loss_and_gradient():
    draw = np.random.default_rng(2)
    tokens, means, variances = draw.normal(size=(6, 2, 5, 4)), draw.normal(size=(2, 5, 4)), draw.random((2, 5, 4))
    given = torch.tensor(tokens).requires_grad_()
    expected = sum(
        0.5 * torch.nn.functional.l1_loss(given[:, n].mean(0), torch.tensor(means[n]))
        + 0.5 * torch.nn.functional.l1_loss(given[:, n].var(0, correction=0), torch.tensor(variances[n]))
        for n in range(2)
    )
    (gradient,) = torch.autograd.grad(expected, given)
    loss, found = alignment(tokens, means, variances)
    assert float(loss) == pytest.approx(expected.item(), abs=1e-12)
    np.testing.assert_allclose(found, gradient, atol=1e-14)


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"maple": None}, TypeError, r"maple must be a CoupledPrompts, as zeroshift.encode.load_maple\(encoder, check"),
        ({"source": None}, TypeError, r"source must be a pair \(means, variances\); got NoneType.*maple_statistics"),
        ({"source": (np.zeros((3, 2, 3)), np.zeros((3, 2, 4)))}, ValueError, r"source's variances .*\(3, 2, 4\)"),
        (
            {"source": (np.zeros((1, 2, 3)),) * 2},
            ValueError,
            r"source's means must have the shape \(2, 2, 3\); got \(1, 2, 3\)",
        ),
        (
            {"source": (np.full((3, 2, 3), np.nan),) * 2},
            ValueError,
            "source's means must hold finite numbers; it has NaN",
        ),
        (
            {"source": (np.zeros((3, 2, 3)), -np.ones((3, 2, 3)))},
            ValueError,
            "source's variances must be at least 0; it has -1",
        ),
        ({"layers": 4}, ValueError, "layers must be at most the 3"),
        ({"maple": ExampleMaple(np.eye(12)[:3])}, ValueError, r"maple has 3 classes in d = 12, the prototypes have 5"),
        (
            {"maple": ExampleMaple(np.eye(12)[:5])},
            ValueError,
            "prototypes differ from the features of maple's trained prompts",
        ),
    ],
    ids=["no maple", "no source", "shape", "layers of source", "nan", "negative", "layers", "classes", "prototypes"],
)
def test_parameters_that_do_not_fit_raise(problem, changes, kind, message):
    with pytest.raises(kind, match=message):
        make_method(problem, **changes)


def test_invalid_views_raise(problem, views):
    method = make_method(problem)
    for bad in (views[..., :-1], views[:0], views[None, None], views.tolist()):
        with pytest.raises((TypeError, ValueError), match="views"):
            method.adapt_views(bad)
    broken = views.copy()
    broken[2, 3] = np.nan
    with pytest.raises(ValueError, match=r"views\[2\] row 3 holds NaN"):
        method.adapt_views(broken)
    assert method.n_seen == 0

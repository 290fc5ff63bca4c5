"""Self-TPT against loops in torch that differentiate twice, on a tiny CLIP in float64, and its properties. No code of
its authors was found: it is a reconstruction."""

import numpy as np
import pytest

from zeroshift.methods import SelfTPT, load, selftpt_source
from zeroshift.methods.selftpt import DIFFERENCE, PromptSource, contrast
from zeroshift.testing import make_problem
from zeroshift.testing.examples import ExampleText, example_prompt_source

PLACES = ("end", "middle", "front")


def plain_contrast(embeddings, n_classes, temperature=0.07):
    """The specification's sum, one pair at a time; differentiable by torch."""
    n = len(embeddings)
    total = 0.0
    for i in range(n):
        below = sum((embeddings[i] @ embeddings[j] / temperature).exp() for j in range(n) if j != i)
        partners = [j for j in range(n) if j != i and j % n_classes == i % n_classes]
        for j in partners:
            total = total - (embeddings[i] @ embeddings[j] / temperature - below.log()) / len(partners)
    return total / n


@pytest.mark.parametrize(("n_classes", "n_prompts"), [(4, 3), (1, 3), (5, 2)])
def test_the_contrast_is_the_sum_over_pairs(n_classes, n_prompts):
    torch = pytest.importorskip("torch")
    draw = np.random.default_rng(0)
    rows = torch.tensor(draw.normal(size=(n_prompts * n_classes, 6)))
    embeddings = torch.nn.functional.normalize(rows, dim=-1).requires_grad_()
    expected = plain_contrast(embeddings, n_classes, 0.5)
    loss, gradient = contrast(embeddings.detach().numpy(), n_classes, 0.5)
    assert loss == pytest.approx(expected.item(), abs=1e-12)
    expected.backward()
    np.testing.assert_allclose(gradient, embeddings.grad, atol=1e-12)


@pytest.fixture(scope="module")
def clip():
    pytest.importorskip("transformers")
    from tiny_clip import few_shot_features, moved_text

    support, test = few_shot_features("float64")
    return moved_text(*PLACES, precision="float64"), support, test


def small_head(width=8):
    """One with few hidden units, so that its rectifier has both signs."""
    draw = np.random.default_rng(4)
    return tuple(0.4 * draw.normal(size=shape) for shape in ((width, 32), (width,), (5, width), (5,)))


def torch_head(head):
    import torch

    def embed(rows):
        hidden = (rows @ head[0].T + head[1]).relu()
        return torch.nn.functional.normalize(hidden @ head[2].T + head[3], dim=-1)

    return embed


def plain_source(support, head, order, *, batch_size, scale, rate, weights):
    """Stage 1 in torch: the gradient matching by differentiating twice."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import cosine_similarity, cross_entropy, normalize

    from tiny_clip import exact_prompts, initial_context

    x, y = torch.tensor(support[0]), torch.tensor(support[1])
    context = initial_context().requires_grad_()
    head = [torch.tensor(part).requires_grad_() for part in head]
    embed, average = torch_head(head), None
    optimiser = torch.optim.SGD([context, *head], lr=1.0, momentum=0.9, weight_decay=5e-4)
    for epoch, numbers in enumerate(order):
        cosine = rate * (1 + np.cos(np.pi * (epoch - 1) / len(order))) / 2
        optimiser.param_groups[0]["lr"] = cosine if epoch else 1e-5
        for start in range(0, len(numbers) - batch_size + 1, batch_size):
            rows = torch.tensor(numbers[start : start + batch_size])
            with sdpa_kernel(SDPBackend.MATH):  # the only one that can be differentiated twice
                text = exact_prompts(context, *PLACES)
            classifier = normalize(text.reshape(3, 7, -1).mean(0), dim=-1)
            loss = cross_entropy(scale * x[rows] @ classifier.T, y[rows])
            separation = plain_contrast(embed(text), 7)
            (own,) = torch.autograd.grad(loss, context, retain_graph=True)
            average = own if average is None else 0.99 * average + 0.01 * own
            (other,) = torch.autograd.grad(separation, context, create_graph=True)
            matching = 1 - cosine_similarity(average.reshape(-1), other.reshape(-1), dim=0)
            optimiser.zero_grad()
            (loss + weights[0] * separation + weights[1] * matching).backward()
            optimiser.step()
    return [part.detach().numpy() for part in (context, *head)]


@pytest.mark.parametrize(
    ("weights", "difference", "tolerance"),
    [
        ((1.0, 0.0), DIFFERENCE, 1e-9),
        ((1.0, 1.0), DIFFERENCE, 1e-4),
        ((1.0, 1.0), 1e-6, 1e-7),
    ],
)
def test_the_source_equals_a_loop_that_differentiates_twice(clip, monkeypatch, weights, difference, tolerance):
    """With the default step of the difference quotient, and with one that is exact for a model in float64."""
    monkeypatch.setattr("zeroshift.methods.selftpt.DIFFERENCE", difference)
    text, support, _ = clip
    order = np.stack([np.random.default_rng(i).permutation(56) for i in range(2)])
    settings = {"batch_size": 28, "rate": 5e-2}
    found = selftpt_source(
        text, support, epochs=2, order=order, head=small_head(), logit_scale=30.0, contrast_weight=weights[0],
        matching_weight=weights[1], **settings,
    )  # fmt: skip
    expected = plain_source(support, small_head(), order, scale=30.0, weights=weights, **settings)
    for part, wanted, start in zip(found, expected, (text.context, *small_head()), strict=True):
        np.testing.assert_allclose(part, wanted, rtol=0, atol=tolerance)
        assert np.abs(part - start).max() > 1e-4


@pytest.mark.parametrize("steps", [1, 3])
def test_adaptation_equals_a_loop(clip, steps):
    import torch

    from tiny_clip import exact_prompts

    text, _, test = clip
    source = PromptSource(text.context + 0.01, *small_head())
    method = SelfTPT(SelfTPT.prototypes_of(text), text=text, source=source, steps=steps, logit_scale=30.0)
    context, embed = torch.tensor(source.context).requires_grad_(), torch_head([torch.tensor(p) for p in small_head()])
    optimiser = torch.optim.AdamW([context], lr=5e-3, weight_decay=0.01)
    for _ in range(steps):
        optimiser.zero_grad()
        plain_contrast(embed(exact_prompts(context, *PLACES)), 7).backward()
        optimiser.step()
    np.testing.assert_allclose(method.context, context.detach(), atol=1e-9)
    with torch.no_grad():
        mean = exact_prompts(context, *PLACES).reshape(3, 7, -1).mean(0)
        expected = 30.0 * torch.tensor(test) @ torch.nn.functional.normalize(mean, dim=-1).T
    np.testing.assert_allclose(method.predict_scores(test), expected, atol=1e-8)


def test_no_steps_keep_the_source(clip):
    text, _, _ = clip
    source = PromptSource(np.array(text.context), *small_head())
    prototypes = SelfTPT.prototypes_of(text)
    kept = SelfTPT(prototypes, text=text, source=source, steps=0)
    np.testing.assert_array_equal(kept.context, source.context)
    images = np.eye(prototypes.shape[1])
    np.testing.assert_allclose(kept.predict_scores(images), 100.0 * images @ prototypes.T, atol=1e-10)


def test_a_saved_method_is_loaded_without_tuning(tmp_path):
    problem = make_problem(classes=5, dimension=12, samples=20, seed=3)
    prototypes = problem.prototypes
    text = ExampleText(prototypes, n_prompts=3)
    method = SelfTPT(prototypes, text=text, source=example_prompt_source(prototypes), logit_scale=20.0)
    method.adapt(problem.features)
    method.save(tmp_path / "selftpt.safetensors")

    class Untouchable(ExampleText):
        def pull_back(self, context, upstream):
            raise AssertionError("tuned again")

    again = load(tmp_path / "selftpt.safetensors", text=Untouchable(prototypes, n_prompts=3))
    np.testing.assert_array_equal(again.predict(problem.features), method.predict(problem.features))
    np.testing.assert_array_equal(again.context, method.context)
    again.reset()
    assert again.n_seen == 0
    np.testing.assert_array_equal(again.predict(problem.features), method.predict(problem.features))


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"source": None}, TypeError, r"source must be five arrays.*NoneType.*selftpt_source\(text, support\)"),
        ({"source": (np.zeros((2, 4)), *small_head())}, ValueError, r"source\[0\] must have the shape \(2, 3\)"),
        ({"source": (np.zeros((2, 3)), *small_head())}, ValueError, r"source\[1:\]\[0\] must have the shape \(8, 12\)"),
        ({"text": ExampleText(np.eye(12)[:5])}, ValueError, "text must have 3 prompts per class; it has 1.*position="),
    ],
)
def test_parameters_that_do_not_fit_raise(changes, kind, message):
    prototypes = make_problem(classes=5, dimension=12).prototypes
    given = {"text": ExampleText(prototypes, n_prompts=3), "source": example_prompt_source(prototypes), **changes}
    with pytest.raises(kind, match=message):
        SelfTPT(prototypes, **given)


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"text": ExampleText(np.eye(12)[:5])}, TypeError, r"text must be a PromptedText with 3 prompts per class"),
        ({"support": None}, TypeError, r"support must be a pair \(features, labels\)"),
        ({"support": (np.eye(12), np.full(12, 7))}, ValueError, "support labels"),
        ({"matching_weight": -1}, ValueError, "matching_weight must be a number of at least 0"),
        ({"head": 3}, TypeError, "head must be four arrays"),
    ],
)
def test_a_source_from_wrong_arguments_raises(changes, kind, message):
    prototypes = make_problem(classes=5, dimension=12).prototypes
    given = {
        "text": ExampleText(prototypes, n_prompts=3), "support": (prototypes, np.arange(5)), "epochs": 1, **changes
    }  # fmt: skip
    with pytest.raises(kind, match=message):
        selftpt_source(given.pop("text"), given.pop("support"), **given)


def test_the_source_moves_classes_apart_and_is_drawn_from_the_seed():
    prototypes = make_problem(classes=5, dimension=12).prototypes
    text, support = ExampleText(prototypes, n_prompts=3), (prototypes, np.arange(5))
    first, again, other = (selftpt_source(text, support, epochs=3, seed=seed) for seed in (0, 0, 1))
    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, two)
    assert np.abs(first.weights1 - other.weights1).max() > 1e-2
    assert first.weights1.shape == (12, 12)
    assert first.weights2.shape == (128, 12)
    assert SelfTPT(prototypes, text=text, source=first, logit_scale=20.0).predict(prototypes).shape == (5, 5)

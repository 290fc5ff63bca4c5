"""The losses of the tuning methods and AdamW, against torch's own gradients and torch's own AdamW."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from zeroshift.methods._shared.similarity import unit_rows
from zeroshift.methods._shared.tuning import (
    AdamW,
    cross_entropy,
    entropy_of_each,
    entropy_of_mean,
    logits_to_text,
    through_unit_rows,
)
from zeroshift.views import entropy, marginal_entropy

EXACT = {"rtol": 1e-12, "atol": 1e-13}


def draw(*shape, scale=1.0, seed=0):
    return scale * np.random.default_rng(seed).normal(size=shape)


def traced(loss, *arrays):
    """A loss and its gradients, as torch traces them."""
    tensors = [torch.tensor(array, requires_grad=True) for array in arrays]
    value = loss(*tensors)
    value.sum().backward()
    return value.detach().numpy(), *(tensor.grad.numpy() for tensor in tensors)


def agree(actual, expected):
    """In NumPy and in torch alike: `actual` is called with a function that makes arrays of the library."""
    for library in (np.asarray, torch.tensor):
        for ours, theirs in zip(actual(library), expected, strict=True):
            assert isinstance(ours, torch.Tensor) == (library is torch.tensor)
            np.testing.assert_allclose(np.asarray(ours), theirs, **EXACT)


def of_mean(logits):
    mean = logits.softmax(-1).mean(-2)
    return -(mean * mean.log()).sum(-1)


@pytest.mark.parametrize("scale", [0.1, 3.0, 20.0])
@pytest.mark.parametrize("shape", [(1, 4), (5, 7), (3, 5, 7), (2, 3, 1, 6)])
def test_entropy_of_the_mean_prediction(shape, scale):
    logits = draw(*shape, scale=scale)
    agree(lambda library: entropy_of_mean(library(logits)), traced(of_mean, logits))
    np.testing.assert_allclose(entropy_of_mean(logits)[0].ravel(), [marginal_entropy(x) for x in _matrices(logits)])


def _matrices(logits):
    return logits.reshape(-1, *logits.shape[-2:])


@pytest.mark.parametrize("scale", [0.1, 3.0, 20.0])
@pytest.mark.parametrize("shape", [(4,), (5, 7), (3, 5, 7)])
def test_entropy_of_each_prediction(shape, scale):
    logits = draw(*shape, scale=scale)
    expected = traced(lambda z: -(z.softmax(-1) * z.log_softmax(-1)).sum(-1), logits)
    agree(lambda library: entropy_of_each(library(logits)), expected)
    np.testing.assert_allclose(entropy_of_each(logits)[0], entropy(logits), **EXACT)


@pytest.mark.parametrize("loss", [entropy_of_mean, entropy_of_each])
def test_entropies_of_certain_predictions_have_no_gradient_and_no_nan(loss):
    """A class 5000 below the first: its probability underflows, its logarithm would be infinite."""
    value, gradient = loss(np.array([[5000.0, 0.0, -5000.0], [5000.0, 0.0, -5000.0]]))
    np.testing.assert_array_equal(value, np.zeros_like(value))
    np.testing.assert_array_equal(gradient, np.zeros((2, 3)))


@pytest.mark.parametrize("total", [1.0, 2.5])
@pytest.mark.parametrize("shape", [(5,), (4, 6), (2, 3, 6)])
def test_cross_entropy(shape, total):
    """Also for weights that do not add up to one, as a weighted sum of losses gives them."""
    logits, targets = draw(*shape, scale=3.0), total * np.exp(draw(*shape, seed=1))
    targets = total * targets / targets.sum(-1, keepdims=True)
    expected = traced(lambda z: -(torch.tensor(targets) * z.log_softmax(-1)).sum(-1), logits)
    agree(lambda library: cross_entropy(library(logits), library(targets)), expected)


def test_gradient_of_the_text_features():
    features, text = unit_rows(draw(5, 8)), unit_rows(draw(3, 8, seed=1))
    _, expected = traced(lambda text: of_mean(20.0 * torch.tensor(features) @ text.T), text)
    _, gradient = entropy_of_mean(20.0 * features @ text.T)
    agree(lambda library: [logits_to_text(library(gradient), library(features), 20.0)], [expected])


@pytest.mark.parametrize("shape", [(4, 6), (2, 3, 6), (5, 1)])
def test_gradient_through_unit_rows(shape):
    raw, upstream = draw(*shape, scale=2.0), draw(*shape, seed=1)
    _, expected = traced(lambda raw: torch.tensor(upstream) * functional.normalize(raw, dim=-1), raw)
    agree(lambda library: [through_unit_rows(library(upstream), library(raw))], [expected])
    along = np.sum(through_unit_rows(upstream, raw) * raw, axis=-1)
    np.testing.assert_allclose(along, 0.0, atol=1e-12)


def test_gradient_of_a_zero_row_is_finite():
    """`unit_rows` does not change a zero row, so its gradient does not change either."""
    upstream = np.array([[1.0, 2.0], [0.5, 0.5]])
    gradient = through_unit_rows(upstream, np.array([[0.0, 0.0], [2.0, 0.0]]))
    np.testing.assert_array_equal(gradient, [[1.0, 2.0], [0.0, 0.25]])


SETTINGS = {
    "usual": {},
    "dpe": {"eps": 1e-3, "weight_decay": 0.1},
    "other": {"betas": (0.5, 0.9), "eps": 0.1, "weight_decay": 0.7},
    "no decay": {"weight_decay": 0.0},
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("size", [1e-9, 1e-4, 10.0])
def test_adamw_agrees_with_torch(setting, size):
    """Eight steps with changing gradients, some coordinates of which are zero at first or always."""
    options = SETTINGS[setting]
    gradients = draw(8, 3, 5, scale=size, seed=2)
    gradients[:, 0, :2] = 0
    gradients[:3, 1] = 0
    start = draw(3, 5)
    tensor = torch.tensor(start, requires_grad=True)
    reference = torch.optim.AdamW(
        [tensor], lr=0.02, **{"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01, **options}
    )
    ours, in_torch = AdamW(0.02, **options), AdamW(0.02, **options)
    array, other = start, torch.tensor(start)
    for gradient in gradients:
        tensor.grad = torch.tensor(gradient)
        reference.step()
        array, other = ours.step(array, gradient), in_torch.step(other, torch.tensor(gradient))
        np.testing.assert_allclose(array, tensor.detach().numpy(), **EXACT)
        np.testing.assert_allclose(other.numpy(), array, **EXACT)


def test_adamw_does_not_change_its_arguments():
    parameter, gradient = draw(3, 5), draw(3, 5, seed=1)
    before = parameter.copy(), gradient.copy()
    optimiser = AdamW(0.1)
    for _ in range(2):
        optimiser.step(parameter, gradient)
    np.testing.assert_array_equal(parameter, before[0])
    np.testing.assert_array_equal(gradient, before[1])


def test_adamw_continues_from_its_state():
    gradients, start = draw(6, 4), draw(4, seed=1)
    whole, first, second = AdamW(0.1), AdamW(0.1), AdamW(0.1)
    second.restore(*first.state())  # before any step
    array = half = start
    for gradient in gradients[:3]:
        array, half = whole.step(array, gradient), first.step(half, gradient)
    second.restore(*first.state())
    for gradient in gradients[3:]:
        array, half = whole.step(array, gradient), second.step(half, gradient)
    np.testing.assert_array_equal(half, array)

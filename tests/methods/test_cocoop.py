"""CoCoOp against the outputs of the authors' trainer on a tiny CLIP (tests/golden/README.md), and its properties."""

import numpy as np
import pytest

from goldens import golden
from zeroshift.methods import CoCoOp, CoOp, load
from zeroshift.methods._shared.two_layer_net import TwoLayerNet
from zeroshift.testing import make_problem
from zeroshift.testing.examples import ExampleText

NET = ("linear1_weight", "linear1_bias", "linear2_weight", "linear2_bias")

LOSS, PARAMETERS, LOGITS = 2e-5, 1.7e-6, 7.1e-5
"""Differences from the goldens, which are float32, that the specification states for an independent version."""


def golden_method(precision="float32", **changes):
    pytest.importorskip("transformers")
    from tiny_clip import few_shot_features, moved_text, tiny_scale

    arrays, text = golden("tiny_clip_fewshot_prompt"), moved_text("end", precision=precision)
    settings = {
        "epochs": 3,
        "order": arrays["cocoop_order"],
        "initial": arrays["cocoop_init_ctx"],
        "meta_net": tuple(arrays[f"cocoop_init_meta_net_{part}"] for part in NET),
        **changes,
    }
    support, test = few_shot_features(precision)
    settings = {"support": support, **settings}
    return CoCoOp(text.features(text.context), text=text, logit_scale=tiny_scale(), **settings), test


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_agrees_with_the_golden(precision):
    expected = {key.removeprefix("cocoop_"): array for key, array in golden("tiny_clip_fewshot_prompt").items()}
    method, test = golden_method(precision)
    np.testing.assert_allclose(method.losses, expected["loss"], rtol=0, atol=LOSS)
    np.testing.assert_allclose(method.rates, expected["lr"], rtol=1e-12)
    np.testing.assert_allclose(method.context, expected["final_ctx"], rtol=0, atol=PARAMETERS)
    for part, name in zip(method.learned_meta_net, NET, strict=True):
        np.testing.assert_allclose(part, expected[f"final_meta_net_{name}"], rtol=0, atol=PARAMETERS)
        assert np.abs(part - expected[f"init_meta_net_{name}"]).max() > 1e-3
    scores = method.predict_scores(test)
    np.testing.assert_allclose(scores, expected["logits"], rtol=0, atol=LOGITS)
    np.testing.assert_array_equal(scores.argmax(axis=1), expected["logits"].argmax(axis=1))


@pytest.fixture
def problem():
    return make_problem(classes=5, dimension=32, samples=40, seed=3)


def make_method(problem, **settings):
    prototypes = problem.prototypes
    given = {"text": ExampleText(prototypes), "support": (problem.features[:20], problem.labels[:20]), "epochs": 3}
    return CoCoOp(prototypes, **{**given, "logit_scale": 20.0, **settings})


def plain_training(problem, method):
    """The loop of the specification in torch, with its own modules, gradients and SGD."""
    torch = pytest.importorskip("torch")
    from prompt_loops import in_torch

    text, x = in_torch(method.text), torch.tensor(problem.features[:20])
    y, start = torch.tensor(problem.labels[:20]), method._start()
    context = torch.tensor(start.context).requires_grad_()
    net = torch.nn.Sequential(torch.nn.Linear(32, 2), torch.nn.ReLU(), torch.nn.Linear(2, 3)).double()
    with torch.no_grad():
        for own, given in zip(net.parameters(), start.meta_net, strict=True):
            own.copy_(torch.tensor(given))
    optimiser = torch.optim.SGD([context, *net.parameters()], lr=1.0, momentum=0.9, weight_decay=5e-4)
    losses, size, epochs = [], method.batch_size, len(method.order)
    for epoch, order in enumerate(method.order):
        rate = 1e-5 if epoch == 0 else method.rate * (1 + np.cos(np.pi * (epoch - 1) / epochs)) / 2
        optimiser.param_groups[0]["lr"] = rate
        for first in range(0, 20 // size * size, size):
            rows = torch.tensor(order[first : first + size])
            shifts = net(x[rows])
            scores = torch.stack([20.0 * text(context + s) @ row for s, row in zip(shifts, x[rows], strict=True)])
            loss = torch.nn.functional.cross_entropy(scores, y[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
    return [part.detach().numpy() for part in (context, *net.parameters())], losses


@pytest.mark.parametrize("batch_size", [1, 3])
def test_equals_a_plain_loop(problem, batch_size):
    order = np.stack([np.random.default_rng(i).permutation(20) for i in range(3)])
    method = make_method(problem, order=order, batch_size=batch_size, rate=0.02)
    parameters, losses = plain_training(problem, method)
    np.testing.assert_allclose(method.losses, losses, atol=1e-11)
    for found, expected in zip((method.context, *method.learned_meta_net), parameters, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-11)


def test_gradients_of_the_network_are_differences_quotients():
    draw = np.random.default_rng(0)
    net = TwoLayerNet(*(draw.normal(size=shape) for shape in ((4, 6), (4,), (3, 4), (3,))))
    x, above = draw.normal(size=(5, 6)), draw.normal(size=(5, 3))
    for number, gradient in enumerate(net.pull_back(x, above)[1]):
        direction = draw.normal(size=gradient.shape)
        values = []
        for step in (1e-6, -1e-6):
            parts = list(net)
            parts[number] = parts[number] + step * direction
            values.append((above * TwoLayerNet(*parts).outputs(x)).sum())
        assert (gradient * direction).sum() == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-6)


def test_with_a_second_layer_of_zeros_training_starts_as_coop_does(problem):
    settings = {"epochs": 4, "batch_size": 5, "order": np.stack([np.arange(20)] * 4)}
    zeros = tuple(np.zeros(shape) for shape in ((2, 32), (2,), (3, 2), (3,)))
    method = make_method(problem, meta_net=zeros, **settings)
    coop = CoOp(problem.prototypes, text=method.text, support=method.support, logit_scale=20.0, **settings)
    np.testing.assert_allclose(method.losses[0], coop.losses[0], atol=1e-12)
    expected = 20.0 * problem.features @ problem.prototypes.T
    untrained = make_method(problem, meta_net=zeros, epochs=0)
    np.testing.assert_allclose(untrained.predict_scores(problem.features), expected, atol=1e-10)


def test_what_was_learned_predicts_other_classes(problem):
    method = make_method(problem)
    others = make_problem(classes=4, dimension=32, samples=10, seed=9)
    text = ExampleText(others.prototypes)
    transferred = CoCoOp(
        others.prototypes, text=text, support=(others.features[:1], others.labels[:1]), epochs=0, logit_scale=20.0,
        initial=method.context, meta_net=method.learned_meta_net,
    )  # fmt: skip
    shifts = method.learned_meta_net.outputs(others.features)
    expected = [20.0 * text.features(method.context + s) @ x for s, x in zip(shifts, others.features, strict=True)]
    np.testing.assert_allclose(transferred.predict_scores(others.features), expected, atol=1e-12)
    assert transferred.losses.shape == (0,)


def test_a_saved_method_is_loaded_without_training(problem, tmp_path):
    method = make_method(problem)
    method.save(tmp_path / "cocoop.safetensors")

    class Untouchable(ExampleText):
        def pull_back(self, context, upstream):
            raise AssertionError("trained again")

    again = load(tmp_path / "cocoop.safetensors", text=Untouchable(problem.prototypes))
    np.testing.assert_array_equal(again.predict(problem.features), method.predict(problem.features))
    for found, expected in zip(again.learned_meta_net, method.learned_meta_net, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_the_seed_draws_network_and_order(problem):
    first, again, other = (make_method(problem, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.losses, again.losses)
    assert np.abs(first._start().meta_net.weights1 - other._start().meta_net.weights1).max() > 1e-2
    assert first._start().meta_net.weights1.shape == (2, 32)
    assert np.abs(first._start().meta_net.weights1).max() <= 1 / np.sqrt(32)


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"meta_net": np.zeros((2, 32))}, TypeError, r"meta_net must be four arrays: weights \(h, 32\).*got ndarray"),
        (
            {"meta_net": (np.zeros((2, 32)), np.zeros(3), np.zeros((3, 2)), np.zeros(3))},
            ValueError,
            r"meta_net\[1\] must have the shape \(2,\); got \(3,\)",
        ),
        (
            {"meta_net": (np.full((2, 32), np.inf), np.zeros(2), np.zeros((3, 2)), np.zeros(3))},
            ValueError,
            r"meta_net\[0\] must hold finite numbers",
        ),
        ({"initial": np.zeros((5, 2, 3))}, ValueError, r"initial must have the shape \(2, 3\)"),
        ({"order": np.zeros((2, 20), int)}, ValueError, r"order must have one row per epoch"),
    ],
)
def test_parameters_that_do_not_fit_raise(problem, changes, kind, message):
    with pytest.raises(kind, match=message):
        make_method(problem, **changes)


def test_torch_gives_the_same(problem):
    torch = pytest.importorskip("torch")
    prototypes = torch.tensor(problem.prototypes)
    method = CoCoOp(
        prototypes, text=ExampleText(prototypes), support=(torch.tensor(problem.features[:20]), problem.labels[:20]),
        epochs=3, logit_scale=20.0,
    )  # fmt: skip
    expected = make_method(problem)
    np.testing.assert_allclose(method.context, expected.context, atol=1e-10)
    found = method.predict(torch.tensor(problem.features))
    assert isinstance(found, torch.Tensor)
    np.testing.assert_allclose(found, expected.predict(problem.features), atol=1e-10)


def test_methods_of_the_same_parameters_can_be_merged(problem):
    one = make_method(problem)
    parameters = one.get_params()
    other = type(one)(**parameters)
    one.adapt(problem.features[:3])
    other.adapt(problem.features[:2])
    assert one.merge(other).n_seen == 5
    np.testing.assert_array_equal(one.predict(problem.features), other.predict(problem.features))

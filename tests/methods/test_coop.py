"""CoOp against the outputs of the authors' trainer on a tiny CLIP (tests/golden/README.md), and its properties."""

import json

import numpy as np
import pytest

from goldens import golden
from zeroshift.arrays import to_numpy
from zeroshift.methods import CoOp, load
from zeroshift.testing import make_problem
from zeroshift.testing.examples import ExampleText, example_support

RUNS = {
    "coop_words": {},
    "coop_random": {},
    "coop_csc": {"per_class": True},
    "coop_middle": {},
    "coop_lr2e2": {"rate": 2e-2},
}


LOSS, CONTEXT, LOGITS = 4.4e-6, 9.4e-7, 1.1e-4
"""Differences from the goldens, which are float32, that the specification states for an independent version."""


def golden_method(run, precision="float32", **changes):
    pytest.importorskip("transformers")
    from tiny_clip import few_shot_features, moved_text, tiny_scale

    arrays, text = (
        golden("tiny_clip_fewshot_prompt"),
        moved_text("middle" if "middle" in run else "end", precision=precision),
    )
    settings = {
        "batch_size": 16,
        "epochs": 10,
        "order": arrays[f"{run}_order"],
        "initial": arrays[f"{run}_init_ctx"],
        **RUNS[run],
        **changes,
    }
    support, test = few_shot_features(precision)
    return CoOp(text.features(text.context), text=text, support=support, logit_scale=tiny_scale(), **settings), test


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("run", RUNS)
def test_agrees_with_the_golden(run, precision):
    expected = {key.removeprefix(f"{run}_"): array for key, array in golden("tiny_clip_fewshot_prompt").items()}
    method, test = golden_method(run, precision)
    scores = method.predict_scores(test)
    np.testing.assert_allclose(method.losses, expected["loss"], rtol=0, atol=LOSS)
    np.testing.assert_allclose(method.rates, expected["lr"], rtol=1e-12)
    np.testing.assert_allclose(method.context, expected["final_ctx"], rtol=0, atol=CONTEXT)
    np.testing.assert_allclose(scores, expected["logits"], rtol=0, atol=LOGITS)
    np.testing.assert_array_equal(scores.argmax(axis=1), expected["logits"].argmax(axis=1))
    assert np.abs(method.context - expected["init_ctx"]).max() > 1e-3


def test_the_words_of_the_golden_are_those_of_the_text():
    method, _ = golden_method("coop_words", initial=None)
    np.testing.assert_allclose(
        method._start().context, golden("tiny_clip_fewshot_prompt")["coop_words_init_ctx"], atol=1e-7
    )
    assert json.loads(str(golden("tiny_clip_fewshot_prompt")["hyper"]))["runs"]["coop_words"]["batch"] == 16


def test_a_rate_of_zero_keeps_all_but_the_first_epoch():
    """Without the warm-up, nothing would change; it moves the context by at most 1e-5 per unit of gradient."""
    method, test = golden_method("coop_words", rate=0.0, initial=None, order=None)
    assert np.abs(method.context - method._initial_context).max() < 1e-3
    np.testing.assert_allclose(method.predict_scores(test), method.logit_scale * test @ method.prototypes.T, atol=2e-2)


@pytest.fixture
def problem():
    return make_problem(classes=5, dimension=12, samples=40, seed=3)


def make_method(problem, **settings):
    prototypes = problem.prototypes
    given = {"text": ExampleText(prototypes), "support": (problem.features[:30], problem.labels[:30]), "epochs": 6}
    return CoOp(prototypes, **{**given, "batch_size": 8, "logit_scale": 20.0, **settings})


def plain_context(problem, method, *, steps):
    """The loop of the specification in torch, with its own gradients and its own SGD."""
    torch = pytest.importorskip("torch")
    from prompt_loops import in_torch

    features, x = in_torch(method.text), torch.tensor(problem.features[:30])
    y, context = torch.tensor(problem.labels[:30]), torch.tensor(to_numpy(method._start().context)).requires_grad_()
    optimiser = torch.optim.SGD([context], lr=1.0, momentum=0.9, weight_decay=method.weight_decay)
    losses = []
    for epoch, order in enumerate(method.order):
        rate = 1e-5 if epoch == 0 else method.rate * (1 + np.cos(np.pi * (epoch - 1) / len(method.order))) / 2
        optimiser.param_groups[0]["lr"] = rate
        for start in range(0, 24, 8):
            rows = torch.tensor(order[start : start + 8])
            loss = torch.nn.functional.cross_entropy(20.0 * x[rows] @ features(context).T, y[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
    assert len(losses) == steps
    return context.detach().numpy(), losses


def test_equals_a_plain_loop(problem):
    order = np.stack([np.random.default_rng(i).permutation(30) for i in range(6)])
    method = make_method(problem, order=order, rate=0.05)
    context, losses = plain_context(problem, method, steps=18)
    np.testing.assert_allclose(method.context, context, atol=1e-12)
    np.testing.assert_allclose(method.losses, losses, atol=1e-12)


def test_training_lowers_the_loss(problem):
    method = make_method(problem, rate=0.05, epochs=30, batch_size=30)
    assert method.losses[-1] < 0.95 * method.losses[0]


def test_permuted_classes_permute_the_answers(problem):
    order = np.array([3, 0, 4, 1, 2])
    rank = np.argsort(order)
    expected = make_method(problem, per_class=True).predict(problem.features)[:, order]
    support = problem.features[:30], rank[problem.labels[:30]]
    prototypes = problem.prototypes[order]
    permuted = CoOp(
        prototypes, text=ExampleText(prototypes), support=support, epochs=6, batch_size=8, logit_scale=20.0,
        per_class=True,
    )  # fmt: skip
    np.testing.assert_allclose(permuted.predict(problem.features), expected, atol=1e-9)
    assert permuted.context.shape == (5, 2, 3)


def test_random_contexts_are_drawn_from_the_seed(problem):
    contexts = [make_method(problem, initialisation="random", seed=seed)._start().context for seed in (0, 0, 1)]
    np.testing.assert_array_equal(contexts[0], contexts[1])
    assert np.abs(contexts[0] - contexts[2]).max() > 1e-3
    assert np.abs(contexts[0]).max() < 0.1
    assert make_method(problem, initialisation="random", per_class=True)._start().context.shape == (5, 2, 3)


@pytest.mark.parametrize(("shots", "epochs"), [(1, 50), (2, 100), (4, 100), (5, 200)])
def test_the_number_of_epochs_follows_the_shots(problem, shots, epochs):
    rows = np.concatenate([np.flatnonzero(problem.labels == k)[:shots] for k in range(5)])
    method = make_method(problem, support=(problem.features[rows], problem.labels[rows]), epochs=None, batch_size=64)
    assert len(method.losses) == epochs


def test_a_saved_method_is_loaded_without_training(problem, tmp_path):
    method = make_method(problem)
    method.adapt(problem.features[:4])
    method.save(tmp_path / "coop.safetensors")

    class Untouchable(ExampleText):
        def pull_back(self, context, upstream):
            raise AssertionError("trained again")

    again = load(tmp_path / "coop.safetensors", text=Untouchable(problem.prototypes))
    np.testing.assert_array_equal(again.predict(problem.features), method.predict(problem.features))
    np.testing.assert_array_equal(again.context, method.context)
    np.testing.assert_array_equal(again.losses, method.losses)
    assert again.n_seen == 4
    again = load(tmp_path / "coop.safetensors", text=ExampleText(problem.prototypes))
    again.reset()
    np.testing.assert_array_equal(again.predict(problem.features), method.predict(problem.features))


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"text": None}, TypeError, r"text must be a PromptedText, as zeroshift.encode.prompted_text\(encoder"),
        ({"text": ExampleText(np.eye(12)[:4])}, ValueError, "text has 4 classes in d = 12, the prototypes have 5"),
        ({"text": ExampleText(np.eye(12)[:5])}, ValueError, r"prototypes differ .* Fix: prototypes=text.features"),
        ({"support": None}, TypeError, r"support must be a pair \(features, labels\)"),
        ({"support": (np.eye(12), np.full(12, 5))}, ValueError, "support labels"),
        ({"order": np.zeros((6, 30), int)}, ValueError, "order row 0 must contain each index from 0 to 29 once"),
        ({"order": [[1]]}, TypeError, "order must be"),
        ({"order": np.tile(np.arange(30), (5, 1))}, ValueError, "order must have one row per epoch"),
        ({"initial": np.zeros((3, 3))}, ValueError, r"initial must have the shape \(2, 3\); got \(3"),
        ({"initial": np.full((2, 3), np.nan)}, ValueError, "initial must hold finite numbers"),
        ({"initial": np.zeros((2, 3)), "per_class": True}, ValueError, r"shape \(5, 2, 3\); got \(2, 3\)"),
        ({"initialisation": "zeros"}, ValueError, "initialisation must be one of 'words', 'random'; got 'zeros'"),
    ],
)  # fmt: skip
def test_parameters_that_do_not_fit_raise(problem, changes, kind, message):
    with pytest.raises(kind, match=message):
        make_method(problem, **changes)


def test_torch_gives_the_same(problem):
    torch = pytest.importorskip("torch")
    prototypes = torch.tensor(problem.prototypes)
    method = CoOp(
        prototypes, text=ExampleText(prototypes), support=(torch.tensor(problem.features[:30]), problem.labels[:30]),
        epochs=6, batch_size=8, logit_scale=20.0,
    )  # fmt: skip
    assert isinstance(method.context, torch.Tensor)
    np.testing.assert_allclose(method.context, make_method(problem).context, atol=1e-10)
    np.testing.assert_allclose(
        method.predict(torch.tensor(problem.features)), make_method(problem).predict(problem.features), atol=1e-10
    )


def test_example_support_is_learned():
    method = CoOp(
        np.eye(3), text=ExampleText(np.eye(3)), support=example_support(np.eye(3)), logit_scale=5.0, epochs=20
    )
    assert method.losses[-1] < method.losses[0]


def test_methods_of_the_same_parameters_can_be_merged(problem):
    one = make_method(problem)
    parameters = one.get_params()
    other = type(one)(**parameters)
    one.adapt(problem.features[:3])
    other.adapt(problem.features[:2])
    assert one.merge(other).n_seen == 5
    np.testing.assert_array_equal(one.predict(problem.features), other.predict(problem.features))

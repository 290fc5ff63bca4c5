"""CoOp against the outputs of the authors' trainer on a tiny CLIP (tests/golden/README.md), and its properties."""

import numpy as np
import pytest

from goldens import golden
from zeroshift.methods import CoCoOp, CoOp, PromptSRC, SelfTPT, load
from zeroshift.testing import Case, make_problem
from zeroshift.testing.examples import ExampleText

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


@pytest.fixture
def problem():
    return make_problem(classes=5, dimension=12, samples=40, seed=3)


def make_method(problem, **settings):
    prototypes = problem.prototypes
    given = {"text": ExampleText(prototypes), "support": (problem.features[:30], problem.labels[:30]), "epochs": 6}
    return CoOp(prototypes, **{**given, "batch_size": 8, "logit_scale": 20.0, **settings})


def test_random_contexts_are_drawn_from_the_seed(problem):
    drawn = {"initialisation": "random", "epochs": 0}
    contexts = [make_method(problem, seed=seed, **drawn).context for seed in (0, 0, 1)]
    np.testing.assert_array_equal(contexts[0], contexts[1])
    assert np.abs(contexts[0] - contexts[2]).max() > 1e-3
    assert np.abs(contexts[0]).max() < 0.1
    assert make_method(problem, per_class=True, **drawn).context.shape == (5, 2, 3)


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
        ({"order": np.tile(np.arange(30), (5, 1))}, ValueError, "order must have one row per epoch"),
        ({"initial": np.zeros((3, 3))}, ValueError, r"initial must have the shape \(2, 3\); got \(3"),
        ({"initial": np.zeros((2, 3)), "per_class": True}, ValueError, r"shape \(5, 2, 3\); got \(2, 3\)"),
    ],
)  # fmt: skip
def test_parameters_that_do_not_fit_raise(problem, changes, kind, message):
    with pytest.raises(kind, match=message):
        make_method(problem, **changes)


@pytest.mark.parametrize("cls", [CoOp, CoCoOp, PromptSRC, SelfTPT])
def test_methods_of_the_same_parameters_can_be_merged(problem, cls):
    one = Case(cls).create(problem.prototypes)
    other = cls(**one.get_params())
    one.adapt(problem.features[:3])
    other.adapt(problem.features[:2])
    assert one.merge(other).n_seen == 5
    np.testing.assert_array_equal(one.predict(problem.features), other.predict(problem.features))

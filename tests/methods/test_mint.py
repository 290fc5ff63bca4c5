"""Mint against the outputs of the authors' code on a tiny CLIP (tests/golden/README.md), and its properties."""

import copy

import numpy as np
import pytest

from goldens import golden
from zeroshift.files import FileFormatError
from zeroshift.methods.mint import ClassSums, Mint, variance_gradient
from zeroshift.tensor_files import read_tensors, write_tensors
from zeroshift.testing import make_problem
from zeroshift.testing.examples import ExampleVision
from zeroshift.zero_shot import posterior

RUNS = {"mint": {}, "mint_prior100": {"prior": 100.0}, "mint_lr15": {"rate": 1.5e-2}}


def make_method(precision="float32", **settings):
    pytest.importorskip("transformers")
    from tiny_clip import exact_text, tiny_text, tiny_vision

    text = exact_text() if precision == "float64" else tiny_text()
    return Mint(text.features(text.context), vision=tiny_vision(precision), **{"batch_size": 24, **settings})


def example(**settings):
    problem = make_problem(classes=5, dimension=12, samples=60, seed=3)
    settings = {"logit_scale": 20.0, **settings}
    return problem, Mint(problem.prototypes, vision=ExampleVision(problem.prototypes), **settings)


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("run", RUNS)
def test_agrees_with_the_golden(run, precision):
    expected = golden("tiny_clip_tower")
    method = make_method(precision, **RUNS[run])
    found = method.adapt_scores(expected["images"])
    # The goldens are float32, logits have the scale 100, and steps follow the signs of gradients, also of small ones.
    # A plain loop in float64 differs from them by up to 6.5e-4, too, and from the method by 1e-10.
    np.testing.assert_allclose(found, expected[f"{run}_logits"], atol=8e-4)
    np.testing.assert_array_equal(found.argmax(axis=1), expected[f"{run}_logits"].argmax(axis=1))
    np.testing.assert_allclose(method._after.sums, expected[f"{run}_class_sums"], atol=2e-5)
    np.testing.assert_array_equal(method._after.counts, expected[f"{run}_class_n"])
    np.testing.assert_allclose(method._before.sums, expected[f"{run}_pre_class_sums"], atol=2e-5)
    np.testing.assert_allclose(method._gradient_mean, expected[f"{run}_gradient_mean"], atol=1e-6)
    assert method._n_batches == 10


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_single_images_agree_with_the_golden(precision):
    expected = golden("tiny_clip_tower")
    found = make_method(precision, batch_size=1, prior=100.0).adapt_scores(expected["images"][:60])
    np.testing.assert_allclose(found, expected["mint_bs1_logits"], atol=5.4e-4)
    np.testing.assert_array_equal(found.argmax(axis=1), expected["mint_bs1_logits"].argmax(axis=1))


@pytest.mark.parametrize(("batch", "settings"), [(24, {}), (24, {"prior": 10.0, "rate": 1.5e-2}), (7, {}), (1, {})])
def test_agrees_with_a_plain_loop(batch, settings):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from plain import towers
    from tiny_clip import exact_clip, tiny_pixels

    method, details = make_method("float64", batch_size=batch, **settings), {}
    images = golden("tiny_clip_tower")["images"][: 60 if batch > 1 else 12]
    expected = towers.mint(
        copy.deepcopy(exact_clip()), tiny_pixels(images), torch.tensor(method.prototypes),
        batch=batch, details=details, **settings,
    )  # fmt: skip
    np.testing.assert_allclose(method.adapt_scores(images.astype(np.float64)), expected, atol=1e-8)
    np.testing.assert_allclose(method._gradient_mean, details["gradient_mean"], atol=1e-12)


def test_the_gradient_is_torch_s():
    torch = pytest.importorskip("torch")
    draw = np.random.default_rng(4)
    features = torch.tensor(draw.normal(size=(8, 5)), requires_grad=True)
    classes = np.array([0, 0, 2, 0, 3, 2, 0, 3])
    seen = ClassSums(draw.normal(size=(4, 5)), np.array([3.0, 1.0, 4.0, 2.0]))
    means, mean = torch.tensor(seen.means()), torch.tensor(seen.sums.sum(axis=0) / 10)
    weights = torch.tensor([1 / (3 * (classes == k).sum()) for k in classes])
    assert float(weights.sum()) == pytest.approx(1.0)
    total, within = ((features - centre).square().sum(1) for centre in (mean, means[classes]))
    (expected,) = torch.autograd.grad((weights * (within - total)).sum(), features)
    np.testing.assert_allclose(variance_gradient(classes, seen), expected, atol=1e-12)


def test_without_a_step_and_without_class_means_it_is_zero_shot():
    images = golden("tiny_clip_tower")["images"]
    method = make_method(rate=0.0, prior=1e15)
    features = method.vision.encode(images, None).features
    expected = posterior(features, method.prototypes, method.logit_scale)
    np.testing.assert_allclose(method.adapt(images), expected, atol=1e-5)


def test_no_step_while_all_features_are_of_one_class():
    problem, method = example(rate=0.1, prior=1e15)
    same = np.repeat(problem.features[:1], 4, axis=0)
    np.testing.assert_allclose(method.adapt(same), posterior(same, problem.prototypes, 20.0), atol=1e-12)
    assert (method._n_batches, np.abs(method._gradient_mean).max()) == (1, 0.0)
    method.adapt(problem.features)
    assert np.abs(method._gradient_mean).max() > 0


def test_the_layer_norms_are_restored_after_each_batch():
    """Only the accumulators are kept: with them, the next batch does not depend on the steps before."""
    pytest.importorskip("transformers")
    from tiny_clip import tiny_clip

    images, method = golden("tiny_clip_tower")["images"], make_method()
    before = {name: weights.clone() for name, weights in tiny_clip().state_dict().items()}
    features = method.vision.encode(images[:24], None).features
    method.adapt(images[:48])
    assert all((weights == before[name]).all() for name, weights in tiny_clip().state_dict().items())
    np.testing.assert_array_equal(method.vision.encode(images[:24], None).features, features)
    first, second = np.abs(method._norms - method._initial_norms), make_method(rate=1.4e-2)
    assert 6e-3 < first.max() < 7.001e-3  # one step, whatever the number of batches
    second.adapt(images[:24])
    third = make_method()
    third.adapt(images[:24])
    # Another step changes neither the gradients nor the sums of features before it.
    np.testing.assert_array_equal(second._gradient_mean, third._gradient_mean)
    np.testing.assert_array_equal(second._before.sums, third._before.sums)
    assert np.abs(second._after.sums - third._after.sums).max() > 1e-3


def test_predict_uses_what_was_learned_and_changes_nothing():
    problem, method = example(rate=0.05, prior=5.0)
    expected = posterior(problem.features, problem.prototypes, 20.0)
    np.testing.assert_allclose(method.predict(problem.features), expected, atol=1e-12)
    found = method.adapt(problem.features)
    np.testing.assert_allclose(method.predict(problem.features[-20:]), found[-20:], atol=1e-12)
    assert np.abs(method.predict(problem.features) - expected).max() > 0.01
    method.reset()
    np.testing.assert_array_equal(method.adapt(problem.features), found)


def test_a_loaded_method_continues_bit_for_bit(tmp_path):
    images, method = golden("tiny_clip_tower")["images"], make_method(prior=50.0)
    method.adapt(images[:50])
    method.save(tmp_path / "mint.safetensors")
    again = Mint.load(tmp_path / "mint.safetensors", vision=method.vision)
    np.testing.assert_array_equal(again.predict(images[:24]), method.predict(images[:24]))
    np.testing.assert_array_equal(again.adapt(images[50:90]), method.adapt(images[50:90]))


def test_wrong_inputs_are_named():
    problem, method = example()
    vision = ExampleVision(problem.prototypes)
    vision.norms = None
    with pytest.raises(ValueError, match=r"vision has no layer norms that can be tuned; got <example vision"):
        Mint(problem.prototypes, vision=vision)
    with pytest.raises(ValueError, match=r"vision gives features of d = 12, the prototypes have d = 11"):
        Mint(np.eye(3, 11), vision=method.vision)
    with pytest.raises(ValueError, match=r"prior must be a number of at least 0; got -1"):
        example(prior=-1)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("state/after_counts", lambda array: array + 100),
        ("state/before_counts", lambda array: array - 100),
        ("state/before_sums", lambda array: array * 10),
        ("state/gradient_mean", lambda array: array[:-1]),
    ],
)
def test_a_state_that_no_images_lead_to_is_refused(tmp_path, name, change):
    problem, method = example()
    method.adapt(problem.features)
    method.save(tmp_path / "mint.safetensors")
    arrays, header = read_tensors(tmp_path / "mint.safetensors", kind="state", schema=2)
    arrays[name] = np.ascontiguousarray(change(arrays[name]))
    write_tensors(tmp_path / "other.safetensors", arrays, header)
    with pytest.raises(FileFormatError, match="does not contain the state"):
        Mint.load(tmp_path / "other.safetensors", vision=method.vision)

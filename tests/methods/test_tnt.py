"""TNT against the outputs of the authors' functions on a tiny CLIP (tests/golden/README.md), and its properties."""

import numpy as np
import pytest

from goldens import golden
from zeroshift.methods.tnt import TNT, mean_distance
from zeroshift.methods.zero import ZERO
from zeroshift.testing import make_problem
from zeroshift.testing.examples import ExampleVision

IMAGES = range(8)


def make_method(precision="float32", **settings):
    pytest.importorskip("transformers")
    from tiny_clip import exact_text, tiny_scale, tiny_text, tiny_vision

    text = exact_text() if precision == "float64" else tiny_text()
    vision = tiny_vision(precision)
    return TNT(text.features(text.context), vision=vision, logit_scale=tiny_scale(), **{"view_ratio": 0.2, **settings})


def example(images=4, views=20, **settings):
    """A method, and views (N, V, 12) of which view 0 is the image."""
    problem = make_problem(classes=5, dimension=12, samples=images, seed=3, noise=1.5)
    noise = 0.1 * np.random.default_rng(3).normal(size=(images, views, 12))
    noise[:, 0] = 0
    rows = problem.features[:, None] + noise
    settings = {"logit_scale": 20.0, **settings}
    return TNT(problem.prototypes, vision=ExampleVision(problem.prototypes), **settings), rows / np.linalg.norm(
        rows, axis=-1, keepdims=True
    )


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize(("steps", "suffix"), [(1, ""), (3, "_steps3")])
def test_agrees_with_the_golden(steps, suffix, precision):
    expected, differing = golden("tiny_clip_tower"), []
    for i in IMAGES:
        method = make_method(precision, steps=steps, noise=expected["tnt_init_noise"][i])
        views = expected["tnt_views"][i]
        np.testing.assert_allclose(method.adapt_views_scores(views), expected[f"tnt_pbar{suffix}"][i], atol=1e-5)
        differing.append(np.abs(method._tuned_noise(views) - expected[f"tnt_noise{suffix}"][i]) > 1e-6)
    # Signs of gradients at rounding level: the specification states up to 7e-4 of the entries in float64.
    assert np.mean(differing) <= 1.5e-3


@pytest.mark.parametrize("steps", [1, 3])
def test_agrees_with_a_plain_loop(steps):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from plain import towers
    from tiny_clip import CLIP_MEAN, CLIP_STD, exact_clip, tiny_scale

    views, noise = golden("tiny_clip_tower")["tnt_views"], golden("tiny_clip_tower")["tnt_init_noise"][0]
    method, details = make_method("float64", steps=steps, noise=noise), {}
    mean, std = (torch.tensor(values).double()[:, None, None] for values in (CLIP_MEAN, CLIP_STD))
    expected = towers.tnt(
        exact_clip(), torch.tensor(views).double() / 255, torch.tensor(method.prototypes), torch.tensor(noise).double(),
        mean=mean, std=std, logit_scale=tiny_scale(), view_ratio=0.2, steps=steps, details=details,
    )  # fmt: skip
    np.testing.assert_allclose(method.adapt_views_scores(views), expected, atol=1e-5)
    np.testing.assert_allclose([method._tuned_noise(image) for image in views], details["noise"], atol=1e-12)


def test_the_gradient_of_the_distance_is_torch_s_and_equal_features_do_not_count():
    torch = pytest.importorskip("torch")
    features = torch.tensor(np.random.default_rng(4).normal(size=(5, 4)), requires_grad=True)
    distances = torch.pdist(features)
    loss, gradient = mean_distance(features.detach().numpy())
    assert float(loss) == pytest.approx(float(distances.mean().detach()))
    np.testing.assert_allclose(gradient, torch.autograd.grad(distances.mean(), features)[0], atol=1e-12)
    for same in (np.ones((1, 3)), np.ones((4, 3))):
        loss, gradient = mean_distance(same)
        assert (float(loss), np.abs(gradient).max()) == (0.0, 0.0)


def test_the_gradient_of_the_noise_is_a_difference_quotient():
    pytest.importorskip("transformers")
    from tiny_clip import tiny_vision

    vision, draw = tiny_vision("float64"), np.random.default_rng(3)
    images, above = golden("tiny_clip_tower")["images"][:6], draw.normal(size=(6, 32))
    noise, direction = draw.normal(0, 1e-3, size=(2, 3, 16, 16))
    gradient = vision.pull_back_noise(images, noise, above)
    up, down = ((above * vision.encode_with_noise(images, noise + h * direction)).sum() for h in (1e-4, -1e-4))
    assert (gradient * direction).sum() == pytest.approx((up - down) / 2e-4, rel=1e-4)
    parts = tiny_vision("float64", 4)
    np.testing.assert_allclose(parts.pull_back_noise(images, noise, above), gradient, atol=1e-10)


def test_brightness_is_cut_off():
    """Noise has no effect on, and no gradient from, pixels that it moves below black or above white."""
    pytest.importorskip("transformers")
    from tiny_clip import tiny_vision

    vision, images = tiny_vision("float64"), np.zeros((2, 3, 16, 16), np.uint8)
    images[1] = 255
    plain = vision.encode(images, None).features
    for i, noise in enumerate((-np.ones((3, 16, 16)) / 255, np.ones((3, 16, 16)) / 255)):
        np.testing.assert_allclose(vision.encode_with_noise(images[i : i + 1], noise), plain[i : i + 1], atol=1e-6)
        gradient = vision.pull_back_noise(images[i : i + 1], noise, np.ones((1, 32)))
        np.testing.assert_array_equal(gradient, np.zeros((3, 16, 16)))
        assert np.abs(vision.pull_back_noise(images[i : i + 1], -noise, np.ones((1, 32)))).max() > 0


def test_without_noise_it_votes_as_zero():
    """The rules of the two differ for ties."""
    expected, method = golden("tiny_clip_tower"), make_method("float64", max_noise=0.0, vote_ratio=0.3)
    views = method.vision.encode(expected["tnt_views"].reshape(-1, 3, 16, 16), None).features.reshape(8, 32, 32)
    votes = ZERO(method.prototypes, logit_scale=method.logit_scale, view_ratio=0.3).adapt_views_scores(views)
    found, ranked = method.adapt_views_scores(expected["tnt_views"]), np.sort(votes, axis=1)
    decided = ranked[:, -1] - ranked[:, -2] > 1
    assert decided.sum() > 2
    np.testing.assert_allclose(found[decided], votes[decided], atol=1e-6)


def test_the_noise_is_within_its_limits_and_starts_as_clipped_normal():
    method = make_method(steps=5)
    initial = method._initial_noise
    assert np.abs(initial).max() <= 1 / 255
    assert (np.abs(initial) == 1 / 255).mean() > 0.98
    views = golden("tiny_clip_tower")["tnt_views"][0]
    tuned = method._tuned_noise(views)
    assert np.abs(tuned).max() <= 1 / 255
    assert 0 < np.abs(tuned - initial).max() <= 5e-3 + 1e-12
    np.testing.assert_array_equal(make_method(steps=0)._tuned_noise(views), initial)
    assert np.abs(make_method(seed=1)._initial_noise - initial).max() > 0


def test_each_image_is_an_episode():
    views = golden("tiny_clip_tower")["tnt_views"][:3]
    method = make_method()
    together = method.adapt_views(views)
    for i in (2, 0, 1):
        np.testing.assert_array_equal(method.adapt_views(views[i]), together[i])
    np.testing.assert_array_equal(method.predict_views(views), together)
    assert method.n_seen == 6
    np.testing.assert_allclose(together.sum(axis=1), 1, atol=1e-6)


def test_a_step_lowers_the_distance_of_the_views():
    expected = golden("tiny_clip_tower")
    views = expected["tnt_views"][0]
    method = make_method("float64", entropy_weight=0.0, view_ratio=1.0, rate=1e-4)
    before, after = (
        float(mean_distance(method._encode(views, noise))[0])
        for noise in (method._initial_noise, method._tuned_noise(views))
    )
    assert after < before


def test_the_temperature_of_the_vote():
    """Machine epsilon: one vote for each view; larger: the votes are shared."""
    method, views = example(vote_ratio=0.3)
    votes = method.adapt_views_scores(views)
    np.testing.assert_allclose(votes, votes.round(), atol=1e-6)
    soft, _ = example(vote_ratio=0.3, temperature=0.1)
    shared = soft.adapt_views_scores(views)
    assert np.abs(shared - shared.round()).max() > 0.05


def test_a_saved_method_answers_bit_for_bit(tmp_path):
    expected = golden("tiny_clip_tower")
    for settings in ({"seed": 3}, {"noise": expected["tnt_init_noise"][1]}):
        method, views = make_method(**settings), expected["tnt_views"][:2]
        method.adapt_views(views[:1])
        method.save(tmp_path / "tnt.safetensors")
        again = TNT.load(tmp_path / "tnt.safetensors", vision=method.vision)
        np.testing.assert_array_equal(again.adapt_views(views), method.adapt_views(views))
        assert again.n_seen == 3


def test_one_view_is_enough():
    method, views = example()
    assert method.adapt(views[:, 0]).shape == (4, 5)
    np.testing.assert_array_equal(method.adapt(views[:, 0]), method.adapt_views(views[:, :1]))


def test_wrong_inputs_are_named():
    method, views = example()
    prototypes, vision = method.prototypes, method.vision
    with pytest.raises(ValueError, match=r"noise must have the shape \(3,\), that of an image; got \(2,\)"):
        TNT(prototypes, vision=vision, noise=np.zeros(2))
    for wrong in (0.5, np.nan):
        with pytest.raises(ValueError, match=r"noise must be from -max_noise to max_noise = 0\.00392.*Fix"):
            TNT(prototypes, vision=vision, noise=np.full(3, wrong))
    with pytest.raises(ValueError, match=r"vision gives features of d = 12, the prototypes have d = 11"):
        TNT(np.eye(3, 11), vision=vision)
    with pytest.raises(ValueError, match=r"views\[0\] has d = 11 columns"):
        method.adapt_views(views[..., :11])
    with pytest.raises(ValueError, match=r"views must have the shape \(N, V, 12\)"):
        method.adapt_views(views[0, 0])
    blind = ExampleVision(prototypes)
    blind.noise_shape = None
    with pytest.raises(ValueError, match=r"vision cannot add noise to images; got <example vision"):
        TNT(prototypes, vision=blind)


def test_noise_of_another_shape_is_refused_by_the_encoder():
    pytest.importorskip("transformers")
    from tiny_clip import tiny_vision

    images = golden("tiny_clip_tower")["images"][:1]
    with pytest.raises(ValueError, match=r"noise must have the shape \(3, 16, 16\), that of an image; got \(3, 4, 4\)"):
        tiny_vision().encode_with_noise(images, np.zeros((3, 4, 4)))

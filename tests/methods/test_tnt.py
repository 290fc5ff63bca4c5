"""TNT against the outputs of the authors' functions on a tiny CLIP (tests/golden/README.md), and its properties."""

import numpy as np
import pytest
import torch

from goldens import golden
from plain import towers
from tiny_clip import CLIP_MEAN, CLIP_STD, exact_clip, tiny_method, tiny_scale
from zeroshift.encode.tuning.vision import TokenVision
from zeroshift.methods.tnt import TNT, mean_distance
from zeroshift.methods.zero import ZERO
from zeroshift.testing import make_problem
from zeroshift.testing.examples import ExampleVision

AUTHORS = golden("tiny_clip_tower")


@pytest.fixture
def noises(monkeypatch):
    """The noise of every call of the encoder: first the initial one, at last that under which an image is predicted."""
    seen, encode = [], TokenVision.encode_with_noise
    monkeypatch.setattr(
        TokenVision, "encode_with_noise", lambda self, images, noise: seen.append(noise) or encode(self, images, noise)
    )
    return seen


def make_method(precision="float32", **settings):
    return tiny_method(TNT, precision, **{"view_ratio": 0.2, **settings})


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
def test_the_authors_votes_and_noise(steps, suffix, precision, noises):
    differing = []
    for i, views in enumerate(AUTHORS["tnt_views"]):
        method = make_method(precision, steps=steps, noise=AUTHORS["tnt_init_noise"][i])
        np.testing.assert_allclose(method.adapt_views_scores(views), AUTHORS[f"tnt_pbar{suffix}"][i], atol=1e-5)
        differing.append(np.abs(noises[-1] - AUTHORS[f"tnt_noise{suffix}"][i]) > 1e-6)
    # Signs of gradients at rounding level: the specification states up to 7e-4 of the entries in float64.
    assert np.mean(differing) <= 1.5e-3


@pytest.mark.parametrize("steps", [1, 3])
def test_a_plain_loop_agrees(steps, noises):
    views, noise = AUTHORS["tnt_views"], AUTHORS["tnt_init_noise"][0]
    method, details, tuned = make_method("float64", steps=steps, noise=noise), {}, []
    mean, std = (torch.tensor(values).double()[:, None, None] for values in (CLIP_MEAN, CLIP_STD))
    expected = towers.tnt(
        exact_clip(), torch.tensor(views).double() / 255, torch.tensor(method.prototypes), torch.tensor(noise).double(),
        mean=mean, std=std, logit_scale=tiny_scale(), view_ratio=0.2, steps=steps, details=details,
    )  # fmt: skip
    for image, votes in zip(views, expected, strict=True):
        np.testing.assert_allclose(method.adapt_views_scores(image), votes, atol=1e-5)
        tuned.append(noises[-1])
    np.testing.assert_allclose(tuned, details["noise"], atol=1e-12)


def test_the_gradient_of_the_distance_is_torch_s_and_equal_features_do_not_count():
    features = torch.tensor(np.random.default_rng(4).normal(size=(5, 4)), requires_grad=True)
    distances = torch.pdist(features)
    loss, gradient = mean_distance(features.detach().numpy())
    assert float(loss) == pytest.approx(float(distances.mean().detach()))
    np.testing.assert_allclose(gradient, torch.autograd.grad(distances.mean(), features)[0], atol=1e-12)
    for same in (np.ones((1, 3)), np.ones((4, 3))):
        loss, gradient = mean_distance(same)
        assert (float(loss), np.abs(gradient).max()) == (0.0, 0.0)


def test_without_noise_it_votes_as_zero():
    """The rules of the two differ for ties."""
    method = make_method("float64", max_noise=0.0, vote_ratio=0.3)
    views = method.vision.encode(AUTHORS["tnt_views"].reshape(-1, 3, 16, 16), None).features.reshape(8, 32, 32)
    votes = ZERO(method.prototypes, logit_scale=method.logit_scale, view_ratio=0.3).adapt_views_scores(views)
    found, ranked = method.adapt_views_scores(AUTHORS["tnt_views"]), np.sort(votes, axis=1)
    decided = ranked[:, -1] - ranked[:, -2] > 1
    assert decided.sum() > 2
    np.testing.assert_allclose(found[decided], votes[decided], atol=1e-6)


def test_the_noise_is_within_its_limits_and_starts_as_clipped_normal(noises):
    views, largest = AUTHORS["tnt_views"][0], 1 / 255
    make_method(steps=5).adapt_views(views)
    initial, tuned = noises[0], noises[-1]
    assert np.abs(initial).max() <= largest
    assert (np.abs(initial) == largest).mean() > 0.98
    assert np.abs(tuned).max() <= largest
    assert 0 < np.abs(tuned - initial).max() <= 5e-3 + 1e-12
    for settings, same in (({"steps": 0}, True), ({"seed": 1}, False)):
        noises.clear()
        make_method(**settings).adapt_views(views)
        assert np.array_equal(noises[0], initial) == same
        assert np.array_equal(noises[-1], noises[0]) == same


def test_the_temperature_of_the_vote():
    """Machine epsilon: one vote for each view; larger: the votes are shared."""
    method, views = example(vote_ratio=0.3)
    votes = method.adapt_views_scores(views)
    np.testing.assert_allclose(votes, votes.round(), atol=1e-6)
    soft, _ = example(vote_ratio=0.3, temperature=0.1)
    shared = soft.adapt_views_scores(views)
    assert np.abs(shared - shared.round()).max() > 0.05


def test_wrong_inputs_are_named():
    method, views = example()
    prototypes, vision = method.prototypes, method.vision
    with pytest.raises(
        ValueError, match=r"noise must have the shape \(3,\); got \(2,\)\. Fix: noise of the shape of an image"
    ):
        TNT(prototypes, vision=vision, noise=np.zeros(2))
    for wrong, message in ((0.5, r"be from -max_noise to max_noise = 0\.00392.*Fix"), (np.nan, "hold finite numbers")):
        with pytest.raises(ValueError, match=f"noise must {message}"):
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

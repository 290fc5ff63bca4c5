"""MTA against the authors' outputs, a plain loop, and its properties."""

import tracemalloc

import numpy as np
import pytest
import torch

from goldens import golden
from zeroshift.arrays import normalize, to_numpy
from zeroshift.methods import mta as view_modes
from zeroshift.methods.mta import MTA, ViewAffinity, squared_bandwidths
from zeroshift.testing import check_method, make_problem
from zeroshift.zero_shot import posterior

SCALE = 100.00000762939453
TOLERANCE = 2e-3

SETTINGS = {
    "default": ({}, 64),
    "lq0": ({"affinity_weight": 0}, 64),
    "lq1_ly05": ({"affinity_weight": 1, "inlier_temperature": 0.5}, 64),
    "v32": ({}, 32),
}


def images(n_views=12, n_images=9, *, classes=7, dimension=10, seed=0, spread=0.6):
    """Views scattered about each image, view 0 the image itself; and prototypes."""
    given = make_problem(classes, dimension, n_images, seed=seed)
    noise = np.random.default_rng(seed).normal(size=(n_images, n_views, dimension)) * spread / dimension**0.5
    noise[:, 0] = 0
    return normalize((given.features[:, None, :] + noise).reshape(-1, dimension)).reshape(noise.shape), given.prototypes


def plain(views, prototypes, *, scale, weight=4.0, temperature=0.2, share=0.3, rounds=5, tolerance=1e-6):
    """One image, written from the specification without logarithms or batches."""

    def soft(z):
        e = np.exp(z - z.max(axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True)

    n = len(views)
    q = soft(scale * views @ prototypes.T)
    affinity = q @ q.T
    distances = np.linalg.norm(views[:, None] - views[None], axis=2)
    k = int(share * (n - 1))
    h2 = np.array([0.5 * np.mean(np.sort(row)[1 : k + 1] ** 2) for row in distances])
    y, mode = np.full(n, 1 / n), views[0]
    for _ in range(rounds):
        g = np.exp(-(np.linalg.norm(views - mode, axis=1) ** 2) / (2 * h2))
        for _ in range(rounds):
            old, y = y, soft((g + weight * affinity @ y) / temperature)
            if np.linalg.norm(y - old) < tolerance:
                break
        for _ in range(rounds):
            w = np.exp(-(np.linalg.norm(views - mode, axis=1) ** 2) / (2 * h2)) * y
            old, mode = mode, w @ views / w.sum()
            mode = mode / np.linalg.norm(mode)
            if np.linalg.norm(mode - old) < tolerance:
                break
    return scale * prototypes @ mode, y, mode


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
@pytest.mark.parametrize("convert", [np.asarray, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_the_authors_logits(setting, convert, dtype):
    given, expected = golden("problem_views"), golden("mta")
    parameters, n_views = SETTINGS[setting]
    method = MTA(convert(given["prototypes"].astype(dtype)), logit_scale=SCALE, **parameters)
    scores = to_numpy(method.adapt_views_scores(convert(given["views"][:, :n_views].astype(dtype))))
    np.testing.assert_allclose(scores, expected[f"logits_{setting}"], rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(scores.argmax(axis=1), expected[f"pred_{setting}"])


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"affinity_weight": 0.5, "inlier_temperature": 1.5, "neighbour_share": 0.7},
        {"iterations": 2, "tolerance": 0.05},
        {"iterations": 12, "tolerance": 0.0},
    ],
)
@pytest.mark.parametrize("n_views", [5, 12, 30])
def test_the_plain_version_agrees(n_views, parameters):
    """With fewer views than classes and with more; with a tolerance that some images reach and others do not."""
    views, prototypes = images(n_views)
    words = {"affinity_weight": "weight", "inlier_temperature": "temperature", "neighbour_share": "share"}
    translated = {words.get(name, name): value for name, value in parameters.items()}
    translated["rounds"] = translated.pop("iterations", 5)
    expected = np.stack([plain(image, prototypes, scale=20.0, **translated)[0] for image in views])
    method = MTA(prototypes, logit_scale=20.0, **parameters)
    np.testing.assert_allclose(method.adapt_views_scores(views), expected, rtol=0, atol=1e-9)


def test_inlierness_and_mode_are_those_of_the_plain_version():
    views, prototypes = images(20)
    method = MTA(prototypes, logit_scale=20.0)
    mode, inlierness = method._mode(views, ViewAffinity(posterior(views, prototypes, 20.0)))
    for image in range(len(views)):
        _, y, m = plain(views[image], prototypes, scale=20.0)
        np.testing.assert_allclose(inlierness[image], y, rtol=0, atol=1e-9)
        np.testing.assert_allclose(mode[image], m, rtol=0, atol=1e-9)
    np.testing.assert_allclose(np.linalg.norm(mode, axis=1), 1.0)


def test_a_large_temperature_makes_all_views_equal():
    """And without predictions, one round is MeanShift weighted by density only."""
    views, prototypes = images(15)
    affinity = ViewAffinity(posterior(views, prototypes, 20.0))
    _, inlierness = MTA(prototypes, inlier_temperature=1e9)._mode(views, affinity)
    np.testing.assert_allclose(inlierness, 1 / 15, rtol=1e-6)
    once = MTA(prototypes, inlier_temperature=1e9, affinity_weight=0, iterations=1)
    mode, _ = once._mode(views, affinity)
    h2 = squared_bandwidths(views, 0.3)
    w = np.exp(-((views - views[:, :1]) ** 2).sum(axis=2) / (2 * h2))
    np.testing.assert_allclose(mode, normalize((w[:, :, None] * views).sum(axis=1)), rtol=0, atol=1e-9)


def test_bandwidths_by_hand():
    """Five views: one neighbour each. The squared distance of two orthogonal views is 2, of equal ones 0."""
    views = np.array([[[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [-1.0, 0.0], [-1.0, 0.0]]])
    expected = np.array([[0.2, 0.2, 0.4, 1e-12, 1e-12]])
    np.testing.assert_allclose(squared_bandwidths(views, 0.3), expected, atol=1e-15)
    np.testing.assert_allclose(squared_bandwidths(views, 0.5)[0, 0], (0.2 + 1.0) / 2)


def test_the_order_of_the_other_views_does_not_matter():
    views, prototypes = images(20)
    shuffled = np.concatenate([views[:, :1], views[:, 1:][:, np.random.default_rng(1).permutation(19)]], axis=1)
    method = MTA(prototypes, logit_scale=20.0)
    expected = method.adapt_views_scores(views)
    np.testing.assert_allclose(method.adapt_views_scores(shuffled), expected, rtol=0, atol=1e-9)
    order = np.array([3, 1, 0, 2, 6, 5, 4])
    permuted = MTA(prototypes[order], logit_scale=20.0).adapt_views_scores(views)
    np.testing.assert_allclose(permuted, expected[:, order], rtol=0, atol=1e-9)


@pytest.mark.parametrize("n_views", [2, 3, 4])
def test_few_views_have_one_neighbour_each(n_views):
    """The authors' code returns NaN here."""
    views, prototypes = images(n_views)
    assert int(0.3 * (n_views - 1)) == 0
    scores = MTA(prototypes, logit_scale=20.0).adapt_views_scores(views)
    expected = [plain(image, prototypes, scale=20.0, share=1.01 / (n_views - 1))[0] for image in views]
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("n_views", [1, 2, 5, 64])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_equal_views_are_one_view(n_views, dtype):
    """All distances are 0. In half precision the lengths of unit vectors are off by up to 1e-2."""
    given = make_problem()
    features = torch.tensor(given.features).to(dtype)
    method = MTA(torch.tensor(given.prototypes), logit_scale=20.0)
    answer = method.adapt_views(features[:, None, :].expand(-1, n_views, -1))
    expected = method.adapt(torch.tensor(normalize(to_numpy(features.double()))) if n_views > 1 else features)
    np.testing.assert_allclose(answer.numpy(), expected.numpy(), rtol=0, atol=1e-6)


def test_equal_views_among_others_do_not_underflow():
    """Nine equal crops far from the image: their kernel is very narrow, and the image is its own mode."""
    image, crop = np.array([1.0, 0.0, 0.0]), np.array([0.0, 0.6, 0.8])
    views = np.stack([image, *[crop] * 9])
    scores = MTA(np.eye(3), logit_scale=5.0).adapt_views_scores(views)
    np.testing.assert_allclose(scores, 5 * image, atol=1e-12)
    opposite = np.stack([image, -image])
    assert np.isfinite(MTA(np.eye(3), logit_scale=5.0).adapt_views(opposite)).all()


@pytest.mark.parametrize("n_views", [6, 40])
def test_block_size_does_not_change_results(n_views, monkeypatch):
    views, prototypes = images(n_views)
    expected = MTA(prototypes, logit_scale=20.0).adapt_views_scores(views)
    monkeypatch.setattr(view_modes, "WORK_NUMBERS", 1)
    monkeypatch.setattr("zeroshift.method.WORK_NUMBERS", 1000)
    actual = MTA(prototypes, logit_scale=20.0).adapt_views_scores(views)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-9)


def test_no_square_matrix_of_many_views_is_made(monkeypatch):
    """2,000 views: a V x V array would have 4,000,000 numbers. The memory that NumPy allocates is traced."""
    monkeypatch.setattr(view_modes, "WORK_NUMBERS", 100_000)
    views, prototypes = images(2000, n_images=1)
    method = MTA(prototypes, logit_scale=20.0, iterations=1)
    tracemalloc.start()
    method.adapt_views(views)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8_000_000


@pytest.mark.parametrize("parameters", [{}, {"affinity_weight": 0.0, "tolerance": 0.0}])
def test_common_checks(parameters):
    check_method(MTA, parameters=parameters)

"""RA-TTA against a plain loop written from the specification, cases with a known result, and edge cases."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch

from zeroshift import normalize
from zeroshift.methods.ratta import RATTA, largest_cosines, quantile_cosines
from zeroshift.testing import check_method, make_problem
from zeroshift.testing.examples import example_descriptions, example_prompts
from zeroshift.zero_shot import posterior

SCALE = 20.0

both_libraries = pytest.mark.parametrize("library", [np.asarray, torch.tensor], ids=["numpy", "torch"])


def make_inputs(classes=6, images=15, n_views=9, each=12, database=60, seed=5):
    """Views (N, V, d), prototypes, descriptions (K, P, d) and a database."""
    problem = make_problem(classes=classes, samples=images * n_views + database, seed=seed)
    rng = np.random.default_rng(seed)
    bank = normalize((problem.prototypes[:, None] + 0.15 * rng.normal(size=(classes, each, 16))).reshape(-1, 16))
    views = problem.features[database:].reshape(images, n_views, 16)
    return views, problem.prototypes, bank.reshape(classes, each, 16), problem.features[:database]


def plain(views, prototypes, rows, classes, database, **changes):
    """The steps of the specification for one image: probabilities (K,), and the candidates."""
    settings = {"theta": 0.75, "k_d": 20, "minimum": 5, "k_s": 20, "reg": 0.1, "stop": 1e-2} | changes
    exponentials = np.exp(SCALE * prototypes @ views[0])
    p_t = exponentials / exponentials.sum()
    h_t = -sum(p * math.log(p) for p in p_t)
    similarities = [np.quantile([view @ row for view in views], settings["theta"]) for row in rows]
    chosen = sorted(range(len(rows)), key=lambda r: -similarities[r])[: settings["k_d"]]
    groups: dict[int, list[int]] = {}
    for r in chosen:
        groups.setdefault(int(classes[r]), []).append(r)
    groups = {c: group for c, group in groups.items() if len(group) >= settings["minimum"]}
    if not groups:
        return p_t, groups
    everything = np.mean([rows[r] for group in groups.values() for r in group], axis=0)
    everything /= np.linalg.norm(everything)
    a = np.exp(SCALE * views @ everything)
    a /= a.sum()
    relevance = {}
    for c, group in groups.items():
        mean = np.mean([rows[r] for r in group], axis=0)
        mean /= np.linalg.norm(mean)
        found = sorted(database, key=lambda x: -(x @ mean))[: settings["k_s"]]
        b = np.exp([SCALE * (x @ mean) for x in found])
        b /= b.sum()
        cost = np.array([[abs(view @ mean - x @ mean) for x in found] for view in views])
        kernel = np.exp(-cost / settings["reg"])
        u = np.ones(len(views))
        for i in range(100):
            v = b / (kernel.T @ u)
            u = a / (kernel @ v)
            if i % 10 == 0 and np.linalg.norm(v * (kernel.T @ u) - b) < settings["stop"]:
                break
        relevance[c] = SCALE / (1 + (u[:, None] * kernel * v * cost).sum())
    p_r = np.zeros(len(prototypes))
    total = sum(math.exp(value) for value in relevance.values())
    for c, value in relevance.items():
        p_r[c] = math.exp(value) / total
    h_r = -(p_r * np.log(p_r + 1e-7)).sum()
    l_t, l_r = math.exp(1 / (1 + h_t)), math.exp(1 / (1 + h_r))
    return (l_t * p_t + l_r * p_r) / (l_t + l_r), groups


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({}, {}),
        ({"theta": 0.9}, RATTA.preset("imagenet")),
        ({"k_d": 15, "minimum": 2, "k_s": 7}, {"n_descriptions": 15, "min_descriptions": 2, "n_neighbours": 7}),
        ({"minimum": 9}, {"min_descriptions": 9}),
        ({"reg": 0.02, "stop": 1e-6}, {"regularisation": 0.02, "tolerance": 1e-6}),
        ({"theta": 0.0}, {"quantile": 0.0}),
        ({"theta": 1.0, "k_s": 1000}, {"quantile": 1.0, "n_neighbours": 1000}),
    ],
    ids=["defaults", "imagenet", "numbers", "many needed", "long transport", "smallest cosine", "largest cosine"],
)
def test_a_plain_loop(theirs, ours):
    views, prototypes, prompts, database = make_inputs()
    rows, classes = prompts.reshape(-1, 16), np.repeat(np.arange(6), 12)
    answers, kept = zip(*(plain(image, prototypes, rows, classes, database, **theirs) for image in views), strict=True)
    assert any(kept)
    method = RATTA(prototypes, prompts=prompts, unlabelled=database, logit_scale=SCALE, **ours)
    np.testing.assert_allclose(method.adapt_views(views), answers, rtol=0, atol=1e-12)
    if theirs.get("minimum") == 9:
        assert not all(kept), "no image of the problem is without a candidate"


def test_classes_with_different_numbers_of_descriptions():
    views, prototypes, prompts, database = make_inputs()
    keep = np.random.default_rng(0).permutation(72)[:50]
    rows, classes = prompts.reshape(-1, 16)[keep], np.repeat(np.arange(6), 12)[keep]
    method = RATTA(prototypes, prompts=(rows, classes), unlabelled=database, logit_scale=SCALE)
    expected = [plain(image, prototypes, rows, classes, database)[0] for image in views]
    np.testing.assert_allclose(method.adapt_views(views), expected, rtol=0, atol=1e-12)


def test_with_too_few_descriptions_it_is_zero_shot():
    """Such as the three prompt modes of a feature set, where five are required."""
    views, prototypes, _, database = make_inputs()
    method = RATTA(prototypes, prompts=example_prompts(prototypes), unlabelled=database, logit_scale=SCALE)
    expected = posterior(views[:, 0], prototypes, SCALE)
    np.testing.assert_allclose(method.adapt_views(views), expected, rtol=0, atol=1e-15)


def test_a_database_equal_to_the_views_is_at_distance_zero():
    """All views and retrieved images are equal to a candidate's prototype: the transport costs nothing."""
    prototypes = np.eye(3, 8)
    prompts = np.repeat(prototypes[:, None, :], 5, axis=1)
    method = RATTA(prototypes, prompts=prompts, unlabelled=np.repeat(prototypes, 20, axis=0), n_descriptions=5)
    views = np.repeat(prototypes[1][None, None, :], 4, axis=1)
    np.testing.assert_allclose(method.adapt_views(views), prototypes[1:2, :3], atol=1e-12)


def test_the_database_decides_between_candidates():
    """Two classes equally likely by text; the views are as near to the first as its images, but not to the second."""
    prototypes = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    x = normalize(np.array([[1.0, 1.0, 1.0]]))
    prompts = np.repeat(prototypes[:, None, :], 5, axis=1)
    near, far = normalize(np.array([[1.0, 0.1, 1.5], [0.1, 1.0, 0.0]]))
    database = np.repeat(np.stack([near, far]), 3, axis=0)
    method = RATTA(prototypes, prompts=prompts, unlabelled=database, n_neighbours=3)
    assert method.adapt(x)[0].argmax() == 0


@both_libraries
@pytest.mark.parametrize("work_numbers", [1, 50])
def test_banks_and_databases_are_read_in_blocks(work_numbers, library, monkeypatch):
    views, _, prompts, database = make_inputs()
    bank = prompts.reshape(-1, 16)
    monkeypatch.setattr("zeroshift.features.checks.BLOCK_ENTRIES", work_numbers)
    found = np.asarray(quantile_cosines(library(views), library(bank), 0.6))
    np.testing.assert_allclose(found, np.quantile(views @ bank.T, 0.6, axis=1), rtol=0, atol=1e-14)
    nearest = np.asarray(largest_cosines(library(bank), library(database), 7))
    np.testing.assert_allclose(nearest, -np.sort(-bank @ database.T, axis=1)[:, :7], rtol=0, atol=1e-14)


def test_descriptions_in_another_order_give_a_warning():
    _, prototypes, prompts, database = make_inputs(each=3)
    pair = prompts.reshape(-1, 16), np.repeat(np.roll(np.arange(6), 1), 3)
    with pytest.warns(UserWarning, match="nearer to another class's prototype"):
        RATTA(prototypes, prompts=pair, unlabelled=database)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RATTA(prototypes, prompts=(pair[0], np.repeat(np.arange(6), 3)), unlabelled=database)
        RATTA(prototypes, prompts=(pair[0][:3], np.zeros(3, dtype=int)), unlabelled=database)  # one class only


def test_errors_name_the_array():
    prototypes = np.eye(3, 8)
    prompts = prototypes[:, None, :]
    with pytest.raises(TypeError, match=r"prompts must be an array \(K, P, d\) or a pair .* got a tuple of 3"):
        RATTA(prototypes, prompts=(prototypes, [0], [1]), unlabelled=prototypes)
    with pytest.raises(ValueError, match="prompts descriptions row 0 has length 2"):
        RATTA(prototypes, prompts=(2 * prototypes, [0, 1, 2]), unlabelled=prototypes)
    with pytest.raises(ValueError, match="prompts classes row 2 is 3"):
        RATTA(prototypes, prompts=(prototypes, [0, 1, 3]), unlabelled=prototypes)
    with pytest.raises(TypeError, match="prompts must be an array of shape"):
        RATTA(prototypes, prompts=None, unlabelled=prototypes)
    with pytest.raises(ValueError, match="unlabelled has d = 7 columns"):
        RATTA(prototypes, prompts=prompts, unlabelled=np.eye(3, 7))
    with pytest.raises(TypeError, match="unlabelled must be a NumPy array"):
        RATTA(prototypes, prompts=prompts, unlabelled=None)


def test_the_database_is_copied():
    views, prototypes, prompts, database = make_inputs()
    database = database.copy()
    method = RATTA(prototypes, prompts=prompts, unlabelled=database, logit_scale=SCALE)
    before = method.adapt_views(views)
    database[:] = 0
    np.testing.assert_array_equal(method.adapt_views(views), before)


def _pair(prototypes):
    """The example descriptions as a pair, the first of every class first."""
    given = example_descriptions(prototypes)
    if given is None:
        return None
    classes, each, dimension = given.shape
    return given.swapaxes(0, 1).reshape(-1, dimension), np.tile(np.arange(classes), each)


def test_check_method_with_a_pair():
    assert not check_method(RATTA, parameters={"prompts": _pair, "min_descriptions": 3}).failed

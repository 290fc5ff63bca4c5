"""APE: the authors' logits, channels and choices, a plain version, a case by hand, and properties of the formula."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from goldens import first_shots, golden, problem
from plain import ape as plain
from zeroshift import ZeroShot
from zeroshift.arrays import to_numpy
from zeroshift.methods import APE, TipAdapter, ape
from zeroshift.methods._shared import few_shot
from zeroshift.testing import check_method, make_problem
from zeroshift.testing.examples import example_support

TOLERANCE = 2e-4
"""Four times the difference between an independent float64 version and the authors' float32 one."""

RUNS = {
    "16": {},
    "alt4": {
        "channel_share": 0.75, "criterion_weights": (0.5, 0.5), "alpha": 3.0, "gamma_scale": 1.0, "gamma_steps": 20,
    },
}  # fmt: skip


def made(run, dtype="float32", convert=np.asarray, *, searched=True):
    given = problem(dtype)
    features, labels = first_shots(16 if run == "16" else 4, dtype)
    validation = (convert(given["val_features"]), given["val_labels"]) if searched else None
    support = convert(features), labels
    return APE(convert(given["prototypes"]), support=support, validation=validation, **RUNS[run])


def unbalanced(seed=0):
    """(prototypes, support, validation, features): classes with 0 to 12 support samples, class 3 without any."""
    given = make_problem(classes=7, dimension=12, samples=200, seed=seed)
    rows = np.array([i for i in range(60) if given.labels[i] != 3])
    support = given.features[rows], given.labels[rows]
    return given.prototypes, support, (given.features[60:120], given.labels[60:120]), given.features[120:]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("convert", [np.asarray, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize(
    ("run", "searched", "array"),
    [
        ("16", True, "shots16_logits"),
        ("16", False, "init16_logits"),
        ("alt4", True, "alt4_logits"),
        ("alt4", False, "alt4_init_logits"),
    ],
)
def test_authors_logits(run, searched, array, convert, dtype):
    answer = made(run, dtype, convert, searched=searched).adapt_scores(convert(problem(dtype)["features"]))
    expected = golden("ape")[array]
    assert to_numpy(answer).dtype == dtype
    np.testing.assert_allclose(to_numpy(answer), expected, rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(to_numpy(answer).argmax(axis=1), expected.argmax(axis=1))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_authors_channels_weights_and_choices(dtype):
    theirs = golden("ape")
    sixteen, four = made("16", dtype), made("alt4", dtype)
    np.testing.assert_array_equal(sixteen.channels, theirs["indices16"])
    np.testing.assert_array_equal(four.channels, theirs["alt4_indices"])
    np.testing.assert_allclose(sixteen._similarity, theirs["sim16"], rtol=0, atol=1e-6)
    for method, array in ((sixteen, "cache_div16"), (four, "alt4_cache_div")):
        np.testing.assert_allclose(method._divergences, theirs[array][method._groups.order], rtol=0, atol=1e-6)
    for method, array in ((sixteen, "best16_alpha_beta_gamma"), (four, "alt4_best_alpha_beta_gamma")):
        alpha, beta, gamma = theirs[array]
        assert method.chosen == pytest.approx({"beta": beta, "alpha": alpha, "gamma": gamma}, abs=1e-12)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_plain_version_on_other_problems(seed):
    prototypes, support, val, features = unbalanced(seed)
    setting = {
        "channel_share": 0.6, "criterion_weights": (0.4, 0.9), "search_scale": (20.0, 9.0), "search_steps": (20, 7),
        "gamma_scale": 2.0, "gamma_steps": 4, "logit_scale": 20.0,
    }  # fmt: skip
    method = APE(prototypes, support=support, validation=val, **setting)
    details = {}
    expected = plain.scores(
        torch.tensor(features),
        torch.tensor(prototypes),
        support=tuple(map(torch.tensor, support)),
        validation=tuple(map(torch.tensor, val)),
        details=details,
        **setting,
    )
    assert method.chosen == pytest.approx({name: details[name] for name in method.chosen}, abs=1e-12)
    np.testing.assert_array_equal(method.channels, details["channels"])
    np.testing.assert_allclose(method.predict_scores(features), expected, rtol=0, atol=1e-10)


def test_similarity_is_the_mean_over_pairs_of_different_classes():
    prototypes, support, _, _ = unbalanced()
    method = APE(prototypes, support=support)
    samples = np.concatenate([prototypes, support[0]])
    labels = np.concatenate([np.arange(7), support[1]])
    products = [a * b for i, a in enumerate(samples) for j, b in enumerate(samples) if labels[i] != labels[j]]
    np.testing.assert_allclose(method._similarity, np.mean(products, axis=0), rtol=0, atol=1e-12)


def test_a_case_by_hand():
    """Two channels, all kept. Both keys have the prediction softmax(0.8, 0.6) for their own class: 0.549834, which is
    0.862928 bits away from the label, so each votes with exp(0.1 * 0.862928)."""
    support = np.array([[0.8, 0.6], [0.6, 0.8]]), np.array([0, 1])
    method = APE(np.eye(2), support=support, logit_scale=5.0, channel_share=1.0)
    np.testing.assert_allclose(method._divergences, np.log2(1.000001 / (0.5498339973 + 1e-6)), rtol=0, atol=1e-9)
    weight = 2 * np.exp(0.1 * np.log2(1.000001 / (0.5498339973 + 1e-6)))
    expected = [4.8 + weight * np.exp(-0.064), 1.4 + weight * np.exp(-0.2)]
    np.testing.assert_allclose(method.predict_scores(np.array([0.96, 0.28])), expected, rtol=0, atol=1e-9)


def test_the_channel_in_which_classes_agree_is_left_out():
    """Both prototypes and keys share the third entry; only the first two differ between classes."""
    prototypes = np.array([[0.6, 0.0, 0.8], [0.0, 0.6, 0.8]])
    method = APE(prototypes, support=(prototypes, np.array([0, 1])), channel_share=2 / 3)
    assert sorted(method.channels) == [0, 1]


def test_all_channels_without_gamma_is_tip_adapter():
    prototypes, support, val, features = unbalanced()
    method = APE(prototypes, support=support, channel_share=1.0, gamma=0.0, alpha=1.5, beta=3.0)
    expected = TipAdapter(prototypes, support=support, alpha=1.5, beta=3.0).predict_scores(features)
    np.testing.assert_allclose(method.predict_scores(features), expected, rtol=0, atol=1e-10)
    search = {"support": support, "validation": val, "search_scale": (9.0, 5.0), "search_steps": (12, 6)}
    searched = APE(prototypes, channel_share=1.0, gamma_steps=1, **search).chosen
    assert searched == pytest.approx({**TipAdapter(prototypes, **search).chosen, "gamma": 0.0}, abs=1e-12)


def test_without_votes_it_is_zero_shot():
    prototypes, support, _, features = unbalanced()
    zero_shot = ZeroShot(prototypes).predict_scores(features)
    np.testing.assert_array_equal(APE(prototypes, support=support, alpha=0).predict_scores(features), zero_shot)
    scores = APE(prototypes, support=support).predict_scores(features)
    np.testing.assert_array_equal(scores[:, 3], zero_shot[:, 3])  # a class without support


def test_the_order_of_channels_does_not_matter():
    prototypes, support, _, features = unbalanced()
    order = np.random.default_rng(0).permutation(12)
    expected = APE(prototypes, support=support).predict_scores(features)
    permuted = APE(prototypes[:, order], support=(support[0][:, order], support[1]))
    np.testing.assert_allclose(permuted.predict_scores(features[:, order]), expected, rtol=0, atol=1e-10)


def test_keys_that_their_prototype_does_not_recognise_count_more():
    prototypes, support, _, _ = unbalanced()
    method = APE(prototypes, support=support)
    assert (method._divergences >= 0).all()
    assert (method._weights >= 1).all()
    predicted = ZeroShot(prototypes).predict(support[0])[np.arange(len(support[1])), support[1]]
    order = method._groups.order
    assert np.corrcoef(method._weights[:, 0], predicted[order])[0, 1] < 0


def test_block_size_does_not_change_results(monkeypatch):
    prototypes, support, val, features = unbalanced()
    whole = APE(prototypes, support=support, validation=val, search_steps=(9, 5))
    monkeypatch.setattr(few_shot, "WORK_NUMBERS", 7 * len(support[1]))
    monkeypatch.setattr(ape, "KERNEL_NUMBERS", 3 * len(support[1]))
    pieces = APE(prototypes, support=support, validation=val, search_steps=(9, 5))
    assert pieces.chosen == whole.chosen
    assert pieces._predict_rows == 3
    np.testing.assert_allclose(pieces.predict(features), whole.predict(features), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"channel_share": 0}, "channel_share must be a number greater than 0 and at most 1; got 0"),
        ({"criterion_weights": (1, -1)}, "criterion_weights must be a pair"),
        ({"gamma": -0.1}, "gamma must be"),
        ({"search_scale": (0.05, 3.0)}, "search_scale must be a pair"),
        ({"gamma_steps": 0}, "gamma_steps must be"),
    ],
)
def test_wrong_parameters(given, message):
    prototypes, support, _, _ = unbalanced()
    with pytest.raises(ValueError, match=message):
        APE(prototypes, support=support, **given)


@pytest.mark.slow  # tests/common runs the same checks one by one
@pytest.mark.parametrize("parameters", [{}, {"search_steps": (5, 3)}], ids=["given", "searched"])
def test_common_checks(parameters):
    if parameters:
        parameters = {**parameters, "validation": example_support}
    assert not check_method(APE, parameters=parameters).failed

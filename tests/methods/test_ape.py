"""APE: the authors' logits, channels and choices, and what is particular to it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from goldens import first_shots, golden, problem
from labelled_problem import unbalanced
from zeroshift.arrays import to_numpy
from zeroshift.methods import APE, TipAdapter

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


@pytest.mark.parametrize(("dtype", "convert"), [("float32", np.asarray), ("float64", torch.tensor)])
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


@pytest.mark.parametrize(
    ("run", "channels", "chosen"),
    [("16", "indices16", "best16_alpha_beta_gamma"), ("alt4", "alt4_indices", "alt4_best_alpha_beta_gamma")],
)
def test_the_authors_channels_and_choices(run, channels, chosen):
    theirs, method = golden("ape"), made(run)
    np.testing.assert_array_equal(method.channels, theirs[channels])
    alpha, beta, gamma = theirs[chosen]
    assert method.chosen == pytest.approx({"beta": beta, "alpha": alpha, "gamma": gamma}, abs=1e-12)


def test_the_channel_in_which_classes_agree_is_left_out():
    """Both prototypes and keys share the third entry; only the first two differ between classes."""
    prototypes = np.array([[0.6, 0.0, 0.8], [0.0, 0.6, 0.8]])
    method = APE(prototypes, support=(prototypes, np.array([0, 1])), channel_share=2 / 3)
    assert sorted(method.channels) == [0, 1]


def test_channels_are_judged_by_the_mean_over_pairs_of_different_classes():
    """Prototypes included, whatever the sizes of the classes."""
    prototypes, support, _, _ = unbalanced()
    method = APE(prototypes, support=support, criterion_weights=(1.0, 0.0), channel_share=1.0)
    samples = np.concatenate([prototypes, support[0]])
    labels = np.concatenate([np.arange(7), support[1]])
    products = [a * b for i, a in enumerate(samples) for j, b in enumerate(samples) if labels[i] != labels[j]]
    np.testing.assert_array_equal(method.channels, np.mean(products, axis=0).argsort())


def test_all_channels_without_gamma_is_tip_adapter():
    prototypes, support, val, features = unbalanced()
    method = APE(prototypes, support=support, channel_share=1.0, gamma=0.0, alpha=1.5, beta=3.0)
    expected = TipAdapter(prototypes, support=support, alpha=1.5, beta=3.0).predict_scores(features)
    np.testing.assert_allclose(method.predict_scores(features), expected, rtol=0, atol=1e-10)
    search = {"support": support, "validation": val, "search_scale": (9.0, 5.0), "search_steps": (12, 6)}
    searched = APE(prototypes, channel_share=1.0, gamma_steps=1, **search).chosen
    assert searched == pytest.approx({**TipAdapter(prototypes, **search).chosen, "gamma": 0.0}, abs=1e-12)


def test_the_order_of_channels_does_not_matter():
    prototypes, support, _, features = unbalanced()
    order = np.random.default_rng(0).permutation(12)
    expected = APE(prototypes, support=support).predict_scores(features)
    permuted = APE(prototypes[:, order], support=(support[0][:, order], support[1]))
    np.testing.assert_allclose(permuted.predict_scores(features[:, order]), expected, rtol=0, atol=1e-10)

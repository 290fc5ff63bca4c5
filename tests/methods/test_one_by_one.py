"""Some methods have a faster way for single samples than for blocks: the results are the same."""

import itertools

import numpy as np
import pytest
import torch

from zeroshift.methods import DMN, PTA, T3A, TDA, OnZeta
from zeroshift.testing import make_problem

SAMPLES, TURN = 300, 180
METHODS = {
    "tda": (TDA, {}),
    "tda, small caches": (TDA, {"positive_capacity": 1, "negative_capacity": 3, "entropy_window": (0.1, 0.9)}),
    "tda, no positive cache": (TDA, {"positive_capacity": 0}),
    "dmn": (DMN, {"memory_size": 6}),
    "t3a": (T3A, {"filter_size": 5}),
    "t3a, all kept": (T3A, {"filter_size": None}),
    "t3a, released": (T3A, {"filter_size": None, "released": True}),
    "onzeta": (OnZeta, {"proxy_step": 0.1, "dual_step": 3.0, "stream_length": SAMPLES}),
    "onzeta, no proxy steps": (OnZeta, {"proxy_step": 0.0}),
    "pta": (PTA, {}),
    "pta, slow": (PTA, {"alpha": 0.7, "temperature": 2.0, "threshold": 0.3}),
    "pta, the text alone": (PTA, {"alpha": 1.0, "threshold": 2.0}),
}


@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
@pytest.mark.parametrize("name", METHODS)
def test_single_samples_then_a_block(name, library):
    """Single samples, a block, single samples again: scores and state are those of the whole stream in one call."""
    method, parameters = METHODS[name]
    given = make_problem(classes=6, samples=SAMPLES, seed=3)
    features, prototypes = library(given.features), library(given.prototypes)
    whole, pieces = (method(prototypes, logit_scale=20.0, **parameters) for _ in range(2))
    expected = np.asarray(whole.adapt_scores(features))
    cuts = [*range(100), 100, *range(TURN, SAMPLES), SAMPLES]
    answers = [np.asarray(pieces.adapt_scores(features[a:b])) for a, b in itertools.pairwise(cuts)]
    np.testing.assert_allclose(np.concatenate(answers), expected, rtol=0, atol=1e-12)
    predicted = [np.asarray(each.predict_scores(features)) for each in (pieces, whole)]
    np.testing.assert_allclose(*predicted, rtol=0, atol=1e-12)
    assert pieces.n_seen == whole.n_seen == SAMPLES


@pytest.mark.parametrize("name", METHODS)
def test_a_stream_of_single_samples_continues_after_loading(name, tmp_path):
    method, parameters = METHODS[name]
    given = make_problem(classes=6, samples=120, seed=4)
    adapter = method(given.prototypes, logit_scale=20.0, **parameters)
    for x in given.features[:60]:
        adapter.adapt(x)
    adapter.save(tmp_path / "state")
    loaded = method.load(tmp_path / "state")
    for x in given.features[60:]:
        np.testing.assert_array_equal(loaded.adapt(x), adapter.adapt(x))

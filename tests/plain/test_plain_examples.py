"""The plain implementations against numbers computed by hand, and their corrections of known bugs."""

import math

import numpy as np
import pytest
import torch
from plain.frolic import _label_bias, sinkhorn

from goldens import problem
from plain import (
    ape,
    bca,
    boostadapter,
    cosmic,
    dmn,
    dota,
    gda_clip,
    oga,
    stata,
    t3a,
    tda,
    timo,
    tip_adapter,
    tip_x,
    transclip,
    zlap,
)

AXES = torch.eye(2, dtype=torch.float64)
X = torch.tensor([[0.8, 0.6], [0.6, 0.8]], dtype=torch.float64)


def assert_close(answer, expected, tolerance=2e-6):
    np.testing.assert_allclose(answer.numpy(), expected, rtol=0, atol=tolerance)


def test_tda_with_and_without_negatives():
    assert_close(tda.scores(X, AXES, logit_scale=5.0, released=True), [[6, 3], [4.637462, 6]])
    wider = tda.scores(X, AXES, logit_scale=5.0, entropy_window=(0.2, 0.6), released=True)
    assert_close(wider[1], [4.408049, 5.770588])


def test_tda_corrected_divides_by_the_largest_entropy():
    # 0.5822 nats are 0.84 of ln 2: released (divided by log2 2 = 1) they are inside this window, corrected outside.
    found = {}
    tda.scores(X, AXES, logit_scale=5.0, entropy_window=(0.5, 0.6), released=True, details=found)
    assert len(found["negatives"]) == 2
    tda.scores(X, AXES, logit_scale=5.0, entropy_window=(0.5, 0.6), details=found)
    assert found["negatives"] == {}
    tda.scores(X, AXES, logit_scale=5.0, entropy_window=(0.8, 0.85), details=found)
    assert len(found["negatives"]) == 2


def test_dmn():
    found = {}
    dmn.scores(X[:1], AXES, logit_scale=5.0, details=found)
    assert_close(found["memory_probs"], [[0.874236, 0.125764]])


def test_dota():
    parameters = {"sigma": 0.5, "epsilon": 0.1, "rho": 0.1, "eta": 1.0, "initial_means": torch.zeros_like(AXES)}
    found = {}
    dota.scores(X[:1], AXES, logit_scale=5.0, details=found, **parameters)
    assert_close(found["final_mu"], [[0.337855, 0.253391], [0.169553, 0.127165]])
    assert_close(found["final_overall_sigma"], [[0.544398, 0.152222], [0.152222, 0.455602]])
    assert_close(found["final_precision"], [[1.807797, -0.485585], [-0.485585, 2.091056]])
    assert_close(dota.scores(X, AXES, logit_scale=5.0, **parameters)[1], [3.068481, 4.039195])


def test_bca():
    parameters = {"likelihood_count": 2.0, "likelihood_threshold": 0.0, "prior_threshold": 0.0}
    found = {}
    assert_close(bca.scores(X, AXES, logit_scale=5.0, **parameters), [[0.731059, 0.268941], [0.383540, 0.616460]])
    bca.scores(X[:1], AXES, logit_scale=5.0, details=found, **parameters)
    assert_close(found["final_mu"][0], [0.977802, 0.209529])
    assert_close(found["final_prior"][0], [0.865529, 0.134471])


@pytest.mark.parametrize(("released", "mean"), [(True, [0.44, 0.22]), (False, [0.88, 0.44])])
def test_oga_means(released, mean):
    samples = torch.tensor([[0.8, 0.6], [0.96, 0.28]], dtype=torch.float64)
    found = {}
    oga.scores(samples, AXES, capacity=4, released=released, details=found)
    assert_close(found["final_mus"][0], mean)


def test_t3a():
    assert_close(t3a.scores(X, AXES)[1], [0.822192, 0.948683])
    kept = t3a.scores(X, AXES, per_class=None)
    assert_close(kept, t3a.scores(X, AXES, per_class=100))
    assert (t3a.scores(X, AXES, per_class=None, released=True)[0] == 0).any()


def test_zlap():
    for exact in (False, True):
        answer = zlap.scores(X, AXES, neighbours=2, gamma=1.0, exact=exact)
        assert_close(answer, [[0.135391, 0.111659], [0.111659, 0.135391]])


def test_transclip_assignment():
    likelihood = transclip.log_likelihood(X[:1], AXES, torch.full((2, 2), 0.5, dtype=torch.float64))
    assert_close(likelihood, [[-0.4, -0.8]])
    text = torch.softmax(5.0 * X[:1] @ AXES.T, 1)
    assert_close(transclip.assign(text, likelihood), [[0.732629, 0.267371]])


def test_stata_first_variance_of_many_samples():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn((5100, 8), generator=generator, dtype=torch.float64)
    prototypes = torch.zeros((1, 8), dtype=torch.float64)
    z = torch.ones((5100, 1), dtype=torch.float64)
    assert_close(stata._first_variance(features, z, prototypes, released=False), (features**2).mean(0))
    released = stata._first_variance(features, z, prototypes, released=True)
    assert released.max() < 0.03  # (the specification measured 0.02)


def test_frolic_parts():
    # Clear samples whose softmax is (0.8, 0.2) and (0.1, 0.9): the matrix of the specification's example.
    p = torch.tensor([[0.8, 0.2], [0.1, 0.9]], dtype=torch.float64)
    assert_close(_label_bias(p.log()), [0.334948, 0.665052])
    similarities = torch.from_numpy(problem("float64")["features"] @ problem("float64")["prototypes"].T)
    labels = sinkhorn(similarities)
    assert_close(labels.sum(1), np.ones(600))
    assert_close(labels.sum(0), torch.softmax(similarities / 0.01, 1).sum(0).numpy(), 1e-2)


def test_gda_precision():
    residuals = torch.tensor([[0.1, 0], [-0.1, 0], [0, 0.2], [0, -0.2]], dtype=torch.float64)
    found = {}
    gda_clip.scores(X, AXES[:1], support=(residuals, torch.zeros(4, dtype=torch.int64)), details=found)
    assert_close(found["precision"], [[37.5, 0], [0, 17.647059]])


def test_tip_adapter():
    query = torch.tensor([[0.96, 0.28]], dtype=torch.float64)
    support = X, torch.tensor([0, 1])
    assert_close(tip_adapter.scores(query, AXES, support=support, logit_scale=5.0, alpha=1.0), [[5.738005, 2.218731]])


def test_ape():
    query = torch.tensor([[0.96, 0.28]], dtype=torch.float64)
    answer = ape.scores(query, AXES, support=(X, torch.tensor([0, 1])), logit_scale=5.0, channel_share=1.0)
    assert_close(answer, [[6.845087, 3.185039]])


def test_tip_x():
    found = {}
    answer = tip_x.scores(X[:1], AXES, support=(X, torch.tensor([0, 1])), logit_scale=5.0, details=found)
    assert_close(found["divergences"], [[0, 0.078950]])
    assert_close(answer, [[4.04, 2.802519]])


def test_boostadapter():
    views = torch.tensor([[[0.8, 0.6], [0.96, 0.28]]], dtype=torch.float64)
    setting = {"logit_scale": 5.0, "view_ratio": 0.5, "view_feature": "image"}
    assert_close(boostadapter.scores(views, AXES, **setting), [[7.452298, 3]])
    assert_close(boostadapter.scores(views, AXES, positive_capacity=1, delta=0, **setting), [[5.452298, 3]])


def test_cosmic():
    second = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64)
    answer = cosmic.scores(X[:1], AXES, second=second, logit_scale=5.0, degree=1.0)
    assert_close(answer / answer.sum(), [[0.931754, 0.068246]])


@pytest.mark.parametrize(("gamma", "weights"), [(50.0, (4.54e-5, 0.9999546)), (1.0, (0.450166, 0.549834))])
def test_timo_prompt_weights(gamma, weights):
    matching = torch.tensor([[0.3, 0.4]], dtype=torch.float64)
    vector = timo._text_weights(AXES[None], matching, gamma)[0]
    assert_close(vector, np.array(weights) / math.hypot(*weights))

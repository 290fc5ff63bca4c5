"""Algorithm 1 with given posteriors: equal to online ADAPT for zero-shot posteriors, different for others."""

import numpy as np
import pytest

from zeroshift import OnlineADAPT
from zeroshift.data import packs
from zeroshift.experiments.long_tail import adapt_online_given
from zeroshift.zero_shot import log_posterior, softmax


@pytest.fixture(scope="module")
def stream():
    """Rows and prototypes in float64, and the zero-shot log-posteriors."""
    some = packs.load("cifar10c_fog_5").subset(slice(0, 60))
    features = np.asarray(some.features, np.float64)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    prototypes = some.prototypes_for().astype(np.float64)
    return features, prototypes, log_posterior(features, prototypes, some.logit_scale), some.logit_scale


@pytest.mark.parametrize(
    "settings",
    [{}, {"bank_size": 3, "alpha": 0.5}, {"beta": 2.0, "use_bank_term": False, "update_covariance": False}],
    ids=["default", "small", "beta"],
)
def test_with_the_zero_shot_posteriors_it_is_the_direct_engine(stream, settings):
    features, prototypes, log_y, scale = stream
    direct = OnlineADAPT(prototypes, logit_scale=scale, engine="direct", **settings).adapt(features)
    ours = softmax(adapt_online_given(features, log_y, prototypes, **settings))
    np.testing.assert_allclose(ours, direct, atol=1e-9)


def test_a_wrong_pseudo_label_enters_the_wrong_bank(stream):
    """The same sample twice: first with a certain class, then undecided. The second prediction prefers that class."""
    features, prototypes, _, _ = stream
    for message in (3, 9):
        log_y = np.full((2, 10), np.log(0.01 / 9))
        log_y[0, message] = np.log(0.99)
        log_y[1] = np.log(0.1)  # undecided: the first class, which keeps it in its own bank
        scores = adapt_online_given(features[[0, 0]], log_y, prototypes)
        assert scores[1, 1:].argmax() + 1 == message


def test_shapes_and_parameters_are_checked(stream):
    features, prototypes, log_y, _ = stream
    with pytest.raises(ValueError, match=r"log_posteriors must have one row per sample.*\(60, 10\); got \(59, 10\)"):
        adapt_online_given(features, log_y[1:], prototypes)
    with pytest.raises(ValueError, match="bank_size must be an integer of at least 1; got 0"):
        adapt_online_given(features, log_y, prototypes, bank_size=0)

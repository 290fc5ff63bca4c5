"""The transductive mixture against the independent transcription of its equations."""

from __future__ import annotations

import numpy as np
import pytest

from mixture import transcription
from mixture.sets import ALL_STREAMS, QUICK_STREAMS, few_classes, first_rows, make_support, pack_stream
from zeroshift import TransductiveAnchoredMixture
from zeroshift.testing import make_problem

TOLERANCE = 1e-9


def assert_equals_transcription(stream, chunk_size=37, **parameters):
    scale = stream.logit_scale
    method = TransductiveAnchoredMixture(stream.prototypes, logit_scale=scale, chunk_size=chunk_size, **parameters)
    expected, memory = transcription.transductive(stream.features, stream.prototypes, logit_scale=scale, **parameters)
    np.testing.assert_allclose(method.adapt(stream.features), expected, rtol=0, atol=TOLERANCE)
    return method, memory


@pytest.mark.parametrize("name", QUICK_STREAMS)
def test_generated_sets(name):
    assert_equals_transcription(QUICK_STREAMS[name]())


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL_STREAMS)
def test_whole_sets(name):
    assert_equals_transcription(ALL_STREAMS[name]())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cifar10", "fmnist"])
def test_whole_packs(name):
    assert_equals_transcription(pack_stream(1500, name), chunk_size=None)


@pytest.mark.parametrize("lacking", [False, True], ids=["all classes", "a third of them"])
@pytest.mark.parametrize(
    "parameters",
    [
        {"anchor_count": 3.0, "cautious_anchor_count": 0.5},
        {"spread_range": (1.1, 1.2)},
        {"spread_samples": 100.0},
        {"shrinkage": 0.1, "shrinkage_samples": 0.0},
        {"reliability_samples": 0.0, "weight": 0.2},
        {"first_samples": 81},
        {"balance": (0.9, 1.0), "calm": 1.0},
        {"rounds": 1},
        {"rounds": 2, "chunk_size": 1},
    ],
    ids=str,
)
def test_every_parameter(parameters, lacking):
    assert_equals_transcription(few_classes() if lacking else first_rows("medium"), **parameters)


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("per_class", [1, 3], ids=["few labelled", "labelled enough to start with"])
def test_labelled_samples(per_class, rounds):
    for stream in (first_rows("small"), few_classes()):
        assert_equals_transcription(stream, support=make_support(stream, per_class), rounds=rounds)


def test_public_attributes_equal_the_transcription():
    stream = few_classes()
    method, memory = assert_equals_transcription(stream)
    settings = transcription.Settings(logit_scale=stream.logit_scale)
    found = transcription.statistics(memory, [], stream.prototypes, settings)
    np.testing.assert_allclose(method.counts, found.nu - found.kappa, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(method.means, found.means, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(method.precision, found.precision, rtol=1e-9, atol=TOLERANCE * found.precision.max())
    read = (method.reliability, method.caution, method.temperature)
    assert read == pytest.approx((found.rho, found.caution, found.tau), abs=TOLERANCE)
    assert found.caution > 0.2
    others = make_problem(9, 12, 30, seed=54).features
    expected = transcription.predict(others, memory, [], stream.prototypes, settings)
    np.testing.assert_allclose(method.predict(others), expected, rtol=0, atol=TOLERANCE)

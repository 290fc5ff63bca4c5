"""The transductive mixture against the independent transcription of its equations."""

from __future__ import annotations

import numpy as np
import pytest

from mixture import transcription
from mixture.sets import ALL_STREAMS, QUICK_STREAMS, class_sorted, few_classes, first_rows, make_support, pack_stream
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
def test_rows_of_packs(name):
    assert_equals_transcription(pack_stream(700, name), chunk_size=None)


@pytest.mark.parametrize("lacking", [False, True], ids=["all classes", "a third of them"])
@pytest.mark.parametrize(
    "parameters",
    [
        {"anchor_count": 3.0, "cautious_anchor_count": 0.5},
        {"spread_range": (1.1, 1.2)},
        {"shrinkage": 0.1, "shrinkage_samples": 0.0},
        {"reliability_samples": 0.0, "weight": 0.2},
        {"first_samples": 81},
        {"occurring": (0.9, 1.0), "varying": (0.8, 1.0), "calm": 1.0},
        {"few_classes_weight": 0.0},
        {"few_classes_weight": 1.0, "proportions": 0.0},
        {"proportions": 2.5, "occurring": (0.1, 0.8)},
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
    settings = transcription.transductive_settings(logit_scale=stream.logit_scale)
    found = transcription.statistics(memory, [], stream.prototypes, settings)
    np.testing.assert_allclose(method.counts, found.counts, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(method.means, found.first.means, rtol=0, atol=TOLERANCE)
    precision = found.first.precision
    np.testing.assert_allclose(method.precision_matrix, precision, rtol=1e-9, atol=TOLERANCE * precision.max())
    read = (method.reliability, method.caution, method.few_classes, method.temperature)
    assert read == pytest.approx((found.rho, found.caution, found.few, found.tau), abs=TOLERANCE)
    assert found.few > 0.2
    others = make_problem(9, 12, 30, seed=54).features
    expected = transcription.predict(others, memory, [], stream.prototypes, settings)
    np.testing.assert_allclose(method.predict(others), expected, rtol=0, atol=TOLERANCE)


def test_a_set_has_no_order():
    stream = class_sorted()
    method = TransductiveAnchoredMixture(stream.prototypes, logit_scale=stream.logit_scale)
    expected = method.adapt(stream.features)
    assert method.caution == 0.0
    rows = np.random.default_rng(0).permutation(len(stream.features))
    np.testing.assert_allclose(method.adapt(stream.features[rows]), expected[rows], rtol=0, atol=TOLERANCE)


def test_classes_that_do_not_occur_become_improbable():
    """Three of nine classes occur: the proportions and anchors at the text take samples from the other six."""
    stream = few_classes()
    elsewhere = {}
    for proportions in (0.0, 1.0):
        method = TransductiveAnchoredMixture(stream.prototypes, logit_scale=stream.logit_scale, proportions=proportions)
        elsewhere[proportions] = method.adapt(stream.features)[:, 3:].sum()
        assert method.few_classes == 1.0
    all_occur = TransductiveAnchoredMixture(
        stream.prototypes, logit_scale=stream.logit_scale, occurring=(0.0, 0.0), varying=(0.0, 0.0)
    )
    without = all_occur.adapt(stream.features)[:, 3:].sum()
    assert all_occur.few_classes == 0.0
    assert elsewhere[1.0] < elsewhere[0.0] < without


def test_numpy_and_torch_agree():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    for stream in (few_classes(), first_rows("medium")):
        plain = TransductiveAnchoredMixture(stream.prototypes, logit_scale=stream.logit_scale)
        tensors = TransductiveAnchoredMixture(torch.from_numpy(stream.prototypes), logit_scale=stream.logit_scale)
        found = tensors.adapt(torch.from_numpy(stream.features))
        np.testing.assert_allclose(found.numpy(), plain.adapt(stream.features), rtol=0, atol=TOLERANCE)

"""Streaming with float32 products: the probabilities of `direct` within 1e-4, the same banks, and working checks."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from engine_comparison import (
    assert_same_bank,
    assert_same_scores,
    assert_same_statistics,
    get_stream,
    make_method,
    softmax,
)
from streams import ADVERSARIAL, STREAMS
from zeroshift import OnlineADAPT
from zeroshift.adapt.engines import precision_primal
from zeroshift.adapt.engines.precision_primal import CHECK_EVERY, PrimalPrecision
from zeroshift.precision import FLOAT32_TOLERANCE
from zeroshift.testing import make_problem

NEAR_TIE = 2e-4
"""If the two best probabilities are this close, float32 products may decide either way."""

pytestmark = pytest.mark.usefixtures("large")


def narrow(stream):
    """The stream in float32, as features of an encoder are."""
    return stream._replace(features=stream.features.astype(np.float32))


def assert_promise(answer, expected):
    """Probabilities of `direct`, from the scores of both."""
    answer, expected = softmax(np.asarray(answer, np.float64)), softmax(np.asarray(expected))
    np.testing.assert_allclose(answer, expected, rtol=0, atol=FLOAT32_TOLERANCE)
    best = np.sort(expected, axis=1)[:, -2:]
    decided = best[:, -1] - best[:, 0] > NEAR_TIE
    np.testing.assert_array_equal(answer.argmax(axis=1)[decided], expected.argmax(axis=1)[decided])


def run_both(stream, calls=(), **parameters):
    """Streaming on float32 rows, and `direct` on the same rows in float64."""
    method = make_method(stream, "streaming", **parameters)
    reference = make_method(stream, "direct", **parameters)
    parts = [part for part in np.split(stream.features, list(calls)) if len(part)]
    answer = np.concatenate([method.adapt_scores(part) for part in parts])
    expected = np.concatenate([reference.adapt_scores(part.astype(np.float64)) for part in parts])
    return method, reference, answer, expected


@pytest.mark.parametrize("parameters", [{}, {"bank_size": 3}], ids=str)
@pytest.mark.parametrize("name", [*STREAMS, *ADVERSARIAL])
@pytest.mark.sampled(3)
def test_every_stream(name, parameters):
    stream = narrow(get_stream(name))
    method, reference, answer, expected = run_both(stream, calls=[1, 9, 30], **parameters)
    assert answer.dtype == np.float32
    assert_promise(answer, expected)
    assert_same_bank(method, reference)
    assert_same_statistics(method, reference)
    probes = stream.features[:: max(1, len(stream.features) // 20)]
    assert_promise(method.predict_scores(probes), reference.predict_scores(probes.astype(np.float64)))


@pytest.mark.parametrize(
    "parameters",
    [
        {"update_mean": False},
        {"use_bank_term": False},
        {"alpha": 0.0},
        {"alpha": 1.0, "bank_size": 4},
        {"beta": 2.0},
        {"batch_size": 7},
        {"prune": (40, 0.4)},
        {"support": True},
    ],
    ids=str,
)
def test_settings(parameters):
    stream = narrow(get_stream("medium"))
    method, reference, answer, expected = run_both(stream, **parameters)
    assert_promise(answer, expected)
    assert_same_bank(method, reference)
    assert method.diagnostics.products == "float32"


def test_the_streams_use_float32_products():
    used = {name: run_both(narrow(get_stream(name)))[0].diagnostics for name in ("small", "medium", "many classes")}
    for diagnostics in used.values():
        assert diagnostics.products == "float32"
        assert diagnostics.updates > 50
        assert diagnostics.float64_fallbacks == 0


def confident_rows(samples=1500):
    """Rows that nearly all enter the bank: sorted by confidence."""
    problem = make_problem(4, 12, 3000, seed=51)
    logits = np.sort(problem.features @ problem.prototypes.T, axis=1)
    order = np.argsort(logits[:, -1] - logits[:, -2])
    return problem.features[order].astype(np.float32)[:samples], problem.prototypes


def make_pair(prototypes, **parameters):
    return (
        OnlineADAPT(prototypes, logit_scale=10.0, engine=engine, bank_size=60, **parameters)
        for engine in ("streaming", "direct")
    )


def test_checks_on_a_schedule():
    rows, prototypes = confident_rows()
    method, reference = make_pair(prototypes)
    answer = np.concatenate([method.adapt_scores(part) for part in np.array_split(rows, 7)])
    assert_promise(answer, reference.adapt_scores(rows.astype(np.float64)))
    diagnostics = method.diagnostics
    assert diagnostics.updates > 700
    assert diagnostics.float32_checks >= diagnostics.updates // CHECK_EVERY - diagnostics.factorisations
    assert diagnostics.float32_checks > 5
    assert 0 < diagnostics.largest_float32_error < FLOAT32_TOLERANCE / 10


@pytest.mark.parametrize("split", [1, 3, 50])
def test_calls_change_no_bit(split):
    rows, prototypes = confident_rows(600)
    method, whole = (OnlineADAPT(prototypes, logit_scale=10.0, engine="streaming", bank_size=60) for _ in range(2))
    expected = whole.adapt_scores(rows)
    answer = np.concatenate([method.adapt_scores(rows[start : start + split]) for start in range(0, 600, split)])
    np.testing.assert_array_equal(answer, expected)


def test_saving_and_loading_changes_no_bit(tmp_path):
    rows, prototypes = confident_rows(700)
    method, _ = make_pair(prototypes)
    method.adapt(rows[:400])
    assert method._engine._precision.uses_float32
    for start in range(400, 700, 37):
        method.save(tmp_path / "state.safetensors")
        loaded = OnlineADAPT.load(tmp_path / "state.safetensors")
        part = rows[start : start + 37]
        np.testing.assert_array_equal(loaded.predict_scores(part), method.predict_scores(part))
        np.testing.assert_array_equal(loaded.adapt_scores(part), method.adapt_scores(part))


def test_saving_right_after_a_prune(tmp_path):
    stream = narrow(get_stream("medium"))
    method = make_method(stream, "streaming", prune=(100, 0.3))
    method.adapt(stream.features[:100])
    assert method._engine._precision.uses_float32
    method.save(tmp_path / "state.safetensors")
    loaded = OnlineADAPT.load(tmp_path / "state.safetensors")
    np.testing.assert_array_equal(
        loaded.adapt_scores(stream.features[100:180]), method.adapt_scores(stream.features[100:180])
    )


def test_every_engine_continues_a_float32_state(tmp_path):
    stream = narrow(get_stream("medium"))
    method = make_method(stream, "streaming")
    method.adapt(stream.features[:150])
    method.save(tmp_path / "state.safetensors")
    rest = stream.features[150:].astype(np.float64)
    expected = OnlineADAPT.load(tmp_path / "state.safetensors", engine="direct").adapt_scores(rest)
    for engine in ("auto", "streaming", "replay"):
        loaded = OnlineADAPT.load(tmp_path / "state.safetensors", engine=engine)
        assert_same_scores(loaded.adapt_scores(rest), expected)
        assert_promise(OnlineADAPT.load(tmp_path / "state.safetensors").adapt_scores(stream.features[150:]), expected)


def test_alternating_with_replay():
    stream = narrow(get_stream("medium"))
    method, reference = make_method(stream, "auto"), make_method(stream, "direct")
    for start, stop in ((0, 60), (60, 63), (63, 120), (120, 130), (130, 131), (131, 250)):
        part = stream.features[start:stop]
        assert_promise(method.adapt_scores(part), reference.adapt_scores(part.astype(np.float64)))
    assert_same_bank(method, reference)
    assert_same_statistics(method, reference)


def test_float64_rows_after_float32_rows_are_computed_in_float64():
    """Within the tolerance of float64, also for rows that are only predicted."""
    stream = narrow(get_stream("medium"))
    method, reference = make_method(stream, "streaming"), make_method(stream, "direct")
    wide = stream.features.astype(np.float64)
    for start in range(0, 250, 25):
        narrow_part, part = stream.features[start : start + 15], wide[start : start + 15]
        assert_promise(method.adapt_scores(narrow_part), reference.adapt_scores(part))
        assert_same_scores(method.predict_scores(part), reference.predict_scores(part))
        part = wide[start + 15 : start + 25]
        assert_same_scores(method.adapt_scores(part), reference.adapt_scores(part))
        if start > 50:
            assert method.diagnostics.products == "float64"
    assert_same_statistics(method, reference)


def test_precision_selects_the_products():
    stream = get_stream("medium")
    expected = make_method(stream, "direct").adapt_scores(stream.features)
    wide = make_method(stream, "streaming", precision="float64")
    assert_same_scores(
        wide.adapt_scores(stream.features.astype(np.float32)),
        make_method(stream, "direct").adapt_scores(stream.features.astype(np.float32)).astype(np.float64),
        tolerance=1e-4,  # the answer is float32
    )
    assert wide.diagnostics.products == "float64"
    forced = make_method(stream, "streaming", precision="float32")
    assert_promise(forced.adapt_scores(stream.features), expected)
    assert forced.diagnostics.products == "float32"


def test_predicting_changes_nothing():
    stream = narrow(get_stream("medium"))
    method = make_method(stream, "streaming")
    method.adapt(stream.features[:100])
    other = copy.deepcopy(method)
    method.predict(stream.features[:7])
    method.predict(stream.features[:50].astype(np.float64))
    np.testing.assert_array_equal(
        method.adapt_scores(stream.features[100:200]), other.adapt_scores(stream.features[100:200])
    )


def test_an_inaccurate_inverse_is_noticed():
    """Products go on in float64 until a reset."""
    rows, prototypes = confident_rows()
    method, reference = make_pair(prototypes)
    method.adapt(rows[:300])
    reference.adapt(rows[:300].astype(np.float64))
    precision = method._engine._precision
    assert isinstance(precision, PrimalPrecision)
    assert precision.uses_float32
    row = 300
    while method.diagnostics.float64_fallbacks == 0:
        precision.moments[:, ::2] *= 1.2
        method.adapt(rows[row])
        reference.adapt(rows[row].astype(np.float64))
        row += 1
        assert row < 300 + 3 * CHECK_EVERY, "no check noticed it"
    assert method.diagnostics.largest_float32_error > FLOAT32_TOLERANCE
    rest = rows[row : row + 100]
    answer = method.adapt_scores(rest)
    assert method.diagnostics.products == "float64"
    np.testing.assert_allclose(answer, reference.adapt_scores(rest.astype(np.float64)), rtol=0, atol=1e-5)
    method.reset()
    method.adapt(rows[:300])
    assert method.diagnostics.products == "float32"


def test_products_are_float64_where_float32_would_round_too_much():
    """Entries close to their means: the precision, and with it the scores, are large."""
    rng = np.random.default_rng(5)
    prototypes = rng.normal(size=(6, 24)) + 1.0
    prototypes /= np.linalg.norm(prototypes, axis=1, keepdims=True)
    rows = prototypes[rng.integers(6, size=300)] + 0.01 * rng.normal(size=(300, 24))
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    method, reference = (OnlineADAPT(prototypes, logit_scale=20.0, engine=engine) for engine in ("streaming", "direct"))
    answer = method.adapt_scores(rows)
    assert method.diagnostics.products == "float64"
    np.testing.assert_allclose(answer, reference.adapt_scores(rows.astype(np.float64)), rtol=2e-7, atol=1e-5)


def test_a_sample_beyond_the_bound_is_computed_in_float64(monkeypatch):
    stream = narrow(get_stream("medium"))
    method, reference = make_method(stream, "streaming"), make_method(stream, "direct")
    wide = stream.features.astype(np.float64)
    method.adapt(stream.features[:150])
    reference.adapt(wide[:150])
    assert method._engine._precision.uses_float32
    monkeypatch.setattr(precision_primal, "FLOAT32_ROUNDING", 0.0)
    found, expected = method.predict_scores(stream.features[150:160]), reference.predict_scores(wide[150:160])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
    fallbacks = method.diagnostics.float64_fallbacks
    assert_promise(method.adapt_scores(stream.features[150:200]), reference.adapt_scores(wide[150:200]))
    assert method.diagnostics.float64_fallbacks > fallbacks
    assert method.diagnostics.products == "float64"


def test_in_torch():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    stream = narrow(get_stream("medium"))
    expected = make_method(stream, "direct").adapt_scores(stream.features.astype(np.float64))
    method = make_method(stream._replace(prototypes=torch.tensor(stream.prototypes)), "streaming")
    assert_promise(method.adapt_scores(torch.tensor(stream.features)).numpy(), expected)
    assert method.diagnostics.products == "float32"

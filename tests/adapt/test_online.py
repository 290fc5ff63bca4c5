"""Online ADAPT compared with tests/oracle.py, an independent implementation of the specification."""

from __future__ import annotations

import copy
import itertools

import numpy as np
import pytest

import oracle
from streams import STREAMS
from zeroshift import OnlineADAPT, interrupts
from zeroshift.testing import make_problem
from zeroshift.testing.case import fingerprint

TOLERANCE = 1e-9


def assert_equals_oracle(stream, **parameters):
    method = OnlineADAPT(stream.prototypes, logit_scale=stream.logit_scale, engine="direct", **parameters)
    expected = oracle.online(stream.features, stream.prototypes, logit_scale=stream.logit_scale, **parameters)
    np.testing.assert_allclose(method.adapt(stream.features), expected.probabilities, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(method.means, expected.means, rtol=0, atol=TOLERANCE)
    scale = np.abs(expected.precision).max()
    np.testing.assert_allclose(method.precision_matrix, expected.precision, rtol=0, atol=TOLERANCE * scale)
    np.testing.assert_array_equal(method.bank_counts, expected.bank_counts)
    return method, expected


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("bank_size", [3, pytest.param(16, marks=pytest.mark.slow)])
def test_every_stream(name, bank_size):
    assert_equals_oracle(STREAMS[name](), bank_size=bank_size)


@pytest.fixture(scope="module")
def stream():
    return STREAMS["small"]()


@pytest.fixture(scope="module")
def short(stream):
    """Enough for banks of eight to fill and to replace samples; the oracle is slow."""
    return stream._replace(features=stream.features[:100])


@pytest.fixture(scope="module")
def support():
    problem = make_problem(5, 8, 12, seed=99)
    labels = np.array([0, 0, 1, 3, 3, 3, 3, 4, 1, 0, 4, 4])
    return problem.features, labels


@pytest.mark.parametrize(
    "parameters",
    [
        {"alpha": 0.0},
        {"alpha": 1.0},
        {"alpha": 0.5, "bank_size": 1},
        {"beta": 2.0},
        {"beta": 0.0, "bank_size": 4},
        {"batch_size": 7},
        {"batch_size": 64, "bank_size": 5},
        {"batch_size": 1000},
        {"iterations": 2},
        {"iterations": 30, "bank_size": 4},
        {"iterations": 5, "batch_size": 9, "beta": 1.5},
        {"covariance": "per_class"},
        {"covariance": "per_class", "bank_size": 3, "iterations": 3},
        {"prune": (20, 0.4), "bank_size": 5},
        {"prune": (7, 1.0)},
        {"prune": (10, 0.3), "batch_size": 4, "bank_size": 4},
        {"bank_size": 0},
        {"bank_size": 0, "alpha": 1.0},
        {"bank_size": 0, "iterations": 4},
        {"bank_size": 0, "batch_size": 5, "beta": 3.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("with_support", [False, True], ids=["zero-shot", "few-shot"])
def test_every_setting(short, support, parameters, with_support):
    if parameters.get("bank_size") == 0:
        # The oracle sums over all samples so far at every step.
        short = short._replace(features=short.features[:50])
    assert_equals_oracle(short, **{"bank_size": 8, **parameters}, support=support if with_support else None)


@pytest.mark.parametrize(
    ("bank_size", "update_mean", "update_covariance"), list(itertools.product([0, 4], [False, True], [False, True]))
)
def test_the_eight_rows_of_table_5(short, bank_size, update_mean, update_covariance):
    assert_equals_oracle(short, bank_size=bank_size, update_mean=update_mean, update_covariance=update_covariance)


def test_bank_term_off(stream):
    assert_equals_oracle(stream, bank_size=4, use_bank_term=False)


def test_scores_are_the_values_before_the_softmax(stream):
    method = OnlineADAPT(stream.prototypes, logit_scale=stream.logit_scale, engine="direct")
    expected = oracle.online(stream.features, stream.prototypes, logit_scale=stream.logit_scale)
    np.testing.assert_allclose(method.adapt_scores(stream.features), expected.scores, rtol=1e-9, atol=1e-9)


def test_predict_equals_the_oracle(stream):
    method, answer = assert_equals_oracle(stream, bank_size=4)
    others = make_problem(5, 8, 50, seed=5).features
    expected, _ = oracle.predict(others, answer, stream.prototypes, logit_scale=stream.logit_scale)
    np.testing.assert_allclose(method.predict(others), expected, rtol=0, atol=TOLERANCE)


def adapt_in_pieces(stream, folder, engine, parameters):
    """The stream in several calls with saving and loading in between, and in one call."""
    whole = OnlineADAPT(stream.prototypes, logit_scale=stream.logit_scale, engine=engine, **parameters)
    expected = whole.adapt(stream.features)
    method = OnlineADAPT(stream.prototypes, logit_scale=stream.logit_scale, engine=engine, **parameters)
    answers = []
    for start, stop in itertools.pairwise([0, 6, 12, 48, 150, 300]):
        answers.append(method.adapt(stream.features[start:stop]))
        method.save(folder / "state.safetensors")
        method = OnlineADAPT.load(folder / "state.safetensors")
    return np.concatenate(answers), method, expected, whole


PIECES = [{}, {"bank_size": 3}, {"batch_size": 6}, {"prune": (50, 0.5)}, {"use_bank_term": False}]


@pytest.mark.parametrize(
    ("engine", "parameters"),
    [*itertools.product(["direct", "streaming"], PIECES), ("auto", {"bank_size": 0}), ("direct", {"bank_size": 0})],
    ids=str,
)
def test_pieces_give_the_same_bits(stream, engine, parameters, tmp_path):
    """If samples are processed one by one, no bit changes."""
    answers, method, expected, whole = adapt_in_pieces(stream, tmp_path, engine, parameters)
    np.testing.assert_array_equal(answers, expected)
    np.testing.assert_array_equal(method.means, whole.means)
    np.testing.assert_array_equal(method.precision_matrix, whole.precision_matrix)


@pytest.mark.parametrize(("engine", "parameters"), [*itertools.product(["replay", "auto"], PIECES)], ids=str)
def test_pieces_give_the_same_answer_up_to_rounding_with_replay(stream, engine, parameters, tmp_path):
    """The number of rows per call determines the products, and so their rounding."""
    answers, method, expected, whole = adapt_in_pieces(stream, tmp_path, engine, parameters)
    np.testing.assert_allclose(answers, expected, rtol=0, atol=1e-9)
    np.testing.assert_allclose(method.means, whole.means, rtol=0, atol=1e-12)
    np.testing.assert_allclose(
        method.precision_matrix, whole.precision_matrix, rtol=0, atol=1e-7 * np.abs(whole.precision_matrix).max()
    )


@pytest.mark.parametrize("engine", ["direct", "streaming"])
def test_after_a_failed_step_calls_are_refused_until_reset(stream, engine, monkeypatch):
    method = OnlineADAPT(stream.prototypes, logit_scale=20.0, bank_size=3, engine=engine)
    method.adapt(stream.features[:30])

    def fail(*arguments, **options):
        raise MemoryError("no memory left")

    with monkeypatch.context() as patch:
        for writes in ("insert", "put"):
            patch.setattr(f"zeroshift.adapt.bank.KnowledgeBank.{writes}", fail)
        with pytest.raises(MemoryError):
            method.adapt(stream.features[30:])
    for call in (method.predict, method.adapt):
        with pytest.raises(RuntimeError, match=r"MemoryError: no memory left.*reset\(\)"):
            call(stream.features[:2])
    method.reset()
    fresh = OnlineADAPT(stream.prototypes, logit_scale=20.0, bank_size=3, engine=engine)
    np.testing.assert_array_equal(method.adapt(stream.features), fresh.adapt(stream.features))


@pytest.mark.parametrize(
    "place", ["bank.KnowledgeBank.insert", "engines.replay.solve_block", "bank.KnowledgeBank.prune"]
)
@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_a_replayed_block_is_learned_completely_or_not_at_all(monkeypatch, place, error):
    """Also if the block is stopped after most of it was computed: Ctrl-C need not wait for its end."""
    problem = make_problem(classes=4, dimension=8, samples=400, seed=3)
    method = OnlineADAPT(problem.prototypes, logit_scale=20.0, prune=(300, 0.5), engine="replay")
    method.adapt(problem.features[:60])
    twin = copy.deepcopy(method)
    before = fingerprint(method)
    calls = []

    def stop(*arguments, **options):
        calls.append(interrupts._State.depth)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(f"zeroshift.adapt.{place}", stop)
        with pytest.raises(error):
            method.adapt(problem.features[60:])
    assert calls == [0], "signals are postponed while the block is computed"
    assert fingerprint(method) == before
    np.testing.assert_array_equal(method.adapt(problem.features[60:]), twin.adapt(problem.features[60:]))


@pytest.mark.parametrize("engine", ["direct", "streaming", "replay", "auto"])
def test_blocks_do_not_change_batches(engine):
    problem = make_problem(4, 6, 2500, seed=8)
    parameters = {"logit_scale": 20.0, "batch_size": 7, "bank_size": 2, "engine": engine}
    whole = OnlineADAPT(problem.prototypes, **parameters)
    pieces = OnlineADAPT(problem.prototypes, **parameters)
    split = 7 * 143
    expected = np.concatenate([pieces.adapt(problem.features[:split]), pieces.adapt(problem.features[split:])])
    tolerance = 0 if engine in ("direct", "streaming") else 1e-9
    np.testing.assert_allclose(whole.adapt(problem.features), expected, rtol=0, atol=tolerance)


def test_float32_answers_stay_within_single_precision(stream):
    expected = OnlineADAPT(stream.prototypes, logit_scale=20.0).adapt(stream.features.astype(np.float32).astype(float))
    answer = OnlineADAPT(stream.prototypes, logit_scale=20.0).adapt(stream.features.astype(np.float32))
    assert answer.dtype == np.float32
    np.testing.assert_allclose(answer, expected, rtol=0, atol=1e-5)


class TestErrors:
    prototypes = np.eye(3, 8)

    @pytest.mark.parametrize(
        ("parameters", "mentions"),
        [
            ({"alpha": 1.5}, "alpha must be a number from 0 to 1; got 1.5"),
            ({"bank_size": -1}, "bank_size must be an integer of at least 0; got -1"),
            ({"bank_size": 2.5}, "bank_size must be an integer"),
            ({"logit_scale": 0}, "logit_scale must be a number greater than 0; got 0"),
            ({"engine": "warp"}, "engine must be one of 'auto', 'direct', 'streaming', 'replay'; got 'warp'"),
            (
                {"engine": "streaming", "bank_size": 0},
                "bank_size=0 changes every mean with every sample. Fix: engine='auto'",
            ),
            ({"engine": "replay", "iterations": 2}, "iterations=2 changes every mean several times per sample"),
            ({"engine": "replay", "covariance": "per_class"}, "covariance='per_class' needs one inverse per class"),
            ({"prune": (0, 0.5)}, "prune must be None or a pair"),
            ({"prune": 10}, "prune must be None or a pair"),
            ({"covariance": "per_class", "bank_size": 0}, "bank_size=0 keeps no bank"),
            ({"prune": (10, 0.5), "bank_size": 0}, "prune drops bank entries"),
            ({"support": 3}, "support must be a pair"),
            ({"support": (np.eye(2, 8), [0, 3])}, "support labels row 1 is 3"),
            ({"support": (np.eye(2, 8), [0.0, 1.0])}, "support labels must hold integers"),
            ({"support": (np.eye(2, 7), [0, 1])}, "support features has d = 7"),
            ({"support": (np.eye(2, 8), [0])}, "support labels must have one entry per row"),
        ],
        ids=lambda value: str(value)[:40],
    )
    def test_message(self, parameters, mentions):
        with pytest.raises((ValueError, TypeError)) as error:
            OnlineADAPT(self.prototypes, **parameters)
        assert mentions in str(error.value)

    def test_support_is_copied(self):
        features, labels = np.eye(2, 8), np.array([0, 1])
        method = OnlineADAPT(self.prototypes, support=(features, labels))
        before = method.predict(np.eye(1, 8))
        features[:], labels[:] = 0, 2
        method.reset()
        np.testing.assert_array_equal(method.predict(np.eye(1, 8)), before)

"""The base class: copies, read-only parameters, declared state (reset, save, load, merge), failures, `OnlineMethod`."""

from __future__ import annotations

import copy
import pickle
from typing import NamedTuple

import numpy as np
import pytest

from zeroshift.arrays import Backend
from zeroshift.files import FileFormatError
from zeroshift.method import OnlineMethod, registered_methods
from zeroshift.methods import GDACLIP, TDA, TIMO, ZeroShot
from zeroshift.parameters import Number, array_parameter, parameter, state
from zeroshift.serialization import read_header
from zeroshift.tensor_files import read_tensors, write_tensors
from zeroshift.testing import make_problem
from zeroshift.testing.examples import example_prompts, example_support
from zeroshift.zero_shot import log_posterior

FEATURES, PROTOTYPES, _ = make_problem()


def test_a_copy_is_independent():
    method = TDA(PROTOTYPES, logit_scale=20.0)
    method.adapt(FEATURES[:20])
    before = method.predict(FEATURES)
    other = copy.copy(method)
    other.adapt(FEATURES[20:])
    np.testing.assert_array_equal(method.predict(FEATURES), before)
    assert (method.n_seen, other.n_seen) == (20, 80)


def test_array_parameters_are_read_only_and_the_callers_arrays_are_not():
    features, labels = example_support(PROTOTYPES)
    prompts = example_prompts(PROTOTYPES)
    method = TIMO(PROTOTYPES, support=(features, labels), prompts=prompts)
    for array in (method.prototypes, method.prompts, *method.support):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    for array in (features, labels, prompts):
        array[...] = 0
    assert GDACLIP(PROTOTYPES, support=example_support(PROTOTYPES)).get_params()["support"][0].flags.writeable


class Totals(NamedTuple):
    features: np.ndarray
    samples: int


class Recent:
    """A container with its own format: the last features."""

    def __init__(self, dimension):
        self.rows, self.full = np.zeros((0, dimension)), False

    def add(self, x):
        self.rows = np.concatenate([self.rows, x[None, :]])[-3:]
        self.full = len(self.rows) == 3

    def state(self):
        return {"rows": self.rows}, {"full": self.full}

    def restore(self, arrays, values):
        self.rows, self.full = arrays["rows"], values["full"]

    def joined(self, other):
        both = copy.copy(self)
        both.rows = np.concatenate([self.rows, other.rows])[-3:]
        return both


class Example(OnlineMethod):
    """One piece of state of every kind."""

    name = "example_of_every_state"

    weight: float = parameter(Number(low=0), "Weight of the counts.", default=0.5)
    offsets: np.ndarray | None = array_parameter("Added to the scores, (K,).", default=None)

    _counts = state(lambda self: self.prototypes[:, 0] * 0, merge="sum")
    _seen = state(np.zeros(1, dtype=np.int64), saved_as="hosts", merge="sum")
    _totals = state(lambda self: Totals(self.prototypes[0] * 0, 0), merge="sum")
    _start = state(1.5, merge="equal")
    _recent = state(lambda self: Recent(self.dimension), saved_as="last", merge=Recent.joined)
    _log = state(lambda self: Backend.of(self.prototypes).zeros((0, 2)), grows=True, merge=lambda a, b: a)

    fail = False

    def learn(self, x):
        self._counts[int((self.prototypes @ x).argmax())] += 1
        if self.fail:
            raise ValueError("no memory left")
        self._seen[0] += 1
        self._totals = Totals(self._totals.features + x, self._totals.samples + 1)
        self._recent.add(np.asarray(x))
        xp = Backend.of(x).xp
        self._log = xp.concat([self._log, x[None, :2]])

    def score(self, features):
        scores = log_posterior(features, self.prototypes, 20.0) + self.weight * self._counts
        return scores if self.offsets is None else scores + self.offsets


class Ordered(Example):
    """One piece of state that cannot be merged."""

    name = "example_without_merge"
    _latest = state(0)


def learned(rows=FEATURES[:20], cls=Example, **parameters):
    method = cls(PROTOTYPES, **parameters)
    method.adapt(rows)
    return method


def failed():
    method = learned()
    method.fail = True
    with pytest.raises(ValueError, match="no memory left"):
        method.adapt(FEATURES[20:])
    del method.fail
    return method


def test_the_names_of_saved_state_follow_from_the_declarations():
    arrays, values = learned()._state()
    assert sorted(arrays) == ["counts", "hosts", "last_rows", "log", "totals_features"]
    assert values == {"totals_samples": 20, "start": 1.5, "last": {"full": True}}


def test_a_loaded_method_continues_exactly(tmp_path):
    method = learned()
    method.save(tmp_path / "state.safetensors")
    loaded = Example.load(tmp_path / "state.safetensors")
    assert loaded.n_seen == 20
    assert type(loaded._totals) is Totals
    assert loaded._log.shape == (20, 2)
    np.testing.assert_array_equal(loaded.adapt(FEATURES[20:]), method.adapt(FEATURES[20:]))
    np.testing.assert_array_equal(loaded._recent.rows, method._recent.rows)
    assert read_header(tmp_path / "state.safetensors")["values"]["n_seen"] == 20


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays, values: arrays.pop("state/log"), "the array 'log' is missing"),
        (lambda arrays, values: arrays.update({"state/log": np.zeros((4, 3))}), r"log has shape \(4, 3\)"),
        (lambda arrays, values: arrays.update({"state/counts": np.zeros(5)}), r"counts has shape \(5,\), not \(6,\)"),
        (lambda arrays, values: arrays.update({"state/totals_features": np.zeros(3)}), "totals_features has shape"),
        (lambda arrays, values: values.update(totals_samples=2.5), "totals_samples is 2.5; its type must be int"),
        (lambda arrays, values: values.update(start="much"), "start is 'much'; its type must be float"),
        (lambda arrays, values: values.pop("start"), "start"),
    ],
)
def test_a_damaged_state_is_rejected(tmp_path, change, message):
    path = tmp_path / "state.safetensors"
    learned().save(path)
    arrays, header = read_tensors(path, kind="state", schema=2)
    change(arrays, header["values"])
    write_tensors(path, arrays, header)
    with pytest.raises(FileFormatError, match=message):
        Example.load(path)


def test_reset_restores_the_initial_state():
    method = learned()
    method.reset()
    assert method.n_seen == 0
    assert not method._counts.any()
    assert method._totals.samples == 0
    assert len(method._log) == 0
    np.testing.assert_array_equal(method.adapt(FEATURES), Example(PROTOTYPES).adapt(FEATURES))


def test_a_constant_initial_value_is_copied():
    """Otherwise all objects of the class would share one array."""
    learned()
    assert Example(PROTOTYPES)._seen[0] == 0
    assert Example.declared_states["_seen"].initial[0] == 0


def test_merge_follows_the_rule_of_each_piece():
    one, other = learned(FEATURES[:20]), learned(FEATURES[20:50])
    whole = learned(FEATURES[:50])
    assert one.merge(other) is one
    assert (one.n_seen, other.n_seen) == (50, 30)
    np.testing.assert_array_equal(one._counts, whole._counts)
    assert one._seen[0] == 50
    np.testing.assert_allclose(one._totals.features, whole._totals.features, atol=1e-12)
    assert one._totals.samples == 50
    assert one._start == 1.5
    np.testing.assert_array_equal(one._recent.rows, other._recent.rows)
    assert len(one._log) == 20  # the function returned the first value
    np.testing.assert_array_equal(one.predict(FEATURES), whole.predict(FEATURES))


def test_merge_between_libraries():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    in_torch = Example(torch.tensor(PROTOTYPES))
    in_torch.adapt(torch.tensor(FEATURES[20:50]))
    merged = learned(FEATURES[:20]).merge(in_torch)
    np.testing.assert_array_equal(merged._counts, learned(FEATURES[:50])._counts)
    in_torch.merge(learned(FEATURES[:20]))
    assert isinstance(in_torch._counts, torch.Tensor)
    assert in_torch._seen[0] == 50  # a NumPy array in a method of torch


def test_states_that_must_be_equal_and_are_not():
    one, other = learned(), learned()
    other._start = 2.0
    before = one.predict(FEATURES)
    with pytest.raises(ValueError, match="the two states differ where they must be equal"):
        one.merge(other)
    np.testing.assert_array_equal(one.predict(FEATURES), before)
    assert one.n_seen == 20


def test_methods_that_cannot_merge():
    for create in (lambda: learned(cls=Ordered), lambda: TDA(PROTOTYPES)):
        with pytest.raises(TypeError, match=r"cannot be merged.*Fix: adapt one object to all samples"):
            create().merge(create())
    both = ZeroShot(PROTOTYPES)
    both.adapt(PROTOTYPES)
    assert both.merge(copy.deepcopy(both)).n_seen == 2 * len(PROTOTYPES)  # it has no state but the number of samples
    with pytest.raises(TypeError, match="other must be of class Example; got TDA"):
        learned().merge(TDA(PROTOTYPES))
    with pytest.raises(ValueError, match=r"another weight \(0\.25\).*Fix: make both with the same weight"):
        learned().merge(learned(weight=0.25))
    with pytest.raises(RuntimeError, match="failed while it changed its state"):
        learned().merge(failed())


@pytest.mark.parametrize(
    "call",
    [
        lambda method: method.adapt(FEATURES),
        lambda method: method.predict(FEATURES),
        lambda method: method.save("state.safetensors"),
        lambda method: method.merge(learned()),
    ],
    ids=["adapt", "predict", "save", "merge"],
)
def test_a_method_that_failed_rejects_calls(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = (
        r"this Example failed while it changed its state \(ValueError: no memory left\).*Fix: call reset\(\), or load"
    )
    with pytest.raises(RuntimeError, match=message):
        call(failed())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda method: pickle.loads(pickle.dumps(method))])
def test_a_copy_of_a_method_that_failed_is_not_usable_either(copied):
    with pytest.raises(RuntimeError, match="failed while it changed its state"):
        copied(failed()).predict(FEATURES)


def test_reset_load_and_clone_give_a_usable_method(tmp_path):
    learned().save(tmp_path / "state.safetensors")
    method = failed()
    assert method.clone().adapt(FEATURES).shape == (len(FEATURES), 6)
    assert Example.load(tmp_path / "state.safetensors").predict(FEATURES).shape == (len(FEATURES), 6)
    method.reset()
    np.testing.assert_array_equal(method.adapt(FEATURES), Example(PROTOTYPES).adapt(FEATURES))


def test_bad_input_is_not_a_failure():
    method = learned()
    with pytest.raises(ValueError, match="features row 0 has length"):
        method.adapt(2 * FEATURES)
    assert method.n_seen == 20
    method.adapt(FEATURES)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_protocol_of_pickle(protocol):
    """Protocols 0 and 1 made an object that had no turns."""
    features, prototypes, _ = make_problem(classes=4, dimension=8, samples=10)
    method = TDA(prototypes)
    method.adapt(features)
    other = pickle.loads(pickle.dumps(method, protocol))
    assert (other.adapt(features) == method.adapt(features)).all()


def test_pickle_keeps_what_was_learned_and_read_only_parameters():
    method = learned(offsets=np.arange(6.0))
    for other in (pickle.loads(pickle.dumps(method)), copy.deepcopy(method), copy.copy(method)):
        assert other.n_seen == 20
        np.testing.assert_array_equal(other.predict(FEATURES), method.predict(FEATURES))
        for array in (other.prototypes, other.offsets):
            assert not array.flags.writeable
        with pytest.raises(AttributeError, match="weight of Example cannot be changed after construction"):
            other.weight = 2.0


def test_arrays_inside_a_tuple_stay_read_only_in_copies():
    method = GDACLIP(PROTOTYPES, support=example_support(PROTOTYPES))
    for other in (pickle.loads(pickle.dumps(method)), copy.deepcopy(method), copy.copy(method), method.clone()):
        for array in (other.prototypes, *other.support):
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 0


def test_prototypes_in_float64_are_read_only_too():
    method = TDA(PROTOTYPES.astype(np.float32))
    for one in (method, pickle.loads(pickle.dumps(method)), copy.deepcopy(method)):
        with pytest.raises(ValueError, match="read-only"):
            one.prototypes64[...] = 0


def test_an_interrupted_reset_is_refused_until_the_next_reset(monkeypatch):
    method = learned()

    def interrupt(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(method), "_prepare", interrupt)
        with pytest.raises(KeyboardInterrupt):
            method.reset()
    with pytest.raises(RuntimeError, match=r"a reset was interrupted.*Fix: call reset\(\)"):
        method.predict(FEATURES)
    method.reset()
    np.testing.assert_array_equal(method.predict(FEATURES), method.clone().predict(FEATURES))


def test_an_array_parameter_without_validation_is_copied():
    offsets = np.arange(6.0)
    method = Example(PROTOTYPES, offsets=offsets)
    offsets[:] = 0
    np.testing.assert_array_equal(method.offsets, np.arange(6.0))


def test_an_online_method_is_scored_before_or_after_it_learns():
    class Before(Example):
        scored = "before"

    after, before = Example(PROTOTYPES), Before(PROTOTYPES)
    first = after.predict_scores(FEATURES[:1])
    np.testing.assert_array_equal(before.adapt_scores(FEATURES[:1]), first)
    assert np.abs(after.adapt_scores(FEATURES[:1]) - first).max() > 0.4
    np.testing.assert_array_equal(before._counts, after._counts)
    np.testing.assert_array_equal(before.predict_scores(FEATURES), after.predict_scores(FEATURES))


def test_one_call_equals_single_samples():
    together, singly = Example(PROTOTYPES), Example(PROTOTYPES)
    scores = np.array([singly.adapt_scores(x) for x in FEATURES])
    np.testing.assert_array_equal(together.adapt_scores(FEATURES), scores)


def test_an_online_method_needs_learn_and_score():
    class Incomplete(OnlineMethod):
        """Lacks both."""

    with pytest.raises(TypeError, match="abstract"):
        Incomplete(PROTOTYPES)


def test_only_modules_of_the_package_register_their_methods():
    assert Example.name not in registered_methods()
    assert TDA.name in registered_methods()

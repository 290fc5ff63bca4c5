"""Checks of the interface of every method: constructor, parameters, predictions and state."""

from __future__ import annotations

import inspect
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from zeroshift import parameters as kinds
from zeroshift.arrays import Backend, to_numpy
from zeroshift.method import Method
from zeroshift.testing.case import Case, NotApplicable, assert_same, expect_error, fingerprint
from zeroshift.zero_shot import posterior

__all__ = ["CHECKS"]

ZERO_SHOT_TOLERANCE = 1e-12

FROZEN_TOLERANCE = 1e-7
"""Fast engines may differ from the definition by as much."""


def constructor_stores_its_parameters(case: Case) -> None:
    """Every parameter is readable under its name with the value it was given; tried one by one with other values."""
    prototypes = case.problem().prototypes
    case = Case(case.cls)  # the changed parameter may conflict with others of the case
    default = case.create(prototypes)
    assert_same(default.prototypes, prototypes, "prototypes as stored")
    assert default.n_seen == 0, "n_seen must be 0 before any sample"
    for name in case.cls.parameter_names():
        if name in case.cls.array_parameters or name not in case.cls.constraints:
            continue
        value = _other_value(case.cls.constraints[name], getattr(default, name))
        method = case.create(prototypes, **{name: value})
        assert getattr(method, name) == value, f"{name}={value!r} is stored as {getattr(method, name)!r}"
        assert method.get_params()[name] == value, f"get_params() gives {name} as {method.get_params()[name]!r}"


def _other_value(constraint: kinds.Constraint, default: Any) -> Any:
    """An allowed value other than the default."""
    match constraint:
        case kinds.Optional(inner):
            return _other_value(inner, default)
        case kinds.Number(low, high):
            if constraint.integer:
                return (default if default is not None else max(low, 0)) + 1
            candidates = (0.25, 0.75) if np.isfinite(high) else (max(low, 0) + 3.5, max(low, 0) + 7.5)
            return next(value for value in candidates if value != default)
        case kinds.Flag():
            return not default
        case kinds.Choice(values):
            return next(value for value in values if value != default)
        case kinds.Pair(first, second):
            return (_other_value(first, None), _other_value(second, None))
        case _:
            return default


def parameters_are_fixed(case: Case) -> None:
    """Parameters cannot be assigned to after construction."""
    method = case.create(case.problem().prototypes)
    for name, value in method.get_params().items():
        try:
            setattr(method, name, value)
        except AttributeError as error:
            assert name in str(error), f"the message does not name {name!r}: {error}"  # noqa: PT017
        else:
            raise AssertionError(f"{name} can be assigned to after construction")


def constructor_refuses_bad_parameters(case: Case) -> None:
    """The constructor enforces every constraint, with a message that names the parameter."""
    prototypes = case.problem().prototypes
    for name in case.cls.parameter_names():
        if name in case.cls.array_parameters:
            continue
        assert name in case.cls.constraints, f"the parameter {name!r} has no entry in `constraints`"
        for bad in _invalid_values(case.cls.constraints[name]):
            expect_error(partial(case.create, prototypes, **{name: bad}), name, what=f"{name}={bad!r}")


def _invalid_values(constraint: kinds.Constraint) -> list[Any]:
    """Values that a constraint must reject."""
    match constraint:
        case kinds.Optional(inner):
            return [value for value in _invalid_values(inner) if value is not None]
        case kinds.Number(low, high):
            outside = [float("nan"), float("inf"), 1e30, 5e-324, "0.5", None, True, [1]]
            outside += [low - 1] if np.isfinite(low) else []
            outside += [high + 1] if np.isfinite(high) else []
            return outside + ([2.5] if constraint.integer else [])
        case kinds.Flag():
            return [1, None, "yes"]
        case kinds.Choice():
            return ["no such choice", None, 1]
        case kinds.Pair(first, second):
            return [
                3,
                (1,),
                *[(bad, 1) for bad in _invalid_values(first)],
                *[(1, bad) for bad in _invalid_values(second)],
            ]
        case _:
            return []


def constructor_refuses_bad_prototypes(case: Case) -> None:
    prototypes = case.problem().prototypes
    broken = prototypes.copy()
    broken[2, 0] = np.nan
    zero = prototypes.copy()
    zero[3] = 0
    expect_error(partial(case.create, broken), "prototypes", "row 2", "NaN", what="NaN prototype")
    expect_error(partial(case.create, zero), "prototypes", "row 3", "zero", what="zero prototype")
    expect_error(partial(case.create, 3 * prototypes), "prototypes", "row 0", "normalize", what="long prototypes")
    expect_error(partial(case.create, prototypes[0]), "prototypes", "two dimensions", what="one-dimensional prototypes")
    expect_error(partial(case.create, prototypes[:0]), "prototypes", "empty", what="no prototypes")
    expect_error(partial(case.create, np.eye(3, dtype=int)), "prototypes", "int", what="integer prototypes")
    expect_error(partial(case.create, prototypes.tolist()), "prototypes", "list", what="a list of prototypes")


def parameters_round_trip(case: Case) -> None:
    """`type(m)(**m.get_params())` is the same method."""
    problem = case.problem()
    method = case.create(problem.prototypes)
    again = type(method)(**method.get_params())
    assert fingerprint(method) == fingerprint(again), "the recreated method differs"
    assert_same(again.adapt(problem.features), method.adapt(problem.features), "predictions of the recreated method")


def clone_is_fresh_and_independent(case: Case) -> None:
    problem = case.problem()
    method = case.create(problem.prototypes)
    method.adapt(problem.features)
    before = fingerprint(method)
    clone = method.clone()
    assert clone.n_seen == 0, "a clone must have learned nothing"
    assert fingerprint(clone.get_params()) == fingerprint(method.get_params()), "a clone must have the same parameters"
    clone.adapt(problem.features[:5])
    assert fingerprint(method) == before, "using the clone changed the original"


def repr_is_useful(case: Case) -> None:
    problem = case.problem()
    method = case.create(problem.prototypes)
    text = repr(method)
    for part in (type(method).__name__, f"{method.n_classes} x {method.dimension}", "n_seen=0"):
        assert part in text, f"repr does not say {part!r}: {text}"
    assert len(text) < 500, "repr is too long to read"


def docstring_has_an_example(case: Case) -> None:
    text = inspect.getdoc(case.cls) or ""
    assert ">>>" in text, "the class docstring has no runnable example"
    for name in case.cls.parameter_names():
        assert name in text, f"the class docstring does not mention the parameter {name!r}"


def labels_are_accepted_nowhere(case: Case) -> None:
    """A method sees no labels of the data it adapts to. Labelled `support` samples from the user are the only
    exception."""
    for call in ("adapt", "adapt_scores", "predict", "predict_scores"):
        arguments = list(inspect.signature(getattr(case.cls, call)).parameters)
        allowed = [case.input_name, *(["second"] if "second" in case.cls.takes else [])]
        assert arguments == ["self", *allowed], f"{call} takes {arguments[1:]}, it may take {allowed} only"
    suspicious = {"labels", "label", "targets", "target", "y", "y_true", "truth"}
    taken = suspicious & set(case.cls.parameter_names())
    assert not taken, f"the constructor takes labels: {sorted(taken)}"


def answers_are_probabilities(case: Case) -> None:
    problem = case.problem()
    method = case.create(problem.prototypes)
    for what, answer in (("adapt", method.adapt(problem.features)), ("predict", method.predict(problem.features))):
        assert answer.shape == (len(problem.features), len(problem.prototypes)), f"{what}: shape {answer.shape}"
        assert np.isfinite(answer).all(), f"{what}: not finite"
        assert (answer >= 0).all(), f"{what}: negative probabilities"
        assert_same(answer.sum(axis=1), np.ones(len(answer)), f"{what}: row sums", tolerance=1e-9)
    scores = case.create(problem.prototypes).adapt_scores(problem.features)
    assert (scores.argmax(axis=1) == case.create(problem.prototypes).adapt(problem.features).argmax(axis=1)).all(), (
        "adapt_scores and adapt disagree about the predicted class"
    )


def one_sample_may_come_without_its_axis(case: Case) -> None:
    problem = case.problem()
    one, row = case.create(problem.prototypes), case.create(problem.prototypes)
    for x in problem.features[:5]:
        answer = one.adapt(x)
        assert answer.shape == (len(problem.prototypes),), f"adapt((d,)) gave shape {answer.shape}"
        assert_same(answer, row.adapt(x[None, :])[0], "adapt((d,)) against adapt((1, d))")
    assert_same(one.predict(problem.features[7]), one.predict(problem.features[7:8])[0], "predict((d,))")


def predict_before_adapt_is_zero_shot(case: Case) -> None:
    problem = case.problem()
    method = case.create(problem.prototypes)
    if getattr(method, "support", None) is not None:
        raise NotApplicable("the method learns from its support samples before the first call")
    if case.cls.protocol == "episodic":
        raise NotApplicable("an episodic method adapts to every sample it predicts")
    scale = getattr(method, "logit_scale", 100.0)
    expected = posterior(problem.features, problem.prototypes, scale)
    assert_same(method.predict(problem.features), expected, "predict", tolerance=ZERO_SHOT_TOLERANCE)


def predict_is_pure(case: Case) -> None:
    """`predict` changes nothing that is reachable from the method, caches included, and not a bit of its state file."""
    problem = case.problem()
    method = case.create(problem.prototypes)
    for stage in ("before adapt", "after adapt"):
        before, saved = fingerprint(method), _state_file(method)
        method.predict(problem.features)
        method.predict_scores(problem.features[0])
        assert fingerprint(method) == before, f"predict changed the method {stage}"
        assert _state_file(method) == saved, f"predict changed the state file {stage}"
        method.adapt(problem.features)


def _state_file(method: Method) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        method.save(path)
        return path.read_bytes()


def frozen_head_equals_predict(case: Case) -> None:
    """What `freeze` returns computes what `predict` does, before and after adapting, and changes nothing."""
    problem = case.problem(cone=0.0)  # cosines of both signs
    method = case.create(problem.prototypes)
    if not method.can_freeze():
        expect_error(method.freeze, method.name, method.not_frozen, "zero_shot", what="freeze")
        raise NotApplicable(f"cannot be frozen: {method.not_frozen}")
    names = [f"class {k}" for k in range(len(problem.prototypes))]
    for stage in ("before adapt", "after adapt"):
        before = fingerprint(method)
        head = method.freeze(names)
        assert fingerprint(method) == before, f"freeze changed the method {stage}"
        expected = method.predict(problem.features)
        assert_same(head.predict(problem.features), expected, f"frozen {stage}", tolerance=FROZEN_TOLERANCE)
        method.adapt(problem.features)
        assert_same(head.predict(problem.features), expected, "after further samples", tolerance=FROZEN_TOLERANCE)
    assert (list(head.class_names or ()), head.method, head.n_seen) == (names, method.name, len(problem.features))


def same_inputs_same_bits(case: Case) -> None:
    problem = case.problem()
    first = case.create(problem.prototypes).adapt(problem.features)
    second = case.create(problem.prototypes).adapt(problem.features.copy())
    assert_same(first, second, "two runs on the same input")


def reset_forgets(case: Case) -> None:
    problem = case.problem()
    method = case.create(problem.prototypes)
    fresh = fingerprint(method)
    first = method.adapt(problem.features)
    method.reset()
    assert fingerprint(method) == fresh, "reset does not restore the initial state"
    assert_same(method.adapt(problem.features), first, "adapt after reset")


def state_can_be_read(case: Case) -> None:
    """`means`, `precision_matrix`, `bank_counts` and `n_seen`, if they exist, have the right shapes and are copies."""
    problem = case.problem()
    method = case.create(problem.prototypes)
    method.adapt(problem.features)
    assert method.n_seen == len(problem.features), f"n_seen is {method.n_seen} after {len(problem.features)} samples"
    k, d = problem.prototypes.shape
    before = fingerprint(method)
    for name, shapes in (("means", [(k, d)]), ("precision_matrix", [(d, d), (k, d, d)]), ("bank_counts", [(k,)])):
        value = getattr(method, name, None)
        if value is None:
            continue
        assert tuple(value.shape) in shapes, f"{name} has shape {tuple(value.shape)}"
        assert Backend.of(value) == Backend.of(method.prototypes), f"{name} is not on the device of the prototypes"
        assert np.isfinite(to_numpy(value)).all(), f"{name} is not finite"
        value[...] = -1
    assert fingerprint(method) == before, "writing into what a property returned changed the method"


CHECKS = (
    constructor_stores_its_parameters,
    parameters_are_fixed,
    constructor_refuses_bad_parameters,
    constructor_refuses_bad_prototypes,
    parameters_round_trip,
    clone_is_fresh_and_independent,
    repr_is_useful,
    docstring_has_an_example,
    labels_are_accepted_nowhere,
    answers_are_probabilities,
    one_sample_may_come_without_its_axis,
    predict_before_adapt_is_zero_shot,
    predict_is_pure,
    frozen_head_equals_predict,
    same_inputs_same_bits,
    reset_forgets,
    state_can_be_read,
)

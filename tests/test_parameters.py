"""Constraints (accepted values, messages, command-line text), and what follows from declared parameters and state."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from zeroshift.methods import list_methods
from zeroshift.parameters import (
    REQUIRED,
    Choice,
    Declared,
    Flag,
    Model,
    Number,
    Optional,
    Pair,
    array_parameter,
    model_parameter,
    parameter,
    state,
)

RATIO = Number(low=0, high=1)
COUNT = Number(low=1, integer=True)


@pytest.mark.parametrize(
    ("constraint", "given", "accepted"),
    [
        (RATIO, 1, 1.0),
        (RATIO, np.float32(0.5), 0.5),
        (COUNT, np.int64(3), 3),
        (COUNT, 4.0, 4),
        (Flag(), np.bool_(True), True),
        (Choice(("a", "b")), "b", "b"),
        (Optional(COUNT), None, None),
        (Optional(COUNT), 2, 2),
        (Pair(COUNT, RATIO, ("every", "ratio")), [10, 0.5], (10, 0.5)),
    ],
)
def test_accepted_values_become_plain_python(constraint, given, accepted):
    value = constraint.check("name", given)
    assert value == accepted
    assert type(value) is type(accepted)


def test_a_torch_scalar_is_a_number():
    torch = pytest.importorskip("torch")
    assert Number(low=0, above=True).check("logit_scale", torch.tensor(100.0)) == 100.0


@pytest.mark.parametrize(
    ("constraint", "given", "message"),
    [
        (RATIO, 2, "name must be a number from 0 to 1; got 2."),
        (Number(low=0, above=True), 0, "name must be a number greater than 0; got 0."),
        (COUNT, 1.5, "name must be an integer of at least 1; got 1.5."),
        (COUNT, True, "name must be an integer of at least 1; got True."),
        (RATIO, float("nan"), "name must be a number from 0 to 1; got nan."),
        (COUNT, 10**400, f"name must be an integer of at least 1; got {10**400}."),
        (Flag(), 1, "name must be True or False; got 1."),
        (Choice(("a", "b")), "c", "name must be one of 'a', 'b'; got 'c'."),
        (Optional(RATIO), "x", "name must be None or a number from 0 to 1; got 'x'."),
    ],
)
def test_errors_name_the_parameter_the_value_and_the_allowed_values(constraint, given, message):
    with pytest.raises((ValueError, TypeError)) as error:
        constraint.check("name", given)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("constraint", "text", "value"),
    [
        (RATIO, "0.25", 0.25),
        (COUNT, "7", 7),
        (Flag(), "no", False),
        (Flag(), "True", True),
        (Optional(COUNT), "none", None),
        (Pair(COUNT, RATIO, ("every", "ratio")), "1000,0.3", (1000, 0.3)),
        (Choice(("a",)), "a", "a"),
    ],
)
def test_command_line_text(constraint, text, value):
    assert constraint.check("name", constraint.parse(text)) == value


@pytest.mark.parametrize(("constraint", "text"), [(COUNT, "7.5"), (Flag(), "perhaps"), (RATIO, "half")])
def test_unreadable_text(constraint, text):
    with pytest.raises(ValueError):
        constraint.parse(text)


def test_the_error_says_that_the_lower_limit_is_excluded():
    with pytest.raises(ValueError, match=r"share must be a number greater than 0 and at most 1; got 0\."):
        Number(0, 1, above=True).check("share", 0)


class Settings(Declared):
    """Settings of an example.

    More about it.

    Examples
    --------
    >>> 1 + 1
    2
    """

    features: np.ndarray = array_parameter("Features (n, d).", kw_only=False)
    rate: float = parameter(Number(low=0), "Step size.", default=0.1)
    kind: str = parameter(Choice(("fast", "exact")), "How to compute.", default="fast", reload=True)
    count: int = parameter(COUNT, "Samples to keep.")
    model: dict | None = model_parameter(Optional(Model(dict, "dict()")), "A model.", default=None)
    _sums: np.ndarray = state(lambda self: np.zeros(2), merge="sum")
    _steps: int = state(0, saved_as="n_steps", merge="equal", grows=False)


def test_signature_follows_from_the_declarations():
    signature = inspect.signature(Settings)
    assert list(signature.parameters) == ["features", "rate", "kind", "count", "model"]
    kinds = {name: one.kind for name, one in signature.parameters.items()}
    assert kinds.pop("features") is inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert set(kinds.values()) == {inspect.Parameter.KEYWORD_ONLY}
    assert signature.parameters["rate"].default == 0.1
    assert signature.parameters["rate"].annotation == "float"
    assert signature.parameters["count"].default is inspect.Parameter.empty


def test_docstring_gets_a_parameter_section_before_the_first_other_section():
    doc = inspect.cleandoc(Settings.__doc__)
    assert doc.index("More about it.") < doc.index("Parameters\n----------") < doc.index("Examples\n--------")
    assert "rate : float, default 0.1\n    Step size. Must be a number of at least 0." in doc
    assert "count : int\n    Samples to keep. Must be an integer of at least 1." in doc
    assert "features : np.ndarray\n    Features (n, d).\n" in doc


def test_a_class_without_a_docstring_gets_none():
    class Undocumented(Declared):
        rate: float = parameter(Number(low=0), "Step size.", default=0.1)

    assert Undocumented.__doc__ is None


def test_declarations_are_removed_from_the_class():
    assert not hasattr(Settings, "rate")
    assert not hasattr(Settings, "_sums")
    assert [name for name, one in Settings.declared_parameters.items() if one.reload] == ["kind"]
    assert [one.kind for one in Settings.declared_parameters.values()] == ["array", "value", "value", "value", "model"]
    assert {name: one.saved_as for name, one in Settings.declared_states.items()} == {
        "_sums": "sums",
        "_steps": "n_steps",
    }


def test_bind_returns_every_parameter_in_plain_python():
    values = Settings.bind(("rows",), {"count": np.int64(3), "rate": 1})
    assert values == {"features": "rows", "rate": 1.0, "kind": "fast", "count": 3, "model": None}
    assert list(values) == list(Settings.declared_parameters)
    assert type(values["count"]) is int
    assert type(values["rate"]) is float


@pytest.mark.parametrize(
    ("arguments", "given", "error", "message"),
    [
        ((), {"count": 1}, TypeError, r"Settings needs features \(arrays\); it has no default\. Fix: pass features="),
        (("x",), {}, TypeError, r"Settings needs count \(an integer of at least 1\)"),
        (
            ("x", 0.1),
            {"count": 1},
            TypeError,
            r"takes 1 positional argument \(features\); got 2\. Fix: pass",
        ),
        (("x",), {"features": "y"}, TypeError, "got features twice: by position and by name"),
        (
            ("x",),
            {"cuont": 1},
            TypeError,
            "no parameter 'cuont'. Did you mean 'count'[?] It takes: features, rate",
        ),
        (("x",), {"zzzzzz": 1}, TypeError, "no parameter 'zzzzzz'. It takes: features"),
        (("x",), {"count": 0}, ValueError, "count must be an integer of at least 1; got 0"),
        (("x",), {"count": 1, "kind": "slow"}, ValueError, "kind must be one of 'fast', 'exact'; got 'slow'"),
        (("x",), {"count": 1, "model": 3}, TypeError, r"model must be None or a dict, as dict\(\) makes it; got 3"),
    ],
)
def test_bind_errors(arguments, given, error, message):
    with pytest.raises(error, match=message):
        Settings.bind(arguments, given)


def test_a_subclass_inherits_adds_and_overrides():
    class Careful(Settings):
        rate: float = parameter(Number(low=0, high=1), "Step size, at most 1.", default=0.5)
        momentum: float = parameter(RATIO, "Momentum.", default=0.9)
        _steps: int = state(1)

    assert list(Careful.declared_parameters) == [*Settings.declared_parameters, "momentum"]
    assert Careful.bind(("x",), {"count": 1})["rate"] == 0.5
    assert Settings.bind(("x",), {"count": 1})["rate"] == 0.1
    with pytest.raises(ValueError, match="rate must be a number from 0 to 1; got 2"):
        Careful.bind(("x",), {"count": 1, "rate": 2})
    assert inspect.signature(Careful).parameters["rate"].default == 0.5
    assert Careful.declared_states["_steps"].initial == 1
    assert Careful.declared_states["_sums"] is Settings.declared_states["_sums"]


def test_an_override_in_one_of_two_bases_is_found_as_an_attribute_would_be():
    class Base(Declared):
        rate: float = parameter(Number(low=0), "Step size.", default=1.0)

    class Plain(Base):
        pass

    class Slow(Base):
        rate: float = parameter(Number(low=0), "Step size.", default=0.01)

    class Both(Plain, Slow):
        pass

    assert Both.bind((), {})["rate"] == 0.01


def test_a_plain_value_in_place_of_a_declared_parameter_is_an_error():
    with pytest.raises(TypeError, match=r"Fixed\.rate would be ignored.*Fix: declare it again, rate = parameter"):

        class Fixed(Settings):
            rate = 0.5


def test_a_default_must_be_allowed():
    with pytest.raises(ValueError, match=r"the default of Wrong\.rate must be a number from 0 to 1; got 2"):

        class Wrong(Declared):
            rate: float = parameter(RATIO, "Step size.", default=2)


def test_a_default_is_what_the_same_value_becomes_when_it_is_given():
    class Integral(Declared):
        rate: float = parameter(RATIO, "Step size.", default=1)

    assert [type(Integral.bind((), given)["rate"]) for given in ({}, {"rate": 1})] == [float, float]


def test_two_pieces_of_state_need_two_names():
    with pytest.raises(TypeError, match="Twice would save two pieces of state as 'sums'"):

        class Twice(Declared):
            _sums: int = state(0)
            _totals: int = state(0, saved_as="sums")

    with pytest.raises(TypeError, match="two pieces of state as 'n_seen'"):

        class Reserved(Declared):
            _n_seen: int = state(0)


def test_unknown_merge_rules_are_rejected():
    with pytest.raises(ValueError, match=r"merge must be 'sum', 'equal', a function.*got 'add'"):
        state(0, merge="add")


def test_required_has_a_readable_form():
    assert repr(REQUIRED) == "<required>"


def test_defaults_of_all_methods_are_in_plain_python():
    for method in list_methods():
        for name, one in method.cls.declared_parameters.items():
            if one.allowed is not None and not one.required:
                assert one.allowed.accept(one.default) == one.default, f"{method.name}.{name}"

"""Parameters: every declared parameter of every method, in range and out of range.

A value that its constraint allows either works on a short stream or is refused in the constructor; any other value is
refused. The message names the parameter.
"""

from __future__ import annotations

import math
import tempfile
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from fuzz.cases import METHODS, Stream, create
from fuzz.harness import fuzzed, memory_limit
from fuzz.oracles import assert_answer, assert_our_error, learned, parameters_of
from zeroshift import parameters as kinds
from zeroshift.testing import Case

NUMBERS = (
    0, -0.0, 1, -1, 2, 0.5, 1.5, 1e-3, 1e3, 1e-8, 1e8, 1e-30, 1e30, 1e-160, 1e160, 1e200, 1e-300, 1e300, 1e-320,
    5e-324, 1.7e308, 1e39, 1e-39, math.nextafter(1, 0), math.nextafter(1, 2), math.nextafter(0, 1), 0.999,
    0.9999999999, 3, 7, 20,
)  # fmt: skip

COUNTS = (0, 1, 2, 3, 5, 8, 17, 40, -1, -5)
HUGE_COUNTS = (10**5, 2**31, 2**53, 2**63, 10**30)

WORK = ("iterations", "rounds", "steps", "epochs", "generations", "population", "every", "candidates", "search_steps")
"""Parts of the names of counts that the time of a call is proportional to: they get small values only."""

OTHERS = (
    None, True, False, "1", "", "0.5", "nan", b"1", [], [1], (), (1,), (1, 2), (1, 2, 3), {}, {"a": 1}, object,
    math.nan, math.inf, -math.inf, 1j, Decimal("0.5"), Fraction(1, 2), np.float32(0.5), np.int8(3), np.array(0.5),
    np.array([0.5]), np.array([1.0, 2.0]), np.bool_(True), np.float64("nan"), np.str_("shared"), range(2), "x" * 5000,
)  # fmt: skip

VALUE_PARAMETERS = {
    name: [one for one, declared in cls.declared_parameters.items() if declared.kind == "value"]
    for name, cls in METHODS.items()
}


def values_for(name: str, allowed: kinds.Constraint | None) -> st.SearchStrategy[Any]:
    """Mostly values of the right type; in and out of range."""
    match allowed:
        case kinds.Optional(inner):
            return st.one_of(st.none(), values_for(name, inner))
        case kinds.Number(integer=True):
            counts = st.sampled_from(COUNTS)
            return (
                counts
                if any(word in name for word in WORK)
                else st.one_of(counts, counts, st.sampled_from(HUGE_COUNTS))
            )
        case kinds.Number(low, high):
            return st.one_of(
                st.sampled_from(NUMBERS),
                st.sampled_from([low, high, low + 1e-12, high - 1e-12]),
                st.floats(),
                st.floats(0, 1),
            )
        case kinds.Flag():
            return st.booleans()
        case kinds.Choice(choices):
            return st.sampled_from([*choices, choices[0].upper(), choices[0] + " "])
        case kinds.Pair(first, second, names):
            return st.tuples(values_for(names[0], first), values_for(names[1], second))
    return st.sampled_from(OTHERS)


@st.composite
def chosen_parameters(draw: Any) -> tuple[str, dict[str, Any]]:
    name = draw(st.sampled_from(tuple(METHODS)))
    names = draw(st.lists(st.sampled_from(VALUE_PARAMETERS[name]), min_size=1, max_size=3, unique=True))
    declared = METHODS[name].declared_parameters
    ordinary = st.integers(0, 9).map(bool)
    return name, {
        one: draw(values_for(one, declared[one].allowed) if draw(ordinary) else st.sampled_from(OTHERS))
        for one in names
    }


streams = st.builds(
    Stream,
    kind=st.sampled_from(["ordinary", "still", "duplicates", "prototypes"]),
    classes=st.integers(1, 4),
    dimension=st.integers(1, 6),
    samples=st.integers(1, 10),
    seed=st.integers(0, 50),
)


@fuzzed("parameters", 150, chosen=chosen_parameters(), stream=streams)
def parameters_work_or_are_refused(chosen: tuple[str, dict[str, Any]], stream: Stream) -> None:
    name, parameters = chosen
    cls = METHODS[name]
    others = {
        key: value for key, value in create(name, stream.prototypes).get_params().items() if key not in parameters
    }
    forbidden = [key for key, value in parameters.items() if not _is_allowed(cls.constraints.get(key), value)]
    with memory_limit(1500):
        try:
            method = cls(**others, **parameters)
        except Exception as error:
            assert_our_error(error, *(forbidden or parameters), kinds=(ValueError, TypeError, MemoryError))
            return
        assert not forbidden, f"{name} accepts {', '.join(f'{key}={parameters[key]!r}' for key in forbidden)}"
        with np.errstate(all="ignore"):
            _check_use(name, method, stream)


def _is_allowed(constraint: kinds.Constraint | None, value: Any) -> bool:
    try:
        if constraint is not None:
            constraint.accept(value)
    except (TypeError, ValueError):
        return False
    return True


def _check_use(name: str, method: Any, stream: Stream) -> None:
    n, k = stream.samples, stream.classes
    assert_answer(method.adapt(stream.features), n, k, f"{name}.adapt")
    before = learned(method)
    assert_answer(method.predict(stream.features), n, k, f"{name}.predict")
    assert learned(method) == before, f"{name}: predict changed what was learned"
    assert method.n_seen == n, f"{name}: n_seen is {method.n_seen} after {n} samples"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        method.save(path)
        again = Case(METHODS[name]).load(path, method)
    assert parameters_of(again) == parameters_of(method), f"{name}: the loaded parameters differ"
    assert learned(again) == before, f"{name}: the loaded state differs"


@fuzzed("parameters", 60, chosen=chosen_parameters(), text=st.text(max_size=12))
def parameters_on_a_command_line_are_read_or_refused(chosen: tuple[str, dict[str, Any]], text: str) -> None:
    """What `--set NAME=VALUE` does: `parse`, then the check of the constructor."""
    name, parameters = chosen
    for key, value in parameters.items():
        constraint = METHODS[name].constraints[key]
        for written in (text, str(value)):
            try:
                read = constraint.parse(written)
            except ValueError:
                continue
            try:
                accepted = constraint.check(key, read)
            except Exception as error:
                assert_our_error(error, key)
            else:
                assert constraint.check(key, accepted) == accepted, f"{key}={accepted!r} is not accepted again"

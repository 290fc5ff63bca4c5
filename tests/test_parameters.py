"""Constraints: what they accept, refuse, say and read from a command line."""

from __future__ import annotations

import numpy as np
import pytest

from zeroshift.parameters import Choice, Flag, Number, Optional, Pair

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
def test_accepted_in_plain_python(constraint, given, accepted):
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
def test_refusals_name_the_parameter_what_was_given_and_what_is_allowed(constraint, given, message):
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


def test_an_end_that_is_excluded_is_said_to_be():
    with pytest.raises(ValueError, match=r"share must be a number greater than 0 and at most 1; got 0\."):
        Number(0, 1, above=True).check("share", 0)

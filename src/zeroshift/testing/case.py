"""The method under test, synthetic problems for it, and the assertions that checks share."""

from __future__ import annotations

import os
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from unittest import SkipTest

import numpy as np

from zeroshift.arrays import Array, normalize, to_numpy
from zeroshift.method import Method
from zeroshift.parameters import Number
from zeroshift.testing.examples import EXAMPLES

__all__ = [
    "Case",
    "Check",
    "NotApplicable",
    "Problem",
    "assert_same",
    "expect_error",
    "fingerprint",
    "make_problem",
    "reachable_bytes",
]


class Problem(NamedTuple):
    """A synthetic problem with the geometry of a dual encoder: features in one cone, prototypes in another."""

    features: np.ndarray
    prototypes: np.ndarray
    labels: np.ndarray


def make_problem(
    classes: int = 6,
    dimension: int = 16,
    samples: int = 80,
    *,
    seed: int = 0,
    cone: float = 2.0,
    noise: float = 1.0,
    gap: float = 0.5,
) -> Problem:
    """Unit features scattered around class directions, which share a common direction weighted by `cone`.

    Prototypes are the class directions shifted by a common `gap`. With `cone=0` cosines have both signs. Posteriors
    stay uncertain, so that rounding does not change the order of confidences.

    >>> make_problem(classes=3, dimension=8, samples=5).features.shape
    (5, 8)
    """
    for name, value in (("classes", classes), ("dimension", dimension), ("samples", samples)):
        Number(low=1, integer=True).check(name, value)
    rng = np.random.default_rng(seed)
    common = rng.normal(size=dimension)
    shift = rng.normal(size=dimension)
    directions = rng.normal(size=(classes, dimension)) + cone * common
    labels = rng.integers(classes, size=samples)
    features = normalize(directions[labels] + noise * rng.normal(size=(samples, dimension)))
    return Problem(features, normalize(directions + gap * shift), labels)


LOGIT_SCALE = 20.0
"""Low enough that the posteriors of synthetic problems stay uncertain."""

SAMPLES = 36
"""Default number of samples of a problem: small, because every check runs its method several times."""


class NotApplicable(SkipTest):
    """Raised by a check that does not apply to the method or cannot run here; the message says why. Test runners
    report a skipped test."""


@dataclass(frozen=True)
class Case:
    """A method class and the parameters to create it with."""

    cls: type[Method]
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def create(self, prototypes: Array, **changes: Any) -> Method:
        declared = self.cls.declared_parameters
        required = {name: name for name, one in declared.items() if one.required and name in EXAMPLES}
        parameters: dict[str, Any] = {**required, **self.cls.example_parameters, **self.parameters, **changes}
        for name, value in parameters.items():
            # Arrays and models may be given by the name of an example, which depends on the prototypes.
            if isinstance(value, str) and name in declared and declared[name].kind != "value":
                value = EXAMPLES[value]
            parameters[name] = value(prototypes) if callable(value) else value
        if "logit_scale" in self.cls.parameter_names():
            parameters.setdefault("logit_scale", LOGIT_SCALE)
        return self.cls(prototypes, **parameters)

    def load(self, path: str | os.PathLike[str], method: Method, **changes: Any) -> Method:
        """Load what `method` saved, with the same models."""
        models = {name: getattr(method, name) for name in self.cls.model_parameters}
        return self.cls.load(path, **models, **changes)

    def problem(self, **geometry: Any) -> Problem:
        return make_problem(**{"samples": SAMPLES, **geometry})

    @property
    def input_name(self) -> str:
        """Name of the argument of `adapt` and `predict`. For a method on images, the features of the problem stand for
        images."""
        return "images" if getattr(self.cls, "takes_images", False) else "features"


Check = Callable[[Case], None]


def assert_same(actual: Array, expected: Array, what: str, *, tolerance: float = 0.0) -> None:
    """Assert equal shapes and values; bit for bit unless a tolerance is given."""
    actual, expected = to_numpy(actual), to_numpy(expected)
    assert actual.shape == expected.shape, f"{what}: shape {actual.shape} instead of {expected.shape}"
    worst = float(np.max(np.abs(actual.astype(np.float64) - expected.astype(np.float64)), initial=0.0))
    assert worst <= tolerance, f"{what}: differs by {worst:.3g}, allowed {tolerance:.3g}"


def expect_error(call: Callable[[], Any], *mentions: str, what: str) -> None:
    """Assert that the call raises ValueError or TypeError with a message that mentions all given words."""
    try:
        call()
    except (ValueError, TypeError) as error:
        message = str(error)
        missing = [word for word in mentions if word not in message]
        assert not missing, f"{what}: the message does not mention {missing}: {message!r}"
    else:
        raise AssertionError(f"{what}: accepted without an error")


def reachable_bytes(value: Any) -> int:
    """Size of all arrays, strings and numbers reachable from a method."""
    return _size(fingerprint(value))


def _size(print_: Any) -> int:
    if isinstance(print_, Mapping):
        return sum(_size(item) for item in print_.values())
    if isinstance(print_, (list, tuple)):
        return sum(_size(item) for item in print_)
    return len(print_) if isinstance(print_, bytes) else 8


def fingerprint(value: Any, _seen: frozenset[int] = frozenset()) -> Any:
    """All data reachable from a method in a comparable form; a pure call leaves it unchanged.

    Attributes that the class of an object names in `not_state`, counters and what is computed from the rest when it is
    needed, do not belong to it.
    """
    if id(value) in _seen:
        return "cycle"
    if isinstance(value, types.ModuleType):
        return value.__name__
    seen = _seen | {id(value)}
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return (str(value.dtype), tuple(value.shape), to_numpy(value).tobytes())
    if isinstance(value, Mapping):
        return {str(key): fingerprint(item, seen) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [fingerprint(item, seen) for item in value]
    if hasattr(value, "__dict__") and not isinstance(value, type) and not callable(value):
        left_out = getattr(type(value), "not_state", ())
        return {key: fingerprint(item, seen) for key, item in vars(value).items() if key not in left_out}
    return repr(value)

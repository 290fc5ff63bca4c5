"""What a check is given: a method class, how to build it, and problems to try it on."""

from __future__ import annotations

import os
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from zeroshift.arrays import Array, normalize, to_numpy
from zeroshift.method import Method
from zeroshift.parameters import Number

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


# Small made-up problems with the geometry of a dual encoder: features in one cone, prototypes in another.


class Problem(NamedTuple):
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
    """Unit features scattered about class directions that lean towards one common direction by `cone`.

    Prototypes are the class directions moved by a shared `gap`. With `cone=0` cosines take both signs. The posteriors
    stay unsure on purpose: confidences that rounding could reorder would make every comparison of banks a lottery.

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
"""Keeps the made-up posteriors unsure."""

SAMPLES = 36
"""Of a problem, unless a check asks for more: enough to learn from, and every check runs its method several times."""


class NotApplicable(Exception):  # noqa: N818 (nothing went wrong)
    """Raised by a check that has nothing to say about a method, or cannot be made here; the message says why."""


@dataclass(frozen=True)
class Case:
    cls: type[Method]
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def create(self, prototypes: Array, **changes: Any) -> Method:
        parameters = {**self.cls.example_parameters, **self.parameters, **changes}
        # A value may depend on the problem, as labelled samples do: a function of the prototypes is called for it.
        parameters = {name: value(prototypes) if callable(value) else value for name, value in parameters.items()}
        if "logit_scale" in self.cls.parameter_names():
            parameters.setdefault("logit_scale", LOGIT_SCALE)
        return self.cls(prototypes, **parameters)

    def load(self, path: str | os.PathLike[str], method: Method, **changes: Any) -> Method:
        """What `method` saved, given the models it computes with again."""
        models = {name: getattr(method, name) for name in self.cls.model_parameters}
        return self.cls.load(path, **models, **changes)

    def problem(self, **geometry: Any) -> Problem:
        return make_problem(**{"samples": SAMPLES, **geometry})

    @property
    def given(self) -> str:
        """What `adapt` and `predict` take, as messages call it. A method of images is tried on made-up ones, which are
        the problem's features."""
        return "images" if getattr(self.cls, "takes_images", False) else "features"


Check = Callable[[Case], None]


def assert_same(actual: Array, expected: Array, what: str, *, tolerance: float = 0.0) -> None:
    """Equal shape and values; bit for bit unless a tolerance is given."""
    actual, expected = to_numpy(actual), to_numpy(expected)
    assert actual.shape == expected.shape, f"{what}: shape {actual.shape} instead of {expected.shape}"
    worst = float(np.max(np.abs(actual.astype(np.float64) - expected.astype(np.float64)), initial=0.0))
    assert worst <= tolerance, f"{what}: differs by {worst:.3g}, allowed {tolerance:.3g}"


def expect_error(call: Callable[[], Any], *mentions: str, what: str) -> None:
    """The call must raise ValueError or TypeError, and the message must mention every given word."""
    try:
        call()
    except (ValueError, TypeError) as error:
        message = str(error)
        missing = [word for word in mentions if word not in message]
        assert not missing, f"{what}: the message does not mention {missing}: {message!r}"
    else:
        raise AssertionError(f"{what}: accepted without an error")


def reachable_bytes(value: Any) -> int:
    """Size of every array, text and number a method holds on to, saved or not."""
    return _size(fingerprint(value))


def _size(print_: Any) -> int:
    if isinstance(print_, Mapping):
        return sum(_size(item) for item in print_.values())
    if isinstance(print_, (list, tuple)):
        return sum(_size(item) for item in print_)
    return len(print_) if isinstance(print_, bytes) else 8


def fingerprint(value: Any, _seen: frozenset[int] = frozenset()) -> Any:
    """Every byte reachable from a method, as something that can be compared: purity means this does not change."""
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
        return {key: fingerprint(item, seen) for key, item in vars(value).items()}
    return repr(value)

"""Jobs: work on a feature set whose result is recorded. A job is a run of a method (`Trial`) or an `Analysis`."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Protocol, TypeVar

import numpy as np

from zeroshift._version import __version__
from zeroshift.arrays import to_numpy
from zeroshift.evaluate.keys import canonical, code_digest
from zeroshift.features import FeatureSet

__all__ = ["Analysis", "AnyJob", "Job", "content_key"]

KEY_LETTERS = 20


class Job(Protocol):
    """What the runner and the ledger need to know about a job."""

    @property
    def features(self) -> str:
        """Name of the set; not part of the key."""

    @property
    def digest(self) -> str:
        """Digest of the set: see `features_digest`."""

    @property
    def slug(self) -> str:
        """First part of the file name of its record."""

    @property
    def key(self) -> str:
        """Equal for equal work on every machine; changes with the code."""

    @property
    def code(self) -> str:
        """Digest of the code it runs: see `code_digest`."""

    @property
    def timed(self) -> bool:
        """Whether its time matters; such jobs run alone, after all others."""

    def describe(self) -> dict[str, Any]:
        """The fields of the record that describe the job."""

    def is_valid(self, record: Mapping[str, Any]) -> bool:
        """Whether a record has all fields that a record of this job needs."""

    def run(self, features: FeatureSet) -> dict[str, Any]:
        """Do the work; returns JSON values."""


AnyJob = TypeVar("AnyJob", bound=Job)


def content_key(content: Mapping[str, Any]) -> str:
    """A short hash of JSON-like content.

    >>> content_key({"seed": 0, "shots": None}) == content_key({"shots": None, "seed": 0})
    True
    >>> content_key({"seed": 0}) == content_key({"seed": 1})
    False
    """
    text = json.dumps(content, sort_keys=True, default=_plain)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_LETTERS]


def _plain(value: Any) -> Any:
    """Encode what JSON cannot; arrays are hashed, because their repr omits values."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) or hasattr(value, "detach"):
        array = to_numpy(value)
        return [str(array.dtype), list(array.shape), hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()]
    raise TypeError(
        f"a {type(value).__name__} cannot be part of a key; got {value!r}. "
        "Fix: numbers, text, arrays, or lists of them."
    )


@dataclass(frozen=True)
class Analysis:
    """A recorded call of `function(features, prompt=..., **parameters)`, which returns JSON values.

    Parameters
    ----------
    features, digest, prompt : name, digest and prompt mode of the set, as in `DatasetRef`.
    function : defined at the top level of a module, not of the running script or notebook: other processes import it by
        name, and its code is part of the key.
    parameters : numbers and text; including a seed if the function is random.
    """

    features: str
    digest: str
    prompt: str
    function: Callable[..., dict[str, Any]]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    timed: bool = False

    def __post_init__(self) -> None:
        _check_importable(self.function)
        if not isinstance(self.parameters, Mapping) or not all(isinstance(name, str) for name in self.parameters):
            raise TypeError(
                f"parameters must be a mapping from names to numbers and text; got {self.parameters!r}. "
                "Fix: parameters={} for none."
            )

    @property
    def slug(self) -> str:
        return self.function.__name__

    @property
    def code(self) -> str:
        return code_digest(self.function)

    @property
    def function_path(self) -> str:
        """Module and name of the function."""
        return f"{self.function.__module__}.{self.function.__qualname__}"

    @cached_property
    def key(self) -> str:
        return content_key(
            {
                "zeroshift": __version__,
                "code": self.code,
                "features": self.digest,
                "prompt": self.prompt,
                "analysis": self.function_path,
                "parameters": canonical(self.parameters),
                "timed": self.timed,
            }
        )

    def describe(self) -> dict[str, Any]:
        return {
            "features": self.features,
            "digest": self.digest,
            "prompt": self.prompt,
            "analysis": self.slug,
            "function": self.function_path,
            "parameters": dict(self.parameters),
            "timed": self.timed,
        }

    def is_valid(self, record: Mapping[str, Any]) -> bool:
        return record.get("analysis") == self.slug

    def run(self, features: FeatureSet) -> dict[str, Any]:
        """The result of the function, and the zero-shot accuracy of the same features."""
        baseline = None if features.labels is None else features.zero_shot_accuracy(self.prompt)
        return {"zero_shot_accuracy": baseline, **self.function(features, prompt=self.prompt, **self.parameters)}

    def __str__(self) -> str:
        changed = "".join(f" {name}={value}" for name, value in self.parameters.items())
        return f"{self.slug}{changed} on {self.features}, prompts {self.prompt}"


def _check_importable(function: Any) -> None:
    """Reject functions without a unique name. All lambdas are called <lambda> and would share a record; so would
    functions of scripts, whose module is always __main__ and whose code is in no key."""
    if not callable(function):
        raise TypeError(
            f"function must be a function f(features, *, prompt, **parameters) of a module; got {function!r}. "
            "Fix: function=f, with f defined at the top level of a module."
        )
    fix = "Fix: define it at the top level of a module of its own, and import it from there"
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        what = "a functools.partial" if isinstance(function, partial) else f"a {type(function).__name__}"
        raise ValueError(
            f"function must be a function that can be imported by its name; got {what}, which has none. {fix}; "
            "its arguments go into parameters."
        )
    if module == "__main__":
        raise ValueError(
            f"function must be a function that can be imported by its name; got {name} of the running script or "
            f"notebook, which other processes cannot import, and whose code would be in no key. {fix}."
        )
    found: Any = sys.modules.get(module)
    if getattr(found, "__spec__", None) is None:
        found = None  # a module without a file
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not function:
        raise ValueError(
            f"function must be a function that can be imported by its name; got {name} of {module}, which cannot "
            f"(a lambda, a nested function, or a method of an object). {fix}; "
            "values from its closure go into parameters."
        )

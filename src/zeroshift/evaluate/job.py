"""Anything that is worked out once for a feature set and kept: a method's run, or a look at the features themselves."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np

from zeroshift._version import __version__
from zeroshift.arrays import to_numpy
from zeroshift.evaluate.keys import canonical, code_digest
from zeroshift.features import FeatureSet

__all__ = ["Analysis", "AnyJob", "Job", "content_key"]

KEY_LETTERS = 20


class Job(Protocol):
    """What the runner, the ledger and the processes know of a piece of work."""

    @property
    def features(self) -> str:
        """Name of the set; not part of the key."""

    @property
    def digest(self) -> str:
        """What the set holds: see `zeroshift.evaluate.keys`."""

    @property
    def slug(self) -> str:
        """The word a record's file name begins with."""

    @property
    def key(self) -> str:
        """The same for the same work, on every machine; other code has other keys."""

    @property
    def code(self) -> str:
        """The code that does it: see `zeroshift.evaluate.keys`."""

    @property
    def timed(self) -> bool:
        """Whether its time is what it is for: such work is done alone, after all other."""

    def describe(self) -> dict[str, Any]:
        """What it is, for the record."""

    def is_valid(self, record: Mapping[str, Any]) -> bool:
        """Whether a record holds what one of this work must hold."""

    def run(self, features: FeatureSet) -> dict[str, Any]:
        """Do it: numbers and words only."""


AnyJob = TypeVar("AnyJob", bound=Job)


def content_key(content: Mapping[str, Any]) -> str:
    """A short text that differs wherever `content` does.

    >>> content_key({"seed": 0, "shots": None}) == content_key({"shots": None, "seed": 0})
    True
    >>> content_key({"seed": 0}) == content_key({"seed": 1})
    False
    """
    text = json.dumps(content, sort_keys=True, default=_plain)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_LETTERS]


def _plain(value: Any) -> Any:
    """What JSON does not know, whole: the repr of an array would leave out its middle."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) or hasattr(value, "detach"):
        array = to_numpy(value)
        return [str(array.dtype), list(array.shape), hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()]
    raise TypeError(
        f"a {type(value).__name__} cannot be part of a key; got {value!r}. "
        "Fix: numbers, words, arrays, or lists of them."
    )


# A look at the features of a set, kept like a run: any function of a `FeatureSet` that answers numbers and words.


@dataclass(frozen=True)
class Analysis:
    """`function(features, prompt=..., **parameters)`, done once for a set and kept.

    Parameters
    ----------
    features, digest, prompt : the set, as `DatasetRef` has it; `prompt` is the mode of the prototypes.
    function : at the top level of a module, not of the script or notebook that is run: other processes import it by
        its name, and the code it is written in is part of the key.
    parameters : numbers and words; a seed among them where it draws at random.
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
                f"parameters must be a mapping from names to numbers and words; got {self.parameters!r}. "
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
        """Where the function is: others may be called the same."""
        return f"{self.function.__module__}.{self.function.__qualname__}"

    @property
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
        """What the function says, and the zero-shot accuracy of the same features."""
        baseline = None if features.labels is None else features.zero_shot_accuracy(self.prompt)
        return {"zero_shot_accuracy": baseline, **self.function(features, prompt=self.prompt, **self.parameters)}

    def __str__(self) -> str:
        changed = "".join(f" {name}={value}" for name, value in self.parameters.items())
        return f"{self.slug}{changed} on {self.features}, prompts {self.prompt}"


def _check_importable(function: Any) -> None:
    """Refuse what has no name of its own. Two lambdas are both called <lambda> and would share a record; so would the
    functions of two scripts, which are both called __main__, and whose code is in no key."""
    if not callable(function):
        raise TypeError(
            f"function must be a function f(features, *, prompt, **parameters) of a module; got {function!r}. "
            "Fix: function=f, with f written at the top level of a module."
        )
    fix = "Fix: write it with def at the top level of a module of its own, and import it from there"
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        what = "a functools.partial" if isinstance(function, partial) else f"a {type(function).__name__}"
        raise ValueError(
            f"function must be a function that can be imported by its name; got {what}, which has none. {fix}; "
            "what it is to be called with goes into parameters."
        )
    if module == "__main__":
        raise ValueError(
            f"function must be a function that can be imported by its name; got {name} of the script or notebook that "
            f"is run, which other processes cannot import, and whose changes no record would show. {fix}."
        )
    found: Any = sys.modules.get(module)
    if getattr(found, "__spec__", None) is None:
        found = None  # made up while running: there is no file to import
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not function:
        raise ValueError(
            f"function must be a function that can be imported by its name; got {name} of {module}, which cannot "
            f"(a lambda, a function within another, or a method of an object). {fix}; "
            "what it takes from around it goes into parameters."
        )

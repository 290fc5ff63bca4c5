"""A look at the features of a set, kept like a run: any function of a `FeatureSet` that answers numbers and words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from zeroshift._version import __version__
from zeroshift.evaluate.code import code_digest
from zeroshift.evaluate.job import keyed
from zeroshift.features import FeatureSet

__all__ = ["Analysis"]


@dataclass(frozen=True)
class Analysis:
    """`function(features, prompt=..., **parameters)`, done once for a set and kept.

    Parameters
    ----------
    features, digest, prompt : the set, as `Entry` has it; `prompt` is the mode of the prototypes.
    function : of a module, so that other processes can import it.
    parameters : numbers and words; a seed among them where it draws at random.
    """

    features: str
    digest: str
    prompt: str
    function: Callable[..., dict[str, Any]]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    timed: bool = False

    @property
    def slug(self) -> str:
        return self.function.__name__

    @property
    def code(self) -> str:
        return code_digest(self.function)

    @property
    def key(self) -> str:
        return keyed(
            {
                "zeroshift": __version__,
                "code": self.code,
                "features": self.digest,
                "prompt": self.prompt,
                "analysis": f"{self.function.__module__}.{self.function.__qualname__}",
                "parameters": dict(self.parameters),
                "timed": self.timed,
            }
        )

    def what(self) -> dict[str, Any]:
        return {
            "features": self.features,
            "digest": self.digest,
            "prompt": self.prompt,
            "analysis": self.slug,
            "parameters": dict(self.parameters),
        }

    def sound(self, record: Mapping[str, Any]) -> bool:
        return record.get("analysis") == self.slug

    def do(self, features: FeatureSet) -> dict[str, Any]:
        """What the function says, and the zero-shot accuracy of the same features."""
        baseline = None if features.labels is None else features.zero_shot_accuracy(self.prompt)
        return {"zero_shot_accuracy": baseline, **self.function(features, prompt=self.prompt, **self.parameters)}

    def __str__(self) -> str:
        changed = "".join(f" {name}={value}" for name, value in self.parameters.items())
        return f"{self.slug}{changed} on {self.features}"

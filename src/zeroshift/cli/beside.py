"""What some methods take beside features and prototypes: labelled samples, unlabelled ones, several prompts a class."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from zeroshift.cli.sources import load_features
from zeroshift.features import FeatureSet
from zeroshift.methods import MethodInfo

__all__ = ["Beside"]

PROMPTS = "prompts"


@dataclass(frozen=True)
class Beside:
    """The files given as `--support`, `--validation` and `--unlabelled`, checked against what the method takes."""

    files: dict[str, Path]
    prompts: bool
    """Whether the method wants several prompts of each class, which come with the features."""

    @classmethod
    def checked(cls, info: MethodInfo, *, state: Path | None, **files: Path | None) -> Beside:
        given = {name: path for name, path in files.items() if path is not None}
        if state is not None:
            if given:
                options = ", ".join(f"--{name}" for name in given)
                raise ValueError(f"{state} holds what it was learned with. Fix: leave out {options}, or --state-in.")
            return cls({}, False)
        parameters = {parameter.name: parameter for parameter in info.parameters}
        for name in given:
            if name not in parameters:
                raise ValueError(f"--{name}: {info.name} takes no {name}. Fix: leave it out; see `zeroshift methods`.")
        for name in files:
            if name not in given and name in parameters and parameters[name].required:
                raise ValueError(
                    f"{info.name} needs {name}. Fix: --{name} FILE, features of the same encoder and classes."
                )
        return cls(given, PROMPTS in parameters)

    def arrays(self, features: FeatureSet, *, normalize: bool) -> dict[str, Any]:
        """The arrays, from files that hold the same classes as `features`."""
        found: dict[str, Any] = {}
        for name, path in self.files.items():
            loaded = load_features(str(path), normalize=normalize, beside={})
            self._check(name, path, loaded, features)
            rows = np.asarray(loaded.features)
            found[name] = rows if name == "unlabelled" else (rows, loaded.labels)
        if self.prompts:
            found[PROMPTS] = features.prompts_of_each_class()
        return found

    def _check(self, name: str, path: Path, loaded: FeatureSet, features: FeatureSet) -> None:
        if loaded.dimension != features.dimension:
            raise ValueError(
                f"--{name} {path} has d = {loaded.dimension}, the features have d = {features.dimension}. "
                "Fix: extract both with the same encoder."
            )
        if name == "unlabelled":
            return
        if loaded.labels is None:
            raise ValueError(f"--{name} {path} has no labels. Fix: a file with labels.")
        if loaded.class_names != features.class_names:
            raise ValueError(
                f"--{name} {path} has other classes than the features, or in another order "
                f"({loaded.n_classes} and {features.n_classes}). Fix: extract both with the same class names."
            )

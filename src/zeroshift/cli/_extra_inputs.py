"""What some methods take beside features and prototypes: labelled samples, unlabelled ones, several prompts a class."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from zeroshift.cli._inputs import holds_features_alone, load_features, load_rows
from zeroshift.cli._method_options import same_prototypes
from zeroshift.cli.console import print_warning
from zeroshift.features import FeatureSet
from zeroshift.methods import MethodInfo

__all__ = ["ELSEWHERE", "Beside", "check_views", "gives_views"]

PROMPTS, UNLABELLED = "prompts", "unlabelled"

ELSEWHERE = {
    **{name: f"Fix: --{name} FILE." for name in ("support", "validation", UNLABELLED)},
    PROMPTS: "Fix: leave it out; the prompts of a class are the prompt modes of FEATURES.",
    "text": "Fix: --encoder SOURCE.",
}
"""How `adapt` is given what holds arrays."""


@dataclass(frozen=True)
class Beside:
    """The files given as `--support`, `--validation` and `--unlabelled`, checked against what the method takes."""

    method: str
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
            return cls(info.name, {}, False)
        parameters = {parameter.name: parameter for parameter in info.parameters}
        for name, path in given.items():
            if name not in parameters:
                raise ValueError(f"--{name}: {info.name} takes no {name}. Fix: leave it out; see `zeroshift methods`.")
            _check_kind(name, path)
        for name in files:
            if name not in given and name in parameters and parameters[name].required:
                raise ValueError(
                    f"{info.name} needs {name}. Fix: --{name} FILE, features of the same encoder and classes."
                )
        if "validation" in given and "support" in parameters and "support" not in given:
            raise ValueError(
                f"--validation: {info.name} chooses by it how to use labelled samples, and there are none. "
                "Fix: --support FILE too, or leave out --validation."
            )
        return cls(info.name, given, PROMPTS in parameters)

    def arrays(self, features: FeatureSet, *, normalize: bool) -> dict[str, Any]:
        """The arrays, from files that fit `features`; a warning where they are less than they seem."""
        found: dict[str, Any] = {}
        for name, path in self.files.items():
            if name == UNLABELLED:
                pool = load_rows(str(path), normalize=normalize)
                _check_dimension(name, path, pool, features)
                found[name] = np.asarray(pool.features)
                continue
            loaded = load_features(str(path), normalize=normalize, beside={})
            _check_dimension(name, path, loaded, features)
            if loaded.labels is None:
                raise ValueError(f"--{name} {path} has no labels. Fix: a file with labels.")
            _check_classes(name, path, loaded, features)
            _warn(name, loaded, features)
            found[name] = (np.asarray(loaded.features), loaded.labels)
        if self.prompts:
            if len(features.prompts) == 1:
                print_warning(f"{self.method} weighs several prompts of a class; the features hold one prompt a class")
            found[PROMPTS] = features.prompts_of_each_class()
        return found


def _check_kind(name: str, path: Path) -> None:
    if path.is_dir():
        raise ValueError(f"--{name} {path} is a folder. Fix: name a feature file in it.")
    if name != UNLABELLED and holds_features_alone(str(path)):
        raise ValueError(
            f"--{name} {path} holds features alone; labels and prototypes are needed inside. "
            "Fix: a .safetensors file (`zeroshift extract`, FeatureSet.save), or an .npz file with all three."
        )


def _check_dimension(name: str, path: Path, loaded: FeatureSet, features: FeatureSet) -> None:
    if loaded.dimension != features.dimension:
        raise ValueError(
            f"--{name} {path} has d = {loaded.dimension}, the features have d = {features.dimension}. "
            "Fix: extract both with the same encoder."
        )


def _check_classes(name: str, path: Path, loaded: FeatureSet, features: FeatureSet) -> None:
    """Names alone do not tell: two encoders have the same, and a file may have none."""
    nameless = [what for what, one in (("this file", loaded), ("the features", features)) if _nameless(one)]
    if loaded.n_classes != features.n_classes or (not nameless and loaded.class_names != features.class_names):
        raise ValueError(
            f"--{name} {path} has other classes than the features, or in another order "
            f"({loaded.n_classes} and {features.n_classes}). Fix: extract both with the same class names."
        )
    if _prototypes_agree(loaded, features):
        return
    unnamed = (
        f" Without class names in {' and '.join(nameless)}, classes are taken to be in the same order only where the "
        "prototypes agree."
        if nameless
        else ""
    )
    raise ValueError(
        f"--{name} {path}: its prototypes differ from those of the features: another encoder, other prompts or another "
        f"class order.{unnamed} Fix: extract both with the same encoder, prompts and class names."
    )


def _nameless(features: FeatureSet) -> bool:
    return features.class_names == tuple(f"class {k}" for k in range(features.n_classes))


def _prototypes_agree(first: FeatureSet, second: FeatureSet) -> bool:
    """In a prompt mode both have; where there is none, in any: modes may be called otherwise in the two files."""
    common = [(mode, mode) for mode in first.prompts if mode in second.prompts]
    pairs = common or product(first.prompts, second.prompts)
    return any(same_prototypes(first.prototypes_for(one), second.prototypes_for(other)) for one, other in pairs)


def _warn(name: str, loaded: FeatureSet, features: FeatureSet) -> None:
    if repeated := _repeated(loaded.features, features.features):
        are = "row of --{} is" if repeated == 1 else "rows of --{} are"
        print_warning(f"{repeated} {are.format(name)} among the features: its accuracy there says nothing")
    seen = 0 if loaded.labels is None else len(np.unique(loaded.labels))
    if name == "support" and seen < features.n_classes:
        print_warning(f"--{name} holds samples of {seen} of {features.n_classes} classes")


def _repeated(rows: np.ndarray, among: np.ndarray) -> int:
    """How many of `rows` are rows of `among`, number for number."""
    wide = np.promote_types(rows.dtype, among.dtype)
    # The first number tells most rows apart; only those that have it in common are looked at whole.
    likely = np.flatnonzero(np.isin(among[:, 0], rows[:, 0]))
    known = {among[row].astype(wide).tobytes() for row in likely}
    return sum(row.astype(wide).tobytes() in known for row in rows) if known else 0


# Whether `zeroshift adapt` gives a method the views of each image: needed, asked for with `--views`, or not at all.


VIEWS = "views"


def gives_views(info: MethodInfo, *, asked: bool) -> bool:
    """A method that needs views is given them anyway; one that takes them only where `asked`."""
    if asked and VIEWS not in (*info.needs, *info.takes):
        raise ValueError(
            f"--views: {info.name} takes no views, it looks at each image itself. Fix: leave it out, or take a method "
            "with views among its needs: see `zeroshift methods`."
        )
    return asked or VIEWS in info.needs


def check_views(info: MethodInfo, features: FeatureSet, source: str) -> None:
    """Refuse features without views for a method that is to be given them."""
    if features.views is None:
        why = "needs" if VIEWS in info.needs else "is to be given"
        other = "" if VIEWS in info.needs else ", or leave out --views"
        raise ValueError(
            f"{info.name} {why} several views of each image, and {source} holds none. "
            f"Fix: zeroshift extract --views 64{other}."
        )

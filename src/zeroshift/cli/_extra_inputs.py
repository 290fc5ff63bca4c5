"""`--support`, `--validation`, `--unlabelled`, `--views`, `--second` and `--encoder` of `zeroshift adapt`: inputs that
some methods take in addition to features and prototypes. `zeroshift.methods.inputs` decides what a method needs and
takes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from zeroshift.cli._encoder_options import load_encoder_ref
from zeroshift.cli._inputs import has_only_features, is_feature_file, load_features, load_rows
from zeroshift.cli._method_options import MethodOptions, same_prototypes
from zeroshift.cli.console import print_warning
from zeroshift.evaluate.encoder_ref import check_fit
from zeroshift.features import FeatureSet
from zeroshift.methods import MethodInfo, list_methods
from zeroshift.methods._shared.prompt_tuned import PromptTuned
from zeroshift.methods.inputs import (
    OTHER,
    PYTHON_ONLY,
    SECOND,
    SETTING,
    TEXT,
    VIEWS,
    Source,
    feature_source,
    method_inputs,
    missing_input,
    name_positions,
    prompt_words,
    starts_from_prompt,
    unaccepted_input,
)
from zeroshift.suggest import did_you_mean

__all__ = ["OPTION_HINTS", "ExtraInputs", "add_second", "check_takes_second"]

OPTION_HINTS = {
    **PYTHON_ONLY,
    **{name: f"--{name} FILE" for name in ("support", "validation", "unlabelled")},
    "prompts": "leave it out; the prompts of a class are the prompt modes of FEATURES",
    VIEWS: "zeroshift extract --views 64",
    SECOND: "--second NAME, extra features of FEATURES, or a file",
    TEXT: "--encoder SOURCE, the one FEATURES come from",
    SETTING: "--set {name}=VALUE",
    OTHER: "in Python, zeroshift.encode.make_method({method!r}, encoder, class_names, ...)",
}
"""How `adapt` is given each input of a method."""


@dataclass(frozen=True)
class ExtraInputs:
    """The inputs given by options, checked against what the method takes."""

    info: MethodInfo
    files: dict[str, Path]
    """Feature files by the name of the input."""
    uses_views: bool
    encoder: str | None
    encoder_options: dict[str, Any]
    """Revision, device and dtype of the encoder."""

    @classmethod
    def check(
        cls,
        options: MethodOptions,
        files: dict[str, Path | None],
        *,
        views: bool,
        second: str | None,
        encoder: str | None,
        prompt: str | None,
        **encoder_options: Any,
    ) -> ExtraInputs:
        """Refuse inputs that the method does not take, and a method whose inputs are missing."""
        info, inputs = options.info, method_inputs(options.info)
        given = {name: path for name, path in files.items() if path is not None}
        if options.state is not None and given:
            listed = ", ".join(f"--{name}" for name in given)
            raise ValueError(f"{options.state} contains its own samples. Fix: leave out {listed}, or --state-in.")
        named = [*given, *([VIEWS] if views else []), *([TEXT] if encoder is not None else [])]
        for name in named:
            if reason := unaccepted_input(info, name):
                option = "--encoder" if name == TEXT else f"--{name}"
                raise ValueError(f"{option}: {reason} Fix: leave it out; see `zeroshift methods`.")
        if second is not None:
            check_takes_second(info, "--second")
            if (views or VIEWS in inputs.required) and not getattr(info.cls, "views_with_second", False):
                raise ValueError(
                    "--second cannot be combined with views of the images. Fix: leave out --second or --views."
                )
        for name, path in given.items():
            _check_kind(name, path)
        available = {*options.parameters, *named, "prompts", VIEWS, *([SECOND] if second is not None else [])}
        if options.state is not None:
            available |= {*info.cls.array_parameters, *inputs.settings}
        if missing := missing_input(info, available, requested=given, hints=OPTION_HINTS):
            raise ValueError(f"{info.name} {missing}.")
        if starts_from_prompt(info) and prompt is not None:
            words = prompt_words(info)
            raise ValueError(
                f"--prompt {prompt}: {info.name} starts with its own prompt, {words!r}. Fix: leave it out."
            )
        return cls(info, given, views or VIEWS in inputs.required, encoder, encoder_options)

    @property
    def requested(self) -> tuple[str, ...]:
        """Optional inputs to give to the method."""
        prompts = ["prompts"] if "prompts" in method_inputs(self.info).accepted else []
        return (*self.files, *prompts, *([] if self.encoder is None else [TEXT]))

    @property
    def own_prompt(self) -> str | None:
        """The words of the prompt the method starts with; None if it starts with the prototypes."""
        return prompt_words(self.info) if starts_from_prompt(self.info) else None

    def source(self, features: FeatureSet, name: str, prompt: str | None, *, normalize: bool) -> Source:
        """What the features in the file `name`, the other files and the encoder offer. Files are loaded, and checked
        against the features, when the method takes them."""
        if self.uses_views and features.views is None:
            needed = VIEWS in method_inputs(self.info).required
            reason = f"which {self.info.name} needs" if needed else "which --views gives to the method"
            leave_out = "another method" if needed else "leave out --views"
            raise ValueError(
                f"{name} contains no views of its images, {reason}. Fix: {leave_out}, or features with views "
                f"(`{OPTION_HINTS[VIEWS]}`)."
            )
        source: dict[str, Callable[[], Any]] = feature_source(features, prompt)
        if len(features.prompts) == 1:
            source["prompts"] = partial(self._single_prompt, features)
        for option, path in self.files.items():
            load = _load_unlabelled if option == "unlabelled" else _load_labelled
            source[option] = partial(load, option, path, features, normalize=normalize)
        if self.encoder is not None:
            source[TEXT] = partial(self._load_text, features, name)
        return source

    def _single_prompt(self, features: FeatureSet) -> np.ndarray:
        print_warning(f"{self.info.name} weighs several prompts per class; the features contain one prompt per class")
        return features.prompts_of_each_class()

    def _load_text(self, features: FeatureSet, name: str) -> Any:
        """The text side of the encoder, which must be the one the features come from."""
        encoder = load_encoder_ref(self.encoder, **self.encoder_options)
        assert encoder is not None
        check_fit(name, features, encoder, [self.own_prompt or PromptTuned.context_words])
        return encoder.text(features.class_names, prompt_words(self.info), name_positions(self.info))


def check_takes_second(info: MethodInfo, option: str) -> None:
    """Refuse a second encoder for a method that takes none."""
    if reason := unaccepted_input(info, SECOND):
        taking = [other.name for other in list_methods() if SECOND in other.takes]
        instead = f", or --method {' or '.join(taking)}" if taking else ""
        raise ValueError(f"{option}: {reason} Fix: leave it out{instead}.")


def add_second(features: FeatureSet, given: str, *, normalize: bool) -> tuple[FeatureSet, str]:
    """The set with the features of the second encoder, and their name in it.

    `given` is a feature file (by its suffix) or a pack with the same images in the same order, or else the name of
    extra features that the set contains.
    """
    if is_feature_file(given):
        other = load_rows(given, normalize=normalize)
        stem = Path(given.removeprefix("pack:")).stem
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", stem)[:90].lstrip("._-") or "second"
        while name in features.extra:
            name += "-2"
        try:
            return features.with_extra(name, other), name
        except ValueError as error:
            raise ValueError(f"--second {given}: {error}") from error
    if given in features.extra:
        return features, given
    known = f"it contains {', '.join(features.extra)}" if features.extra else "it contains none"
    raise ValueError(
        f"--second {given}: FEATURES has no extra features of this name; {known}. {did_you_mean(given, features.extra)}"
        "Fix: the name of extra features, or a feature file (.safetensors, .npz or .npy) of the same images."
    )


def _check_kind(name: str, path: Path) -> None:
    if path.is_dir():
        raise ValueError(f"--{name} {path} is a folder. Fix: name a feature file in it.")
    if name != "unlabelled" and has_only_features(str(path)):
        raise ValueError(
            f"--{name} {path} contains only features; labels and prototypes are needed too. "
            "Fix: a .safetensors file (`zeroshift extract`, FeatureSet.save), or an .npz file with all three."
        )


def _load_unlabelled(name: str, path: Path, features: FeatureSet, *, normalize: bool) -> np.ndarray:
    loaded = load_rows(str(path), normalize=normalize)
    _check_dimension(name, path, loaded, features)
    return np.asarray(loaded.features)


def _load_labelled(name: str, path: Path, features: FeatureSet, *, normalize: bool) -> tuple[np.ndarray, np.ndarray]:
    loaded = load_features(str(path), normalize=normalize)
    _check_dimension(name, path, loaded, features)
    if loaded.labels is None:
        raise ValueError(f"--{name} {path} has no labels. Fix: a file with labels.")
    _check_classes(name, path, loaded, features)
    if repeated := _count_repeated(loaded.features, features.features):
        rows = "row of --{} is" if repeated == 1 else "rows of --{} are"
        print_warning(f"{repeated} {rows.format(name)} among the features: the accuracy on them is meaningless")
    covered = len(np.unique(loaded.labels))
    if name == "support" and covered < features.n_classes:
        print_warning(f"--{name} has samples of {covered} of {features.n_classes} classes")
    return np.asarray(loaded.features), loaded.labels


def _check_dimension(name: str, path: Path, loaded: FeatureSet, features: FeatureSet) -> None:
    if loaded.dimension != features.dimension:
        raise ValueError(
            f"--{name} {path} has d = {loaded.dimension}, the features have d = {features.dimension}. "
            "Fix: extract both with the same encoder."
        )


def _check_classes(name: str, path: Path, loaded: FeatureSet, features: FeatureSet) -> None:
    """Names and prototypes: two encoders may have the same class names, and a file may have none."""
    unnamed = [what for what, one in (("this file", loaded), ("the features", features)) if _has_default_names(one)]
    if loaded.n_classes != features.n_classes or (not unnamed and loaded.class_names != features.class_names):
        raise ValueError(
            f"--{name} {path} has other classes than the features, or in another order "
            f"({loaded.n_classes} and {features.n_classes}). Fix: extract both with the same class names."
        )
    if _prototypes_agree(loaded, features):
        return
    note = (
        f" Without class names in {' and '.join(unnamed)}, the order of the classes is known only if the prototypes "
        "agree."
        if unnamed
        else ""
    )
    raise ValueError(
        f"--{name} {path}: its prototypes differ from those of the features: another encoder, other prompts or another "
        f"class order.{note} Fix: extract both with the same encoder, prompts and class names."
    )


def _has_default_names(features: FeatureSet) -> bool:
    return features.class_names == tuple(f"class {k}" for k in range(features.n_classes))


def _prototypes_agree(first: FeatureSet, second: FeatureSet) -> bool:
    """In a prompt mode that both have; if there is none, in any two modes, because their names may differ."""
    common = [(mode, mode) for mode in first.prompts if mode in second.prompts]
    pairs = common or product(first.prompts, second.prompts)
    return any(same_prototypes(first.prototypes_for(one), second.prototypes_for(other)) for one, other in pairs)


def _count_repeated(rows: np.ndarray, others: np.ndarray) -> int:
    """How many of `rows` are exactly equal to a row of `others`."""
    dtype = np.promote_types(rows.dtype, others.dtype)
    # Most rows differ in their first number; only those that share it are compared whole.
    candidates = np.flatnonzero(np.isin(others[:, 0], rows[:, 0]))
    known = {others[row].astype(dtype).tobytes() for row in candidates}
    return sum(row.astype(dtype).tobytes() in known for row in rows) if known else 0

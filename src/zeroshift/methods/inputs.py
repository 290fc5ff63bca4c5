"""What a method needs, what a source offers, and the arguments that follow from the two.

`zeroshift adapt`, `classify`, `compare`, `experiment` and `zeroshift.encode.make_method` all decide it here. A source
(a feature set, an encoder, files) is a mapping from the name of an input to a function that makes it. `missing_input`
looks at the names alone, so that a command can refuse before it loads anything; `resolve_inputs` makes the arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from zeroshift.arrays import to_numpy
from zeroshift.features import FeatureSet
from zeroshift.method import Method
from zeroshift.methods._shared.prompt_tuned import PromptTuned
from zeroshift.methods.registry import MethodInfo, get
from zeroshift.suggest import did_you_mean

VIEWS = "views"
"""Several views of each image: an input of `adapt_views`, not of the constructor."""

SECOND = "second"
"""Features of the same images from a second encoder: an argument of `adapt` and `predict`, not of the constructor."""

TEXT = "text"
"""The text side of an encoder, whose prompt some methods tune: see `zeroshift.methods.PromptedText`."""

FEATURE_INPUTS = ("prompts", "support", "validation", "unlabelled", VIEWS, SECOND)
"""Inputs that come from sets of features."""

DESCRIPTIONS = {
    VIEWS: "several views of each image",
    SECOND: "features of the same images from a second encoder",
    TEXT: "the encoder the features come from, to tune its prompts",
    "vision": "the images themselves, not their features",
    "images": "the images themselves, not their features",
    "support": "labelled samples (support)",
    "validation": "labelled samples to choose parameters by (validation)",
    "unlabelled": "unlabelled samples (unlabelled)",
    "prompts": "several prompts per class (prompts)",
}

SETTING, OTHER = "any setting", "any other input"
"""Keys of hints for parameters that are plain values, and for inputs without their own hint."""

PYTHON_ONLY = {
    **dict.fromkeys(
        ("vision", "images"),
        "in Python, zeroshift.pipeline(encoder, classes, {method!r}, ...), with an encoder that has CLIP's vision "
        "transformer",
    ),
    "source": "in Python, zeroshift.encode.make_method({method!r}, encoder, class_names, "
    "source=zeroshift.methods.selftpt_source(text, support))",
}
"""Inputs that no command can give, and how Python gives them. Methods with a source of another kind also need
images, which are asked for first."""

PYTHON_HINTS = {
    VIEWS: "zeroshift extract --views 64, or zeroshift.encode.extract(..., views=Views(64))",
    SECOND: "features.with_extra('second', rows), and second=... in each call",
    OTHER: "{name}=..., or zeroshift.encode.make_method({method!r}, encoder, class_names, ...)",
    SETTING: "{name}=VALUE",
}
"""How each input is given, by its name; `{method}` and `{name}` are filled in. Commands have their own."""


@dataclass(frozen=True)
class MethodInputs:
    """The inputs of a method besides features and prototypes, by name; see `method_inputs`."""

    required: tuple[str, ...]
    optional: tuple[str, ...]
    """What it can use and does without: arrays, models, views, a second encoder; not settings with a default."""
    settings: tuple[str, ...]
    """Those of the required inputs that are plain values, which can be typed on a command line."""

    @property
    def accepted(self) -> tuple[str, ...]:
        return (*self.required, *self.optional)

    @property
    def from_features(self) -> tuple[str, ...]:
        """Accepted inputs that a set of features can give."""
        return tuple(name for name in FEATURE_INPUTS if name in self.accepted)


def method_inputs(info: MethodInfo) -> MethodInputs:
    """From what the method declares.

    >>> from zeroshift import methods
    >>> method_inputs(methods.get("tip_adapter"))
    MethodInputs(required=('support',), optional=('validation',), settings=())
    """
    needed = dict.fromkeys([*info.needs, *(one.name for one in info.parameters if one.required)])
    required = tuple(name for name in needed if name not in ("prototypes", "features"))
    names = [one.name for one in info.parameters]
    held = [name for name in names if name in (*info.cls.array_parameters, *info.cls.model_parameters)]
    optional = dict.fromkeys([*info.takes, *held])
    return MethodInputs(
        required,
        tuple(name for name in optional if name not in required),
        tuple(name for name in required if name in set(names) - set(held)),
    )


def missing_input(
    info: MethodInfo,
    available: Collection[str],
    *,
    requested: Iterable[str] = (),
    hints: Mapping[str, str] = PYTHON_HINTS,
) -> str | None:
    """The first input that the method needs, or that is requested for it, and that is not available: "needs ... Fix:
    ...", to follow the method's name. None if nothing is missing. Inputs of `PYTHON_ONLY` come before others: with
    those alone, a command could not run the method either.

    >>> from zeroshift import methods
    >>> missing_input(methods.get("tip_adapter"), [], hints={"support": "--support FILE"})
    'needs labelled samples (support). Fix: --support FILE'
    """
    inputs = method_inputs(info)
    wanted = add_implied_inputs(info, (*requested, *inputs.required))
    missing = sorted((name for name in wanted if name not in available), key=lambda name: name not in PYTHON_ONLY)
    if not missing:
        return None
    name = missing[0]
    words = {one.name: f"{one.name} ({one.allowed}), which has no default" for one in info.parameters} | DESCRIPTIONS
    fix = hints.get(name) or hints.get(SETTING if name in inputs.settings else OTHER) or PYTHON_HINTS[OTHER]
    return f"needs {words.get(name, name)}. Fix: {fix.format(method=info.name, name=name)}"


def add_implied_inputs(info: MethodInfo, names: Iterable[str]) -> tuple[str, ...]:
    """`names`, each once; validation samples serve to choose how support samples are used, so they imply support."""
    found = list(dict.fromkeys(names))
    if "validation" in found and "support" not in found and "support" in method_inputs(info).accepted:
        found.insert(found.index("validation"), "support")
    return tuple(found)


def unaccepted_input(info: MethodInfo, name: object) -> str | None:
    """Why the method cannot be given `name`, as a sentence; None if it can."""
    inputs = method_inputs(info)
    if name in inputs.accepted:
        return None
    known = inputs.from_features
    accepted = f"It takes {', '.join(known)}." if known else "It takes features alone."
    label = {TEXT: "encoder", SECOND: "second encoder"}.get(str(name), name)
    return f"{info.name} takes no {label}. {did_you_mean(name, known)}{accepted}"


Source = Mapping[str, Callable[[], Any]]
"""What can be given to a method, by the name of the input: functions that make it."""


def feature_source(features: FeatureSet, prompt: str | None = None) -> dict[str, Callable[[], Any]]:
    """What a set of features offers by itself: prototypes of the prompt mode `prompt`, scale, prompts and views."""
    source: dict[str, Callable[[], Any]] = {
        "prototypes": lambda: features.prototypes_for(prompt),
        "logit_scale": lambda: features.logit_scale,
        "prompts": features.prompts_of_each_class,
    }
    if features.views is not None:
        source[VIEWS] = lambda: features.views
    return source


def resolve_inputs(
    info: MethodInfo,
    parameters: Mapping[str, Any],
    source: Source,
    *,
    requested: Iterable[str] = (),
    hints: Mapping[str, str] = PYTHON_HINTS,
) -> dict[str, Any]:
    """The arguments of the method's constructor, `prototypes` among them; TypeError names the first that is missing.

    Parameters
    ----------
    parameters : values given outright; they take precedence over the source.
    source : functions by the name of the input. Only those are called that the method needs or that are `requested`.
    requested : optional inputs to give to the method as well.
    hints : how each input is given, for the error message.
    """
    inputs, names = method_inputs(info), info.cls.parameter_names()
    arguments = dict(parameters)
    for name in ("logit_scale", *add_implied_inputs(info, (*inputs.required, *requested))):
        if name in names and name in source and name not in arguments:
            arguments[name] = source[name]()
    not_arguments = set(inputs.accepted).difference(names)  # such as views, which `adapt_views` takes
    if missing := missing_input(info, not_arguments.union(arguments), requested=requested, hints=hints):
        raise TypeError(f"{info.name} {missing}.")
    if "prototypes" not in arguments:
        own = _own_prototypes(info, arguments)
        arguments["prototypes"] = source["prototypes"]() if own is None else own
    return arguments


FEATURES_ONLY_HINTS = {
    OTHER: "choose a method on features alone (`zeroshift methods` lists what each needs)",
    SETTING: "parameters={{{name!r}: VALUE}}",
}


def method_on_features(name: str, prototypes: Any, logit_scale: float, parameters: Mapping[str, Any]) -> Method:
    """A new method by name for tools that have features and prototypes only; TypeError if it needs more.

    The logit scale is for methods that have one.
    """
    info = get(name)
    if missing := missing_input(info, parameters, hints=FEATURES_ONLY_HINTS):
        raise TypeError(f"{info.name} {missing}.")
    source = {"prototypes": lambda: prototypes, "logit_scale": lambda: logit_scale}
    return info.cls(**resolve_inputs(info, parameters, source))


def image_input(
    info: MethodInfo, features: FeatureSet, *, views: bool = False, hints: Mapping[str, str] = PYTHON_HINTS
) -> np.ndarray:
    """What the method is run on: the views (N, V, d) where it needs them, or takes them and `views` is True; otherwise
    the features (N, d). ValueError where the set has no views."""
    inputs = method_inputs(info)
    if VIEWS not in (inputs.accepted if views else inputs.required):
        return features.features
    if features.views is None:
        raise _without(info, VIEWS, hints)
    return features.views


def second_input(
    info: MethodInfo, features: FeatureSet, *, hints: Mapping[str, str] = PYTHON_HINTS
) -> tuple[str, np.ndarray]:
    """The first of the set's extra features, and their name; ValueError where it has none."""
    if not features.extra:
        raise _without(info, SECOND, hints)
    return next(iter(features.extra.items()))


def _without(info: MethodInfo, name: str, hints: Mapping[str, str]) -> ValueError:
    others = set(method_inputs(info).accepted) - {name}
    return ValueError(f"{info.name} {missing_input(info, others, requested=[name], hints=hints)}.")


def starts_from_prompt(info: MethodInfo) -> bool:
    """Whether its first classifier is the text features of its own prompt, whatever prototypes the source has."""
    return info.cls.starts_from_prompt


def prompt_words(info: MethodInfo) -> str:
    """The words of the prompt that the method tunes; the usual ones for a method that tunes none."""
    return str(getattr(info.cls, "context_words", PromptTuned.context_words))


def name_positions(info: MethodInfo) -> tuple[str, ...]:
    """Where the name is in each prompt of a class; see `zeroshift.encode.prompted_text`."""
    return tuple(getattr(info.cls, "name_positions", PromptTuned.name_positions))


def _own_prototypes(info: MethodInfo, arguments: Mapping[str, Any]) -> Any:
    """The classifier that a model of the method starts with; None where it starts with the source's prototypes."""
    text, maple = arguments.get(TEXT), arguments.get("maple")
    if starts_from_prompt(info) and text is not None:
        cls = info.cls
        return to_numpy(cls.prototypes_of(text) if issubclass(cls, PromptTuned) else text.features(text.context))
    if maple is not None:
        return to_numpy(maple.text(maple.parameters))
    return None

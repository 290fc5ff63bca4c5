"""`make_method`: any registered method for an encoder and class names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from zeroshift import methods
from zeroshift.arrays import Array, is_array, to_numpy
from zeroshift.encode.encoder import Encoder
from zeroshift.encode.extraction import encode_classes, encode_prompts
from zeroshift.encode.extraction.readable import warn_about_names
from zeroshift.encode.prompts import Prompts
from zeroshift.encode.tuning.deep_prompts import deep_prompts
from zeroshift.encode.tuning.text import check_class_names, prompted_text
from zeroshift.encode.tuning.vision import prompted_vision
from zeroshift.method import Method
from zeroshift.methods.inputs import (
    OTHER,
    SETTING,
    TEXT,
    name_positions,
    prompt_words,
    resolve_inputs,
    starts_from_prompt,
)
from zeroshift.methods.registry import MethodInfo
from zeroshift.parameters import Flag

__all__ = ["DEFAULT_MODE", "make_method", "model_sources"]

DEFAULT_MODE = "ensemble"
"""Prompt mode where no prompts are given: that of `zeroshift extract`."""

HINTS = dict.fromkeys((OTHER, SETTING), "zeroshift.encode.make_method({method!r}, encoder, class_names, {name}=...)")


def make_method(
    name: str,
    encoder: Encoder,
    class_names: Sequence[str],
    *,
    prompts: Prompts | str | Array | None = None,
    repeated_names: bool = False,
    **parameters: Any,
) -> Method:
    """The method registered under `name`, ready for features of `encoder`; `zeroshift.pipeline` also takes images.

    It computes in torch on the encoder's GPU, otherwise in NumPy.

    Parameters
    ----------
    name : see `zeroshift.methods.list_methods`.
    class_names : in the order of the classes.
    prompts : `Prompts`, or the name of a mode that needs nothing more, to make the prototypes from; None is the mode
        "ensemble". A method that weighs prompts is also given the embedding of each prompt; a (K, P, d) array is given
        to it unchanged. A method that tunes the words of its prompt starts with its own, "a photo of a", and takes
        none.
    repeated_names : allow a name twice, as in ImageNet's list.
    parameters : the method's own. Inputs that are made here can be given instead, such as
        `text=prompted_text(encoder, class_names, template="{words} {name}, a type of pet.")`.
    """
    info = methods.get(name)
    if not isinstance(encoder, Encoder):
        raise TypeError(
            f"encoder must be a loaded encoder; got {type(encoder).__name__}. Fix: zeroshift.encode.load_encoder(...)."
        )
    names = check_class_names(class_names, repeated=bool(Flag().check("repeated_names", repeated_names)))
    takes_prompts = "prompts" in {parameter.name for parameter in info.parameters}
    wording = _check_prompts(name, prompts, tuned=starts_from_prompt(info), takes_prompts=takes_prompts)
    given = {**parameters, **({"prompts": prompts} if is_array(prompts) else {})}
    models = model_sources(info, encoder, names, repeated_names=repeated_names)
    source: dict[str, Callable[[], Any]] = {
        **models,
        "logit_scale": lambda: encoder.logit_scale,
        "prompts": lambda: _place(
            encoder, encode_prompts(encoder, wording.for_classes(names), templates=wording.templates)
        ),
        "prototypes": lambda: (
            encode_classes(encoder, wording.for_classes(names), templates=wording.templates).prototypes
        ),
    }
    requested = [side for side in info.cls.model_parameters if side in models]
    requested += ["prompts"] if prompts is not None and takes_prompts else []
    arguments = resolve_inputs(info, given, source, requested=requested, hints=HINTS)
    prototypes = arguments.pop("prototypes")
    if "prototypes" not in parameters:
        prototypes = _place(encoder, prototypes)
    _check_classes(names, encoder, arguments.get(TEXT), prototypes)
    warn_about_names(names, to_numpy(prototypes), encoder.tokenizer)
    return methods.create(name, prototypes, **arguments)


def model_sources(
    info: MethodInfo, encoder: Encoder, names: Sequence[str], *, repeated_names: bool = False
) -> dict[str, Callable[[], Any]]:
    """How to make the models that a method may compute with, by the name of its parameter."""
    return {
        TEXT: lambda: prompted_text(
            encoder,
            names,
            words=prompt_words(info),
            position=name_positions(info),
            repeated_names=repeated_names,
        ),
        "vision": lambda: prompted_vision(encoder),
        "towers": lambda: deep_prompts(encoder, names, repeated_names=repeated_names),
    }


def _check_classes(names: Sequence[str], encoder: Encoder, text: Any, prototypes: Any) -> None:
    """Refuse a text or prototypes of other classes than `names`, or of another d."""
    expected = (len(names), encoder.dimension)
    text_shape = (getattr(text, "n_classes", expected[0]), getattr(text, "dimension", expected[1]))
    for given, shape in (("text", text_shape), ("prototypes", tuple(getattr(prototypes, "shape", expected)))):
        if shape != expected:
            raise ValueError(
                f"{given} must be of the {expected[0]} classes in class_names, in the encoder's d = {expected[1]}; got "
                f"{' x '.join(map(str, shape))}. Fix: leave {given} out, or make it for these class_names."
            )


def _check_prompts(name: str, prompts: Prompts | str | Array | None, *, tuned: bool, takes_prompts: bool) -> Prompts:
    """The prompts that prototypes are made from."""
    if prompts is not None and tuned and not takes_prompts:
        raise ValueError(
            f"prompts cannot be given to {name}, which starts from a prompt of its own. "
            "Fix: text=prompted_text(encoder, class_names, words=..., template=...)."
        )
    if prompts is None or (is_array(prompts) and takes_prompts):
        return Prompts.named(DEFAULT_MODE)
    if isinstance(prompts, str):
        return Prompts.named(prompts)
    if not isinstance(prompts, Prompts):
        raise TypeError(
            f"prompts must be Prompts or the name of a mode{', or an array (K, P, d)' if takes_prompts else ''}; got "
            f"{type(prompts).__name__}. Fix: Prompts.named('vanilla')."
        )
    return prompts


def _place(encoder: Encoder, array: np.ndarray) -> Array:
    """The array where the method computes: on the encoder's GPU, or in NumPy where there is no GPU with float64."""
    if encoder.device.type != "cuda":
        return array
    import torch

    return torch.from_numpy(np.ascontiguousarray(array)).to(encoder.device)

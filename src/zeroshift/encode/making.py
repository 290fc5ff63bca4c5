"""`make_method`: any registered method from a loaded encoder and class names, with what it needs of the two."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from zeroshift import methods
from zeroshift.arrays import Array, is_array
from zeroshift.encode.encoder import Encoder
from zeroshift.encode.extraction import encode_classes, encode_prompts
from zeroshift.encode.prompts import Prompts
from zeroshift.encode.tuning.prompted import WORDS, check_class_names, prompted_text
from zeroshift.encode.tuning.vision import prompted_vision
from zeroshift.method import Method
from zeroshift.methods.parts.prompt_tuned import PromptTuned
from zeroshift.parameters import Flag

if TYPE_CHECKING:
    from zeroshift.methods.parts.towers import Tower

__all__ = ["DEFAULT_MODE", "make_method"]

DEFAULT_MODE = "ensemble"
"""Of the prompts, where none are given: that of `zeroshift extract`."""


def make_method(
    name: str,
    encoder: Encoder,
    class_names: Sequence[str],
    *,
    prompts: Prompts | str | Array | None = None,
    repeated_names: bool = False,
    **parameters: Any,
) -> Method:
    """The method registered under `name`, ready for features or images of `encoder`; see `adapt_images`.

    On a GPU it computes there, in torch; else in NumPy.

    Parameters
    ----------
    name : see `zeroshift.methods.list_methods`.
    class_names : in the order of the classes.
    prompts : what prototypes are made of: `Prompts`, or the name of a mode that needs nothing more; None is the mode
        "ensemble". A method that weighs prompts is given each of them, embedded, as well; a (K, P, d) array is given to
        it as it is. A method that tunes the words of its prompt begins with its own, "a photo of a", and takes none.
    repeated_names : allow a name twice, as in ImageNet's list.
    parameters : the method's own. What is made here may be given instead, such as
        `text=prompted_text(encoder, class_names, template="{words} {name}, a type of pet.")`.
    """
    info = methods.get(name)
    if not isinstance(encoder, Encoder):
        raise TypeError(
            f"encoder must be a loaded encoder; got {type(encoder).__name__}. Fix: zeroshift.encode.load_encoder(...)."
        )
    names = check_class_names(class_names, repeated=bool(Flag().check("repeated_names", repeated_names)))
    cls, known = info.cls, set(inspect.signature(info.cls).parameters)
    wording = _wording(name, prompts, tuned=issubclass(cls, PromptTuned), taken="prompts" in known)
    made = dict(parameters)
    for side in cls.model_parameters:
        if side not in made and side in SIDES:
            made[side] = SIDES[side](cls, encoder, names, repeated_names)
    if "logit_scale" in known:
        made.setdefault("logit_scale", encoder.logit_scale)
    if is_array(prompts):
        made["prompts"] = prompts
    elif "prompts" in info.needs or (prompts is not None and "prompts" in known):
        listed = wording.for_classes(names)
        made["prompts"] = _home(encoder, encode_prompts(encoder, listed, templates=wording.templates))
    for parameter in info.parameters:
        if parameter.required and parameter.name not in made:
            raise TypeError(
                f"{name} needs {parameter.name}: {parameter.allowed}, which cannot be made of an encoder and class "
                f"names. Fix: make_method({name!r}, encoder, class_names, {parameter.name}=...)."
            )
    if "prototypes" in made:
        prototypes = made.pop("prototypes")
    elif issubclass(cls, PromptTuned) and made.get("text") is not None:
        prototypes = _home(encoder, made["text"].features(made["text"].context))
    elif made.get("maple") is not None:
        prototypes = _home(encoder, made["maple"].text(made["maple"].parameters))
    else:
        listed = wording.for_classes(names)
        prototypes = _home(encoder, encode_classes(encoder, listed, templates=wording.templates).prototypes)
    _check_classes(names, encoder, made.get("text"), prototypes)
    return methods.create(name, prototypes, **made)


def _check_classes(names: Sequence[str], encoder: Encoder, text: Any, prototypes: Any) -> None:
    """Refuse a text or prototypes, where they are given, of other classes than `names`, or of another d."""
    whole = (len(names), encoder.dimension)
    of_text = (getattr(text, "n_classes", whole[0]), getattr(text, "dimension", whole[1]))
    for given, shape in (("text", of_text), ("prototypes", tuple(getattr(prototypes, "shape", whole)))):
        if shape != whole:
            raise ValueError(
                f"{given} must be of the {whole[0]} classes in class_names, in the encoder's d = {whole[1]}; got "
                f"{' x '.join(map(str, shape))}. Fix: leave {given} out, or make it for these class_names."
            )


def _wording(name: str, prompts: Prompts | str | Array | None, *, tuned: bool, taken: bool) -> Prompts:
    if prompts is not None and tuned and not taken:
        raise ValueError(
            f"prompts cannot be given to {name}, which tunes the words of its own. "
            "Fix: text=prompted_text(encoder, class_names, words=..., template=...)."
        )
    if prompts is None or (is_array(prompts) and taken):
        return Prompts.named(DEFAULT_MODE)
    if isinstance(prompts, str):
        return Prompts.named(prompts)
    if not isinstance(prompts, Prompts):
        raise TypeError(
            f"prompts must be Prompts or the name of a mode{', or an array (K, P, d)' if taken else ''}; got "
            f"{type(prompts).__name__}. Fix: Prompts.named('vanilla')."
        )
    return prompts


def _text(cls: type[Method], encoder: Encoder, names: Sequence[str], repeated: bool) -> Tower:
    return prompted_text(encoder, names, words=getattr(cls, "words", WORDS), repeated_names=repeated)


def _vision(cls: type[Method], encoder: Encoder, names: Sequence[str], repeated: bool) -> Tower:
    return prompted_vision(encoder)


SIDES = {"text": _text, "vision": _vision}
"""Models that methods are given, by the parameter's name, and what makes them. Others, such as those that need a
checkpoint beside the encoder, are the caller's to give."""


def _home(encoder: Encoder, array: np.ndarray) -> Array:
    """Where the method is to compute: on the encoder's GPU, or, where there is none with float64, in NumPy."""
    if encoder.device.type != "cuda":
        return array
    import torch

    return torch.from_numpy(np.ascontiguousarray(array)).to(encoder.device)

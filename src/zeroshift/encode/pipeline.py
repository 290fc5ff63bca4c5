"""`make_method`: any registered method from a loaded encoder and class names, with what it needs of the two."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from zeroshift import methods
from zeroshift.arrays import Array, is_array
from zeroshift.data.images import decode
from zeroshift.encode.encoder import Encoder, stacked
from zeroshift.encode.extraction import encode_classes, encode_prompts
from zeroshift.encode.extraction.store import digest_of
from zeroshift.encode.preprocessing import Pixels, as_picture
from zeroshift.encode.prompts import Prompts
from zeroshift.encode.tuning.text import WORDS, check_class_names, prompted_text
from zeroshift.encode.tuning.vision import prompted_vision
from zeroshift.encode.views import Views
from zeroshift.method import Method, ViewMethod
from zeroshift.methods._shared.prompt_tuned import PromptTuned
from zeroshift.parameters import Flag, Number

if TYPE_CHECKING:
    from PIL.Image import Image

    from zeroshift.methods._shared.towers import Tower

__all__ = ["DEFAULT_MODE", "adapt_images", "make_method"]

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
    return prompted_text(encoder, names, words=getattr(cls, "context_words", WORDS), repeated_names=repeated)


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


# `adapt_images`: from pictures to answers, one after the other, through an encoder and a method made for it.


if TYPE_CHECKING:
    Picture: TypeAlias = Image | np.ndarray | str | Path
    Generate: TypeAlias = Callable[[Image], Sequence[Image]]


def adapt_images(
    method: Method,
    encoder: Encoder,
    images: Iterable[Picture],
    *,
    views: Views | None = None,
    generate: Generate | None = None,
    batch_size: int | None = None,
) -> Iterator[Array]:
    """The probabilities (K,) of one picture after the other, learned from as the method does: a generator.

    Nothing happens until it is asked for an answer, and no picture is opened before its turn. A transductive method
    needs all of them before the first answer; only their features are kept.

    Parameters
    ----------
    method : made for `encoder`, as by `make_method`.
    images : paths, pillow images, (H, W, 3) arrays of bytes; any iterable.
    views : how views are made, for methods that learn from several. None makes 64 for a method that needs them and one
        for others. A picture's views depend on its content and the seed alone: they are those of `extract`.
    generate : makes more views of a picture, as DiffTPT wants them: from an RGB pillow image, a list of images. They
        come behind the others, preprocessed as pictures are, without random crops.
    batch_size : pictures encoded together, which is faster, and learned from in one call; None is the method's own
        batch size, for most methods 1. A transductive method is given all in one call, and they are encoded so.
    """
    plan = _Plan(method, encoder, views, generate)
    if isinstance(images, (str, bytes, Path, Mapping)) or not isinstance(images, Iterable):
        raise TypeError(f"images must be several, in a list; got one {type(images).__name__}. Fix: [image].")
    together = method.protocol == "transductive"
    if batch_size is None:
        batch_size = encoder.batch_size if together else getattr(method, "batch_size", None) or 1
    size = int(Number(1, integer=True).check("batch_size", batch_size))
    return plan.answers_together(images, size) if together else plan.answers(images, size)


class _Plan:
    """What is made of a picture, and which call of the method it is given to; refused where they do not fit."""

    def __init__(self, method: Method, encoder: Encoder, views: Views | None, generate: Generate | None) -> None:
        _check_fit(method, encoder)
        several = isinstance(method, ViewMethod)
        for name, value in (("views", views), ("generate", generate)):
            if value is not None and not several:
                raise ValueError(f"{name} cannot be given to {method.name}, which takes one view. Fix: leave it out.")
        if views is not None and not isinstance(views, Views):
            raise TypeError(f"views must be Views; got {type(views).__name__}. Fix: zeroshift.encode.Views(64).")
        if generate is not None and not callable(generate):
            raise TypeError(
                f"generate must be a function from an image to images; got {type(generate).__name__}. "
                "Fix: generate=lambda image: [...]."
            )
        self.method, self.encoder, self.generate = method, encoder, generate
        self.views = Views() if views is None and "views" in method.needs else views
        sides = (getattr(method, name, None) for name in ("vision", *method.model_parameters))
        self.raw = getattr(method, "takes_images", False) and any(side is not None for side in sides)

    def answers(self, images: Iterable[Picture], size: int) -> Iterator[Array]:
        left = iter(images)
        while batch := list(islice(left, size)):
            yield from self._told(self._seen(batch))

    def answers_together(self, images: Iterable[Picture], size: int) -> Iterator[Array]:
        left = iter(images)
        parts = []
        while batch := list(islice(left, size)):
            parts.append(self._seen(batch))
        if parts:
            _check_as_many(part[0] for part in parts)
            yield from self._told(np.concatenate(parts))

    def _told(self, seen: np.ndarray) -> Array:
        if self.views is not None or self.generate is not None:
            assert isinstance(self.method, ViewMethod)  # as was checked
            return self.method.adapt_views(seen)
        return self.method.adapt(seen)

    def _seen(self, batch: Sequence[Picture]) -> np.ndarray:
        """Features (B, d), or of views (B, V, d), or pixels of either for a method with an image side of its own."""
        if self.views is None and self.generate is None:
            pixels = stacked([self.encoder.preprocessing(_opened(image)[0]) for image in batch])
            return self._single(pixels) if self.raw else self.encoder.encode_pixels(pixels)
        # One picture's views at a time: those of a batch together would be gigabytes.
        made = (self._views(image) for image in batch)
        seen = [self._single(pixels) if self.raw else self.encoder.encode_pixels(pixels) for pixels in made]
        _check_as_many(seen)
        return np.stack(seen)

    def _views(self, image: Picture) -> Pixels:
        picture, key = _opened(image)
        preprocessing = self.encoder.preprocessing
        crops = (self.views or Views(1))(picture, preprocessing, key)
        if self.generate is None:
            return crops
        made = self.generate(picture)
        if isinstance(made, (str, bytes)) or not isinstance(made, Iterable):
            raise TypeError(
                f"generate must answer with a list of images; got {type(made).__name__}. Fix: [image], or [] for none."
            )
        others = [preprocessing(_opened(one)[0]) for one in made]
        if not others:
            return crops
        # With AugMix, crops are no bytes but numbers between 0 and 255, which bytes are, too.
        return tuple(
            np.concatenate([crop, other.astype(crop.dtype)]) for crop, other in zip(crops, stacked(others), strict=True)
        )

    def _single(self, pixels: Pixels) -> np.ndarray:
        if len(pixels) != 1:
            raise ValueError(
                f"{self.method.name} takes images as one array, and the family {self.encoder.family!r} makes "
                f"{len(pixels)} of each. Fix: an encoder whose images have one size."
            )
        return pixels[0]


def _opened(image: Picture) -> tuple[Image, bytes]:
    """The picture in RGB, and a digest of what it is: of a file's bytes, as for `extract`, or else of its pixels."""
    if isinstance(image, (str, Path)) and Path(image).is_file():
        content = Path(image).read_bytes()
        return decode(content, str(image)).image, digest_of(content)
    picture = as_picture(image)
    content = image.tobytes() if isinstance(image, np.ndarray) else picture.tobytes()
    return picture, digest_of(content)


def _check_fit(method: Method, encoder: Encoder) -> None:
    if not isinstance(method, Method):
        raise TypeError(
            f"method must be a method of zeroshift.methods; got {type(method).__name__}. Fix: make_method(name, ...)."
        )
    if not isinstance(encoder, Encoder):
        raise TypeError(
            f"encoder must be a loaded encoder; got {type(encoder).__name__}. Fix: zeroshift.encode.load_encoder(...)."
        )
    if method.dimension != encoder.dimension:
        raise ValueError(
            f"method has prototypes of d = {method.dimension}, the encoder gives d = {encoder.dimension}. "
            "Fix: make_method(name, encoder, class_names)."
        )
    for name in method.model_parameters:
        side = getattr(method, name)
        whose = None if side is None else side.identity.get("encoder")
        if whose is not None and whose != encoder.key():
            raise ValueError(
                f"{name} of {method.name} was made of another encoder ({whose}) than the one given ({encoder.key()}). "
                "Fix: make_method(name, encoder, class_names)."
            )


def _check_as_many(several: Iterable[np.ndarray]) -> None:
    counts = sorted({len(one) for one in several})
    if len(counts) > 1:
        raise ValueError(
            f"pictures that are learned from together need as many views each; generate made from {counts[0]} to "
            f"{counts[-1]} in all. Fix: batch_size=1, or as many of every picture."
        )

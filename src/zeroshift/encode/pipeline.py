"""From an encoder to predictions: `make_method` makes any registered method for an encoder and class names, and
`adapt_images` runs it on images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from zeroshift import methods
from zeroshift.arrays import Array, is_array
from zeroshift.data.images import decode
from zeroshift.encode.encoder import Encoder, ImageEncoder, stack_pixels
from zeroshift.encode.extraction import encode_classes, encode_prompts
from zeroshift.encode.extraction.store import content_digest
from zeroshift.encode.preprocessing import Pixels, to_rgb_image
from zeroshift.encode.prompts import Prompts
from zeroshift.encode.tuning.text import check_class_names, prompted_text
from zeroshift.encode.tuning.vision import prompted_vision
from zeroshift.encode.views import Views
from zeroshift.method import Method, ViewMethod
from zeroshift.methods.inputs import OTHER, SECOND, SETTING, TEXT, prompt_words, resolve_inputs, starts_from_prompt
from zeroshift.parameters import Flag, Number

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["DEFAULT_MODE", "adapt_images", "make_method"]

DEFAULT_MODE = "ensemble"
"""Prompt mode where no prompts are given: that of `zeroshift extract`."""

HINTS = dict.fromkeys((OTHER, SETTING), "make_method({method!r}, encoder, class_names, {name}=...)")


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
    source: dict[str, Callable[[], Any]] = {
        "logit_scale": lambda: encoder.logit_scale,
        "prompts": lambda: _place(
            encoder, encode_prompts(encoder, wording.for_classes(names), templates=wording.templates)
        ),
        "prototypes": lambda: (
            encode_classes(encoder, wording.for_classes(names), templates=wording.templates).prototypes
        ),
        TEXT: lambda: prompted_text(encoder, names, words=prompt_words(info), repeated_names=repeated_names),
        "vision": lambda: prompted_vision(encoder),
    }
    requested = [side for side in info.cls.model_parameters if side in source]
    requested += ["prompts"] if prompts is not None and takes_prompts else []
    arguments = resolve_inputs(info, given, source, requested=requested, hints=HINTS)
    prototypes = arguments.pop("prototypes")
    if "prototypes" not in parameters:
        prototypes = _place(encoder, prototypes)
    _check_classes(names, encoder, arguments.get(TEXT), prototypes)
    return methods.create(name, prototypes, **arguments)


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
            f"prompts cannot be given to {name}, which tunes the words of its own. "
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


if TYPE_CHECKING:
    Picture: TypeAlias = Image | np.ndarray | str | Path
    Generate: TypeAlias = Callable[[Image], Sequence[Image]]


def adapt_images(
    method: Method,
    encoder: Encoder,
    images: Iterable[Picture],
    *,
    second: ImageEncoder | None = None,
    views: Views | None = None,
    generate: Generate | None = None,
    batch_size: int | None = None,
) -> Iterator[Array]:
    """Adapt to images in order; a generator of each image's probabilities (K,).

    Images are opened one batch at a time, when the next result is requested. A transductive method needs all of them
    before the first result; only their features are kept.

    Parameters
    ----------
    method : made for `encoder`, as by `make_method`.
    images : paths, pillow images, (H, W, 3) arrays of bytes; any iterable.
    second : another encoder, for methods that take the features of two; see `load_image_encoder`.
    views : how views are made, for methods that learn from several. None makes 64 for a method that needs them and one
        for others. An image's views depend only on its content and the seed: they are those of `extract`.
    generate : makes more views of an image, as DiffTPT needs them: from an RGB pillow image, a list of images. They
        follow the other views, preprocessed like images, without random crops.
    batch_size : images encoded together, which is faster, and learned from in one call; None is the method's own
        batch size, for most methods 1. A transductive method is always given all images in one call.
    """
    runner = _ImageRunner(method, encoder, second, views, generate)
    if isinstance(images, (str, bytes, Path, Mapping)) or not isinstance(images, Iterable):
        raise TypeError(f"images must be several, in a list; got one {type(images).__name__}. Fix: [image].")
    together = method.protocol == "transductive"
    if batch_size is None:
        batch_size = encoder.batch_size if together else getattr(method, "batch_size", None) or 1
    size = int(Number(1, integer=True).check("batch_size", batch_size))
    return runner.run_together(images, size) if together else runner.run(images, size)


class _ImageRunner:
    """Encodes images and gives them to the method; refuses options that do not fit the method."""

    def __init__(
        self,
        method: Method,
        encoder: Encoder,
        second: ImageEncoder | None,
        views: Views | None,
        generate: Generate | None,
    ) -> None:
        _check_method(method, encoder)
        if second is not None:
            _check_second(method, second, views is not None or generate is not None or "views" in method.needs)
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
        self.method, self.encoder, self.second, self.generate = method, encoder, second, generate
        self.views = Views() if views is None and "views" in method.needs else views
        models = (getattr(method, name, None) for name in ("vision", *method.model_parameters))
        self.takes_pixels = getattr(method, "takes_images", False) and any(model is not None for model in models)

    def run(self, images: Iterable[Picture], size: int) -> Iterator[Array]:
        left = iter(images)
        while batch := list(islice(left, size)):
            yield from self._adapt(*self._encode_both(batch))

    def run_together(self, images: Iterable[Picture], size: int) -> Iterator[Array]:
        left = iter(images)
        parts = []
        while batch := list(islice(left, size)):
            parts.append(self._encode_both(batch))
        if parts:
            rows, others = zip(*parts, strict=True)
            _check_same_count(part[0] for part in rows)
            yield from self._adapt(np.concatenate(rows), None if self.second is None else np.concatenate(others))

    def _adapt(self, encoded: np.ndarray, other: np.ndarray | None) -> Array:
        if other is not None:
            adapt: Callable[..., Array] = self.method.adapt
            return adapt(encoded, second=other)
        if self.views is not None or self.generate is not None:
            assert isinstance(self.method, ViewMethod)  # as was checked
            return self.method.adapt_views(encoded)
        return self.method.adapt(encoded)

    def _encode_both(self, batch: Sequence[Picture]) -> tuple[np.ndarray, np.ndarray | None]:
        """What the encoder makes of the images, and what the second encoder does."""
        if self.second is None:
            return self._encode(batch), None
        opened = [_open_image(image)[0] for image in batch]
        return self._encode(opened), self.second.encode_images(opened)

    def _encode(self, batch: Sequence[Picture]) -> np.ndarray:
        """Features (B, d), or of views (B, V, d), or pixels of either for a method with an image side of its own."""
        if self.views is None and self.generate is None:
            pixels = stack_pixels([self.encoder.preprocessing(_open_image(image)[0]) for image in batch])
            return self._single_array(pixels) if self.takes_pixels else self.encoder.encode_pixels(pixels)
        # One image at a time: the views of a whole batch would be gigabytes.
        made = (self._views(image) for image in batch)
        encode = self._single_array if self.takes_pixels else self.encoder.encode_pixels
        encoded = [encode(pixels) for pixels in made]
        _check_same_count(encoded)
        return np.stack(encoded)

    def _views(self, image: Picture) -> Pixels:
        picture, key = _open_image(image)
        preprocessing = self.encoder.preprocessing
        crops = (self.views or Views(1))(picture, preprocessing, key)
        if self.generate is None:
            return crops
        made = self.generate(picture)
        if isinstance(made, (str, bytes)) or not isinstance(made, Iterable):
            raise TypeError(
                f"generate must return a list of images; got {type(made).__name__}. Fix: [image], or [] for none."
            )
        others = [preprocessing(_open_image(one)[0]) for one in made]
        if not others:
            return crops
        # AugMix makes floats from 0 to 255 instead of bytes.
        return tuple(
            np.concatenate([crop, other.astype(crop.dtype)])
            for crop, other in zip(crops, stack_pixels(others), strict=True)
        )

    def _single_array(self, pixels: Pixels) -> np.ndarray:
        if len(pixels) != 1:
            raise ValueError(
                f"{self.method.name} takes images as one array, and the family {self.encoder.family!r} makes "
                f"{len(pixels)} of each. Fix: an encoder whose images have one size."
            )
        return pixels[0]


def _open_image(image: Picture) -> tuple[Image, bytes]:
    """The image in RGB, and a digest of its content: of a file's bytes, as in `extract`, or of its pixels."""
    if isinstance(image, (str, Path)) and Path(image).is_file():
        content = Path(image).read_bytes()
        return decode(content, str(image)).image, content_digest(content)
    picture = to_rgb_image(image)
    content = image.tobytes() if isinstance(image, np.ndarray) else picture.tobytes()
    return picture, content_digest(content)


def _check_method(method: Method, encoder: Encoder) -> None:
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
        model = getattr(method, name)
        source = None if model is None else model.identity.get("encoder")
        if source is not None and source != encoder.key():
            raise ValueError(
                f"{name} of {method.name} was made from another encoder ({source}) than the one given "
                f"({encoder.key()}). "
                "Fix: make_method(name, encoder, class_names)."
            )


def _check_second(method: Method, second: Any, several_views: bool) -> None:
    if not isinstance(second, ImageEncoder):
        raise TypeError(
            f"second must be an encoder of images; got {second!r:.80}. "
            "Fix: encode.load_image_encoder('facebook/dinov2-base')."
        )
    if SECOND not in method.takes:
        raise ValueError(f"second cannot be given to {method.name}, which takes one encoder. Fix: leave it out.")
    if several_views:
        raise ValueError("second cannot be given together with views of the images. Fix: leave out one of them.")


def _check_same_count(arrays: Iterable[np.ndarray]) -> None:
    counts = sorted({len(array) for array in arrays})
    if len(counts) > 1:
        raise ValueError(
            f"images of one batch need the same number of views; generate made from {counts[0]} to {counts[-1]} in "
            "all. Fix: batch_size=1, or the same number for every image."
        )

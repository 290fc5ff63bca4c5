"""`load_maple`: an encoder with MaPLe's trained prompts, which PromptAlign tunes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from zeroshift.arrays import Array, is_array, to_numpy
from zeroshift.encode.encoder import Encoder, warn_cut
from zeroshift.encode.families.base import TransformersEncoder
from zeroshift.encode.prompts.class_names import clean
from zeroshift.encode.prompts.templates import SLOT, check_template, fill
from zeroshift.encode.tuning.maple_clip import MapleClip, TrainedPrompts, read_maple
from zeroshift.encode.tuning.text import CHUNK, check_class_names
from zeroshift.encode.tuning.text_sides import text_side
from zeroshift.encode.tuning.vision import CHUNK as IMAGE_CHUNK
from zeroshift.encode.tuning.vision import prompted_vision
from zeroshift.methods._shared.towers import CoupledPrompts
from zeroshift.parameters import Flag, Number

__all__ = ["TokenStatistics", "load_maple", "maple_statistics"]

TEMPLATE = "a photo of a {}."
"""MaPLe's own: its two tokens take the places of "a photo"."""

_COUNT = Number(1, integer=True)


def load_maple(
    encoder: Encoder,
    checkpoint: str | os.PathLike[str],
    class_names: Sequence[str],
    *,
    template: str = TEMPLATE,
    chunk_size: int = CHUNK,
    image_chunk_size: int = IMAGE_CHUNK,
    repeated_names: bool = False,
) -> CoupledPrompts:
    """Both sides of `encoder` with the prompts of a MaPLe checkpoint, for `PromptAlign`.

    The encoder itself stays as it is, and can go on being used.

    Parameters
    ----------
    encoder : of the family clip or metaclip, and the model the prompts were trained in: ViT-B/16 for the authors'.
    checkpoint : as the authors' code saves it, a torch file whose "state_dict" has the keys `prompt_learner.ctx`,
        `prompt_learner.proj.weight` and so on, or a .safetensors file with the same keys. Nothing in it is run.
    class_names : in the order of the classes: others than those of the training, if need be.
    template : a prompt; the tokens before the name are replaced, from the first on, by those of the checkpoint. Where
        training began with random prompts, there is an "X" for each: "X X {}.".
    chunk_size, image_chunk_size : prompts and images whose activations are held at once for a gradient; halved where
        memory does not suffice.
    repeated_names : allow a name twice, as in ImageNet's list.
    """
    import torch

    model = _checked_model(encoder)
    assert isinstance(encoder, TransformersEncoder)
    chunk_size = int(_COUNT.check("chunk_size", chunk_size))
    image_chunk_size = int(_COUNT.check("image_chunk_size", image_chunk_size))
    names = check_class_names(class_names, repeated=bool(Flag().check("repeated_names", repeated_names)))
    wording = check_template(template)
    trained = read_maple(checkpoint)
    _check_fit(model, trained, checkpoint)
    side = text_side(encoder, wording)
    words, room = trained.prompts.shape[1], len(side.ids(wording.split(SLOT)[0].rstrip()))
    if room < words:
        raise ValueError(
            f"template must have at least {words} tokens before {SLOT}, in whose places the checkpoint's stand; "
            f"{wording!r} has {room}. Fix: {' '.join('X' * words)!r} before {SLOT}, if training began at random."
        )
    prompts = [fill(wording, clean(name)) for name in names]
    if long := encoder.count_too_long(prompts):
        warn_cut(long, len(prompts), encoder.text_length)
    with torch.inference_mode(False):
        tokens = side.tokens(prompts)
        return MapleClip(encoder, tokens, trained, chunk_size=chunk_size, image_chunk_size=image_chunk_size)


def _checked_model(encoder: Encoder) -> Any:
    prompted_vision(encoder)  # refuses what is no encoder, or has another image side than CLIP's
    model: Any = encoder.model  # type: ignore[attr-defined]
    text = model.text_model
    if not hasattr(text, "final_layer_norm") or not hasattr(text.embeddings, "token_embedding"):
        raise TypeError(
            f"encoder must have CLIP's own text transformer, in whose layers MaPLe's prompts stand; got {encoder!r} of "
            f"the family {encoder.family!r}. Fix: one of the families clip, metaclip."
        )
    return model


def _check_fit(model: Any, trained: TrainedPrompts, checkpoint: str | os.PathLike[str]) -> None:
    depth, _, text_width = trained.prompts.shape
    text, vision = model.text_model, model.vision_model
    widths = (int(text.final_layer_norm.weight.shape[0]), int(vision.post_layernorm.weight.shape[0]))
    if (text_width, trained.weights.shape[1]) != widths:
        raise ValueError(
            f"{checkpoint} holds prompts of width {text_width} for texts and {trained.weights.shape[1]} for images, "
            f"the encoder's are {widths[0]} and {widths[1]}. Fix: the encoder they were trained in."
        )
    layers = min(len(text.encoder.layers), len(vision.encoder.layers))
    if depth > layers:
        raise ValueError(
            f"{checkpoint} holds prompts for {depth} layers, the encoder has {layers}. "
            "Fix: the encoder they were trained in."
        )


# `maple_statistics`: what tokens are like before the shift, from images as they go by.


LAYERS = 3
"""As many as PromptAlign's paper aligns."""

BATCH = 32


class TokenStatistics(NamedTuple):
    """PromptAlign's `source`: of each token and channel, in the first L layers of the image side."""

    means: np.ndarray
    """(L, T, width)."""
    variances: np.ndarray
    """(L, T, width), divided by the number of images."""


def maple_statistics(
    maple: CoupledPrompts, images: Array | Iterable[Array], *, layers: int = LAYERS, batch_size: int = BATCH
) -> TokenStatistics:
    """Means and variances of tokens under the trained prompts, over images of before the shift; no labels are needed.

    Parameters
    ----------
    maple : as `load_maple` makes it. Its classes do not matter.
    images : (N, 3, H, W) as the encoder's preprocessing makes them, or batches of such, one after the other: the
        authors take ImageNet's whole training set.
    layers : L, how many layers from the first on.
    batch_size : images looked at together.
    """
    if not isinstance(maple, CoupledPrompts):
        raise TypeError(f"maple must be CoupledPrompts; got {type(maple).__name__}. Fix: zeroshift.encode.load_maple.")
    layers = int(Number(1, maple.n_layers, integer=True).check("layers", layers))
    batch_size = int(Number(1, integer=True).check("batch_size", batch_size))
    count, shape = 0, (layers, *maple.token_shape)
    means, squares = np.zeros(shape), np.zeros(shape)
    for number, batch in enumerate([images] if is_array(images) else images):
        maple.check("images" if is_array(images) else f"images, batch {number}: it", batch)
        for start in range(0, batch.shape[0], batch_size):
            tokens = maple.encode_images(batch[start : start + batch_size], maple.parameters, layers).tokens
            wide = to_numpy(tokens).astype(np.float64)
            # Merged as means and sums of squares around them: differences of large sums would lose what is small.
            more, own = len(wide), wide.mean(axis=0)
            apart = own - means
            squares += ((wide - own) ** 2).sum(axis=0) + apart**2 * (count * more / (count + more))
            means += apart * (more / (count + more))
            count += more
    if count < 2:
        raise ValueError(f"images must be at least two, or nothing varies; got {count}. Fix: hundreds, of all classes.")
    return TokenStatistics(means, squares / count)

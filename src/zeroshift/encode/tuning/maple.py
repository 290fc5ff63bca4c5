"""`load_maple`: an encoder with MaPLe's trained prompts, which PromptAlign tunes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from zeroshift.encode.encoder import Encoder, warn_cut
from zeroshift.encode.families.base import TransformersEncoder
from zeroshift.encode.prompts.class_names import clean
from zeroshift.encode.prompts.templates import SLOT, check_template, fill
from zeroshift.encode.tuning.maple_clip import MapleClip
from zeroshift.encode.tuning.maple_file import TrainedPrompts, read_maple
from zeroshift.encode.tuning.prompted import check_class_names
from zeroshift.encode.tuning.text import CHUNK
from zeroshift.encode.tuning.text_sides import text_side
from zeroshift.encode.tuning.vision import CHUNK as IMAGE_CHUNK
from zeroshift.encode.tuning.vision import prompted_vision
from zeroshift.methods.parts.maple_towers import CoupledPrompts
from zeroshift.parameters import Flag, Number

__all__ = ["load_maple"]

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

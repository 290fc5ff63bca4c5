"""TCA on images: a CLIP vision transformer whose tokens are condensed on the way, guided by what was learned."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from zeroshift.arrays import Array, normalize, to_numpy
from zeroshift.encode.encoder import Encoder
from zeroshift.encode.families.transformers_models import CLIPEncoder
from zeroshift.encode.preprocessing import as_picture
from zeroshift.methods import TCA
from zeroshift.parameters import Number

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

__all__ = ["CondensedVision", "Seen", "Shares", "adapt_images", "centres", "condense", "merge", "shares"]


# Fewer tokens for a picture: those attended to stay, the next are merged around centres, the rest become one.


CENTRES = 4
"""Tokens that stand for the merged ones."""


class Shares(NamedTuple):
    """How many patches stay, are merged and are fused; together all of them."""

    kept: int
    merged: int
    fused: int


def shares(tokens: int, drop: float) -> Shares:
    """For `tokens` tokens, the class token among them, of which about the share `drop` shall go.

    >>> shares(197, 0.1)
    Shares(kept=137, merged=40, fused=19)
    """
    patches = tokens - 1
    # In whole numbers of a millionth: 0.9 * 110 is a rounding error above 99, and its ceiling 100.
    left = math.ceil(round((1 - drop) * patches, 6))
    gone = tokens - left
    merged = min(2 * gone, patches)
    kept = max(left - 2 * gone, 0)
    return Shares(kept, min(merged, patches - kept), max(patches - kept - merged, 0))


def condense(tokens: torch.Tensor, attention: torch.Tensor, drop: float) -> torch.Tensor:
    """(n', w) from (n, w): the class token first, then the patches it attends to most, merged ones, a fused one.

    `attention`: of the class token to each patch, (n - 1,), the mean over heads.
    """
    import torch

    kept, merged, fused = shares(len(tokens), drop)
    patches = tokens[1:]
    order = torch.argsort(attention, descending=True, stable=True)
    parts = [tokens[:1], patches[order[:kept]]]
    if merged:
        parts.append(merge(patches[order[kept : kept + merged]]))
    if fused:
        rest = order[kept + merged :]
        parts.append((attention[rest, None] * patches[rest]).sum(dim=0, keepdim=True))
    return torch.cat(parts)


def merge(tokens: torch.Tensor) -> torch.Tensor:
    """A token for each centre: the mean of those nearest to it, weighed by one over their distance."""
    import torch

    chosen = tokens[centres(tokens, CENTRES)]
    distances = torch.cdist(tokens, chosen)
    nearest, owner = distances.min(dim=1)
    weights = torch.where(nearest > 0, 1 / nearest.clamp_min(torch.finfo(tokens.dtype).tiny), 1.0)
    owned = torch.nn.functional.one_hot(owner, len(chosen)).to(tokens.dtype) * weights[:, None]
    return (owned.T @ tokens) / owned.sum(dim=0)[:, None]


def centres(tokens: torch.Tensor, count: int) -> list[int]:
    """Rows far from each other: the first, then the one furthest from those chosen; fewer where tokens are equal."""
    import torch

    chosen = [0]
    distance = torch.linalg.vector_norm(tokens - tokens[0], dim=1)
    while len(chosen) < min(count, len(tokens)) and float(distance.max()) > 0:
        chosen.append(int(distance.argmax()))
        distance = torch.minimum(distance, torch.linalg.vector_norm(tokens - tokens[chosen[-1]], dim=1))
    return chosen


# CLIP's vision transformer walked through layer by layer, so that tokens can be looked at, added and condensed.


LAYERS = (3, 6, 9)
"""Where tokens are condensed, counted from 0, as in the authors' code for ViT-B/16 of twelve layers."""

DROP = 0.1
"""The share of tokens each of them is rid of."""


class Seen(NamedTuple):
    """One picture: its feature (d,), not yet of unit length, and the class token after every layer (L, w)."""

    feature: torch.Tensor
    tokens: torch.Tensor


class CondensedVision:
    """The image side of a CLIP encoder with token condensation.

    Parameters
    ----------
    encoder : a CLIP encoder of `zeroshift.encode.load_encoder` with a vision transformer.
    layers : where tokens are condensed; layers the model does not have are an error.
    drop : the share of tokens to go in each of them; 0 leaves the model as it is.

    Notes
    -----
    The authors start the greedy choice of merging centres at a random token; here it starts at the one most attended
    to, so that a picture always gives the same feature. Their code ranks tokens head by head, does not use the ranks,
    and takes the mean attention over heads, as this does.
    """

    def __init__(self, encoder: Encoder, *, layers: Sequence[int] = LAYERS, drop: float = DROP) -> None:
        if not isinstance(encoder, CLIPEncoder):
            raise TypeError(
                f"encoder must be of the clip family, whose layers are known here; got {type(encoder).__name__}. "
                "Fix: zeroshift.encode.load_encoder('openai/clip-vit-base-patch16')."
            )
        self.encoder = encoder
        self.drop = float(Number(0, 0.5).check("drop", drop))
        self._model: Any = encoder.model
        depth = len(self._model.vision_model.encoder.layers)
        self.layers = tuple(int(Number(1, depth - 1, integer=True).check("layers", layer)) for layer in layers)

    def see(self, pixels: torch.Tensor, anchors: torch.Tensor | None = None) -> Seen:
        """One picture's pixels (3, H, W) on the encoder's device; `anchors` (K, L, w) guide the condensation."""
        import torch

        vision = self._model.vision_model
        tokens = vision.pre_layrnorm(vision.embeddings(pixels[None]))[0]
        seen = []
        for number, layer in enumerate(vision.encoder.layers):
            condensing = number in self.layers and self.drop > 0
            anchor = self._anchor(tokens[0], anchors, number) if condensing and anchors is not None else None
            tokens, attention = _attended(layer, tokens, anchor)
            if condensing:
                tokens = condense(tokens, attention, self.drop)
            tokens = tokens + layer.mlp(layer.layer_norm2(tokens))
            seen.append(tokens[0])
        feature = self._model.visual_projection(vision.post_layernorm(tokens[0]))
        return Seen(feature, torch.stack(seen))

    def _anchor(self, token: torch.Tensor, anchors: torch.Tensor, number: int) -> torch.Tensor:
        """Of the anchors' tokens as they enter this layer, the one most like the picture's own."""
        import torch

        entering = anchors[:, number - 1].to(device=token.device, dtype=token.dtype)
        return entering[torch.nn.functional.cosine_similarity(entering, token[None]).argmax()]


def _attended(layer: Any, tokens: torch.Tensor, anchor: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens (n, w) after the layer's attention, and the class token's attention to each patch (n - 1,).

    An anchor takes part in the attention as one more token, and leaves again: what was attended to it is lost.
    """
    import torch

    given = tokens if anchor is None else torch.cat([anchor[None], tokens])
    own = layer.self_attn
    heads, width = own.num_heads, own.head_dim
    inputs = layer.layer_norm1(given)
    queries, keys, values = (
        projection(inputs).view(len(given), heads, width).transpose(0, 1)
        for projection in (own.q_proj, own.k_proj, own.v_proj)
    )
    weights = torch.softmax(queries @ keys.transpose(1, 2) * own.scale, dim=-1)
    mixed = own.out_proj((weights @ values).transpose(0, 1).reshape(len(given), heads * width))
    first = len(given) - len(tokens)
    return tokens + mixed[first:], weights[:, first, first + 1 :].mean(dim=0)


# TCA from pictures: each one is condensed with what the ones before it taught, then learned from and answered.


def adapt_images(
    method: TCA, vision: CondensedVision | Encoder, images: Iterable[Image | np.ndarray | str | Path]
) -> Iterator[Array]:
    """The probabilities (K,) of one picture after the other, as they are made: no picture waits for the next.

    `vision` is a `CondensedVision`, or a CLIP encoder with its defaults. Prototypes of `method` must come from the same
    encoder.
    """
    import torch

    if not isinstance(method, TCA):
        raise TypeError(f"method must be a TCA; got {type(method).__name__}. Fix: zeroshift.methods.TCA(prototypes).")
    if isinstance(images, (str, Path)) or not isinstance(images, Iterable):
        raise TypeError(f"images must be several, in a list; got one {type(images).__name__}. Fix: [image].")
    walk = vision if isinstance(vision, CondensedVision) else CondensedVision(vision)
    encoder = walk.encoder
    if method.dimension != encoder.dimension:
        raise ValueError(
            f"method has prototypes of d = {method.dimension}, the encoder gives d = {encoder.dimension}. "
            "Fix: make the prototypes with the same encoder."
        )

    def answers() -> Iterator[Array]:
        for image in images:
            pixels = tuple(array[None] for array in encoder.preprocessing(as_picture(image)))
            with torch.inference_mode():
                anchors = None if method.anchors is None else torch.as_tensor(to_numpy(method.anchors))
                seen = walk.see(encoder._to_device(pixels[0], first=True)[0], anchors)
                feature = normalize(seen.feature.float().cpu().numpy()[None])
                tokens = seen.tokens.float().cpu().numpy()[None]
            yield method.adapt_tokens(feature, tokens)[0]

    return answers()

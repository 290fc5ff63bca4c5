"""TCA on images: a CLIP vision transformer that condenses its tokens, guided by the method's anchors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from zeroshift.arrays import Array, normalize, to_numpy
from zeroshift.encode.encoder import Encoder
from zeroshift.encode.families.transformers_models import CLIPEncoder
from zeroshift.encode.preprocessing import to_rgb_image
from zeroshift.methods import TCA
from zeroshift.parameters import Number

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

__all__ = [
    "CondensedOutput",
    "CondensedVision",
    "TokenCounts",
    "adapt_with_condensation",
    "choose_centres",
    "condense",
    "merge_tokens",
    "token_counts",
]


CENTRES = 4
"""Number of tokens that the merged tokens are reduced to."""


class TokenCounts(NamedTuple):
    """Numbers of patches that are kept, merged and fused."""

    kept: int
    merged: int
    fused: int


def token_counts(tokens: int, drop: float) -> TokenCounts:
    """The counts for `tokens` tokens, including the class token, of which about the fraction `drop` is removed.

    >>> token_counts(197, 0.1)
    TokenCounts(kept=137, merged=40, fused=19)
    """
    patches = tokens - 1
    # Rounded first: 0.9 * 110 is slightly above 99 in floating point, and its ceiling would be 100.
    remaining = math.ceil(round((1 - drop) * patches, 6))
    removed = tokens - remaining
    merged = min(2 * removed, patches)
    kept = max(remaining - 2 * removed, 0)
    return TokenCounts(kept, min(merged, patches - kept), max(patches - kept - merged, 0))


def condense(tokens: torch.Tensor, attention: torch.Tensor, drop: float) -> torch.Tensor:
    """(n', w) from (n, w): the class token, the patches it attends to most, the merged tokens, and a fused one.

    `attention` (n - 1,) is that of the class token to each patch, averaged over heads.
    """
    import torch

    kept, merged, fused = token_counts(len(tokens), drop)
    patches = tokens[1:]
    order = torch.argsort(attention, descending=True, stable=True)
    parts = [tokens[:1], patches[order[:kept]]]
    if merged:
        parts.append(merge_tokens(patches[order[kept : kept + merged]]))
    if fused:
        rest = order[kept + merged :]
        parts.append((attention[rest, None] * patches[rest]).sum(dim=0, keepdim=True))
    return torch.cat(parts)


def merge_tokens(tokens: torch.Tensor) -> torch.Tensor:
    """One token per centre: the mean of the tokens nearest to it, weighted by the inverse distance."""
    import torch

    chosen = tokens[choose_centres(tokens, CENTRES)]
    distances = torch.cdist(tokens, chosen)
    nearest, owner = distances.min(dim=1)
    weights = torch.where(nearest > 0, 1 / nearest.clamp_min(torch.finfo(tokens.dtype).tiny), 1.0)
    owned = torch.nn.functional.one_hot(owner, len(chosen)).to(tokens.dtype) * weights[:, None]
    return (owned.T @ tokens) / owned.sum(dim=0)[:, None]


def choose_centres(tokens: torch.Tensor, count: int) -> list[int]:
    """Indices of rows far from each other: the first, then the furthest from those chosen; fewer if rows are equal."""
    import torch

    chosen = [0]
    distance = torch.linalg.vector_norm(tokens - tokens[0], dim=1)
    while len(chosen) < min(count, len(tokens)) and float(distance.max()) > 0:
        chosen.append(int(distance.argmax()))
        distance = torch.minimum(distance, torch.linalg.vector_norm(tokens - tokens[chosen[-1]], dim=1))
    return chosen


LAYERS = (3, 6, 9)
"""Layers that condense tokens, counted from 0, as in the authors' code for ViT-B/16 with twelve layers."""

DROP = 0.1
"""The fraction of tokens that each of these layers removes."""


class CondensedOutput(NamedTuple):
    """For one image: its feature (d,), not normalised, and the class token after each layer (L, w)."""

    feature: torch.Tensor
    tokens: torch.Tensor


class CondensedVision:
    """The image encoder of CLIP with token condensation.

    Parameters
    ----------
    encoder : a CLIP encoder of `zeroshift.encode.load_encoder` with a vision transformer.
    layers : the layers that condense tokens.
    drop : the fraction of tokens each of them removes; 0 leaves the model unchanged.

    Notes
    -----
    The authors start the greedy choice of centres at a random token. Here it starts at the most attended token, so that
    an image always gives the same feature. Their code ranks tokens per head, but does not use the ranks: like this one,
    it uses the mean attention over heads.
    """

    def __init__(self, encoder: Encoder, *, layers: Sequence[int] = LAYERS, drop: float = DROP) -> None:
        if not isinstance(encoder, CLIPEncoder):
            raise TypeError(
                f"encoder must be of the family clip; got {type(encoder).__name__}. "
                "Fix: zeroshift.encode.load_encoder('openai/clip-vit-base-patch16')."
            )
        self.encoder = encoder
        self.drop = float(Number(0, 0.5).check("drop", drop))
        self._model: Any = encoder.model
        depth = len(self._model.vision_model.encoder.layers)
        self.layers = tuple(int(Number(1, depth - 1, integer=True).check("layers", layer)) for layer in layers)

    def encode(self, pixels: torch.Tensor, anchors: torch.Tensor | None = None) -> CondensedOutput:
        """Encode pixels (3, H, W) on the encoder's device; `anchors` (K, L, w) guide the condensation."""
        import torch

        vision = self._model.vision_model
        tokens = vision.pre_layrnorm(vision.embeddings(pixels[None]))[0]
        class_tokens = []
        for number, layer in enumerate(vision.encoder.layers):
            condensing = number in self.layers and self.drop > 0
            anchor = self._anchor(tokens[0], anchors, number) if condensing and anchors is not None else None
            tokens, attention = _attend(layer, tokens, anchor)
            if condensing:
                tokens = condense(tokens, attention, self.drop)
            tokens = tokens + layer.mlp(layer.layer_norm2(tokens))
            class_tokens.append(tokens[0])
        feature = self._model.visual_projection(vision.post_layernorm(tokens[0]))
        return CondensedOutput(feature, torch.stack(class_tokens))

    def _anchor(self, token: torch.Tensor, anchors: torch.Tensor, number: int) -> torch.Tensor:
        """The anchors' token at the input of this layer that is most similar to the image's."""
        import torch

        candidates = anchors[:, number - 1].to(device=token.device, dtype=token.dtype)
        return candidates[torch.nn.functional.cosine_similarity(candidates, token[None]).argmax()]


def _attend(layer: Any, tokens: torch.Tensor, anchor: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens (n, w) after the layer's attention, and the class token's attention to each patch (n - 1,).

    An anchor takes part in the attention as an additional token, and is removed afterwards.
    """
    import torch

    inputs = tokens if anchor is None else torch.cat([anchor[None], tokens])
    attention = layer.self_attn
    heads, width = attention.num_heads, attention.head_dim
    normalised = layer.layer_norm1(inputs)
    queries, keys, values = (
        projection(normalised).view(len(inputs), heads, width).transpose(0, 1)
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    weights = torch.softmax(queries @ keys.transpose(1, 2) * attention.scale, dim=-1)
    mixed = attention.out_proj((weights @ values).transpose(0, 1).reshape(len(inputs), heads * width))
    first = len(inputs) - len(tokens)
    return tokens + mixed[first:], weights[:, first, first + 1 :].mean(dim=0)


def adapt_with_condensation(
    method: TCA, vision: CondensedVision | Encoder, images: Iterable[Image | np.ndarray | str | Path]
) -> Iterator[Array]:
    """Run TCA on images: yields the probabilities (K,) of one image after the other.

    Each image is condensed with the anchors learned from the previous ones. `vision` is a `CondensedVision`, or a CLIP
    encoder, which is used with its defaults. The prototypes of `method` must come from the same encoder.
    """
    import torch

    if not isinstance(method, TCA):
        raise TypeError(f"method must be a TCA; got {type(method).__name__}. Fix: zeroshift.methods.TCA(prototypes).")
    if isinstance(images, (str, Path)) or not isinstance(images, Iterable):
        raise TypeError(f"images must be a list; got {type(images).__name__}. Fix: [image].")
    condensed = vision if isinstance(vision, CondensedVision) else CondensedVision(vision)
    encoder = condensed.encoder
    if method.dimension != encoder.dimension:
        raise ValueError(
            f"method has prototypes of d = {method.dimension}, the encoder has d = {encoder.dimension}. "
            "Fix: make the prototypes with the same encoder."
        )

    def predictions() -> Iterator[Array]:
        for image in images:
            pixels = tuple(array[None] for array in encoder.preprocessing(to_rgb_image(image)))
            with torch.inference_mode():
                anchors = None if method.anchors is None else torch.as_tensor(to_numpy(method.anchors))
                output = condensed.encode(encoder._to_device(pixels[0], first=True)[0], anchors)
                feature = normalize(output.feature.float().cpu().numpy()[None])
                tokens = output.tokens.float().cpu().numpy()[None]
            yield method.adapt_tokens(feature, tokens)[0]

    return predictions()

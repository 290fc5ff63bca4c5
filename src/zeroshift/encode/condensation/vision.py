"""CLIP's vision transformer walked through layer by layer, so that tokens can be looked at, added and condensed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from zeroshift.encode.condensation.tokens import condense
from zeroshift.encode.encoder import Encoder
from zeroshift.encode.families.clip import CLIPEncoder
from zeroshift.parameters import Number

if TYPE_CHECKING:
    import torch

__all__ = ["CondensedVision", "Seen"]

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

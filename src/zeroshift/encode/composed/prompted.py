"""The composed encoder's text side with words that can be tuned: MiniLM, the mean of its tokens, then the bridge."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from zeroshift.encode.composed.bridge import SHARPNESS
from zeroshift.encode.composed.encoder import ComposedEncoder

if TYPE_CHECKING:
    import torch

__all__ = ["differentiable_text"]


def differentiable_text(
    encoder: ComposedEncoder, templates: Sequence[str]
) -> Callable[[Mapping[str, torch.Tensor]], torch.Tensor]:
    """Tokens to (n, 256) of any length: what `finish_prototypes` makes of single sentences, with gradients.

    `templates` are the wording whose centre is taken off; the words that are tuned move away from it, it stays.
    """
    import torch

    model, bridge = encoder.text.model, encoder.bridge
    # The bridge in float64, as it was fitted: it works on differences between sentences that are much alike.
    centre, anchors, weights = (
        torch.tensor(array, device=encoder.device, dtype=torch.float64)
        for array in (encoder._centre(tuple(templates)), bridge.anchors, bridge.weights)
    )

    def encode(tokens: Mapping[str, torch.Tensor]) -> torch.Tensor:
        states = model(**tokens).last_hidden_state
        real = tokens["attention_mask"].unsqueeze(-1).to(states.dtype)
        sentences = ((states * real).sum(dim=1) / real.sum(dim=1)).double()
        centred = torch.nn.functional.normalize(sentences, dim=-1) - centre
        cosines = torch.nn.functional.normalize(centred, dim=-1) @ anchors.T
        return torch.exp(SHARPNESS * (cosines - 1)) @ weights

    return encode

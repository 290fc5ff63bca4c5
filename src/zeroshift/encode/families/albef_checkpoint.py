"""The contrastive part of an ALBEF checkpoint, which also contains momentum copies, queues and other heads.

It consists of the image encoder, the layers of the text encoder before images are mixed in, the two projections and the
temperature. Their sizes are read from the tensors, because the file has no configuration.
"""

from __future__ import annotations

import math
import pickle
import re
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from zeroshift.files import FileFormatError

__all__ = [
    "DOWNLOAD_URL",
    "HEAD_WIDTH",
    "Checkpoint",
    "VisionSizes",
    "VisionTransformer",
    "find_checkpoint",
    "read_state",
]


SUFFIXES = (".pth", ".pt")

DOWNLOAD_URL = "https://storage.googleapis.com/sfr-pcl-data-research/ALBEF/ALBEF.pth"
"""The authors' model pre-trained on 14 million images; ALBEF_4M, flickr30k and mscoco are in the same folder."""


def find_checkpoint(source: str) -> Path:
    """The checkpoint file `source`, or the only one in the folder `source`."""
    path = Path(source)
    if path.is_file():
        return path
    if not path.is_dir():
        raise FileNotFoundError(
            f"no ALBEF checkpoint at {source}. Fix: download one, such as {DOWNLOAD_URL}, and pass its path."
        )
    found = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
    if len(found) != 1:
        names = ", ".join(file.name for file in found) or "none"
        raise FileNotFoundError(
            f"{source} must contain one checkpoint ({' or '.join(SUFFIXES)}); it contains {names}. Fix: pass the file."
        )
    return found[0]


def read_state(path: Path) -> dict[str, torch.Tensor]:
    """The state dictionary, read without executing code in the file."""
    import torch

    try:
        # Memory-mapped if the format allows it, so that momentum copies and optimizer states are not loaded.
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        raise FileFormatError(
            f"{path} is not a torch checkpoint, or contains more than tensors and numbers. Fix: copy it again if it "
            "may be damaged; if you trust its source, save only the weights: "
            "torch.save({'model': torch.load(path, weights_only=False)['model']}, new_path)."
        ) from error
    except (OSError, MemoryError):
        raise
    except Exception as error:
        # For damaged files torch raises KeyError, IndexError, AssertionError, ...
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise FileFormatError(f"{path} cannot be read as a torch checkpoint ({reason}). Fix: copy it again.") from error
    tensors = content.get("model") if isinstance(content, dict) else None
    if not isinstance(tensors, dict):
        content_summary = (
            f"keys {', '.join(map(str, list(content)[:5]))}" if isinstance(content, dict) else type(content).__name__
        )
        raise FileFormatError(
            f"{path} must contain a dictionary with the key 'model'; it contains {content_summary}. Fix: pass a "
            "checkpoint as ALBEF wrote it, or save the state dictionary as {'model': state}."
        )
    return {str(name): value for name, value in tensors.items() if isinstance(value, torch.Tensor)}


HEAD_WIDTH = 64
"""Width of an attention head in ALBEF (768 over 12 heads); it cannot be read from the tensors."""

LAYER_NORM_EPS = 1e-6
"""The epsilon of ALBEF's image encoder; torch's default is 1e-5."""


@dataclass(frozen=True)
class VisionSizes:
    """Sizes of the image encoder."""

    width: int
    depth: int
    hidden: int
    """Hidden width of each MLP."""
    patch: int
    """Side of a patch, in pixels."""
    grid: int
    """Patches per side of the image."""

    @property
    def side(self) -> int:
        """Side of the image, in pixels."""
        return self.patch * self.grid


class VisionBlock(nn.Module):
    """Attention and an MLP, each with a layer norm before it and a residual connection."""

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
        # One product gives queries, keys and values, in this order, each head by head.
        stacked = self.attn["qkv"](rows).unflatten(-1, (3, self.heads, HEAD_WIDTH))
        query, key, value = (part.transpose(1, 2) for part in stacked.unbind(2))
        mixed = functional.scaled_dot_product_attention(query, key, value)
        projected: torch.Tensor = self.attn["proj"](mixed.transpose(1, 2).flatten(2))
        return projected


class VisionTransformer(nn.Module):
    """A vision transformer (Dosovitskiy et al., ICLR 2021): pixels (B, 3, side, side) to class tokens (B, width).

    Parameters have the names of ALBEF's checkpoints (those of the timm library).

    >>> model = VisionTransformer(VisionSizes(width=64, depth=1, hidden=128, patch=16, grid=2))
    >>> model(torch.zeros(5, 3, 32, 32)).shape
    torch.Size([5, 64])
    """

    def __init__(self, sizes: VisionSizes) -> None:
        super().__init__()
        width, patch = sizes.width, sizes.patch
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + sizes.grid**2, width))
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, width, kernel_size=patch, stride=patch)})
        self.blocks = nn.ModuleList(VisionBlock(sizes) for _ in range(sizes.depth))
        self.norm = nn.LayerNorm(width, eps=LAYER_NORM_EPS)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        patches = self.patch_embed["proj"](pixels).flatten(2).transpose(1, 2)
        first = self.cls_token.expand(len(patches), -1, -1)
        rows = torch.cat([first, patches], dim=1) + self.pos_embed
        for block in self.blocks:
            rows = block(rows)
        # Only the class token is used, and rows are normalised independently.
        token: torch.Tensor = self.norm(rows[:, 0])
        return token


TEXT_LAYER_NORM_EPS = 1e-12
"""The epsilon of BERT."""

KNOWN_PREFIXES = ("visual_encoder", "text_encoder", "vision_proj", "text_proj")
KNOWN_NAMES = {
    *KNOWN_PREFIXES,
    *(f"{prefix}_m" for prefix in KNOWN_PREFIXES),
    *("temp", "itm_head", "image_queue", "text_queue", "idx_queue", "queue_ptr"),
}
"""Prefixes of the names in an ALBEF checkpoint; `_m` are the momentum copies."""


class Checkpoint:
    """A checkpoint, and the parts of the model in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tensors = read_state(path)
        # Pre-training wraps BERT in a language model; fine-tuning for retrieval does not.
        wrapped = any(name.startswith("text_encoder.bert.") for name in self.tensors)
        self.text_prefix = "text_encoder.bert." if wrapped else "text_encoder."

    @cached_property
    def vision_sizes(self) -> VisionSizes:
        width, _, patch, _ = self._shape("visual_encoder.patch_embed.proj.weight", 4)
        positions = self._shape("visual_encoder.pos_embed", 3)[1] - 1
        grid = math.isqrt(max(positions, 0))
        if grid**2 != positions or grid == 0:
            raise FileFormatError(
                f"{self.path}: visual_encoder.pos_embed has {positions} positions besides the class token; a square "
                "number is needed. Fix: use a checkpoint for square images."
            )
        self._heads(width, "visual_encoder")
        return VisionSizes(
            width=width,
            depth=len(self._layers(r"visual_encoder\.blocks\.(\d+)\.")),
            hidden=self._shape("visual_encoder.blocks.0.mlp.fc1.weight", 2)[0],
            patch=patch,
            grid=grid,
        )

    def vision_model(self) -> VisionTransformer:
        return self._load_weights(VisionTransformer(self.vision_sizes), "visual_encoder.")

    def text_model(self) -> Any:
        """A BERT of the layers that see only text: those before the first with cross-attention."""
        from transformers import BertConfig, BertModel

        prefix = self.text_prefix
        fusion_layers = self._layers(re.escape(prefix) + r"encoder\.layer\.(\d+)\.crossattention\.")
        if not fusion_layers or min(fusion_layers) == 0:
            raise FileFormatError(
                f"{self.path} has {'only' if fusion_layers else 'no'} layers with cross-attention under {prefix}, so "
                f"the text encoder cannot be found. Fix: pass a checkpoint as ALBEF wrote it, such as {DOWNLOAD_URL}."
            )
        n_words, width = self._shape(f"{prefix}embeddings.word_embeddings.weight", 2)
        config = BertConfig(
            vocab_size=n_words,
            hidden_size=width,
            num_hidden_layers=min(fusion_layers),
            num_attention_heads=self._heads(width, prefix.rstrip(".")),
            intermediate_size=self._shape(f"{prefix}encoder.layer.0.intermediate.dense.weight", 2)[0],
            max_position_embeddings=self._shape(f"{prefix}embeddings.position_embeddings.weight", 2)[0],
            type_vocab_size=self._shape(f"{prefix}embeddings.token_type_embeddings.weight", 2)[0],
            layer_norm_eps=TEXT_LAYER_NORM_EPS,
            hidden_act="gelu",
        )
        return self._load_weights(BertModel(config, add_pooling_layer=False), prefix)

    def projection(self, name: str, width: int, dimension: int) -> nn.Linear:
        """The projection of an encoder, "vision_proj" or "text_proj"."""
        from torch import nn

        return self._load_weights(nn.Linear(width, dimension), f"{name}.")

    @property
    def dimension(self) -> int:
        """d, the output size of both projections."""
        return self._shape("vision_proj.weight", 2)[0]

    @property
    def temperature(self) -> float:
        """The temperature that cosines are divided by."""
        self._shape("temp", 0)
        value = float(self._tensor("temp"))
        if not 0 < value < math.inf:
            raise FileFormatError(f"{self.path}: temp is {value:g}; it must be positive. Fix: copy the file again.")
        return value

    def _load_weights(self, module: Any, prefix: str) -> Any:
        """Load all tensors of `module` from the checkpoint; raise if one is missing or has another shape."""
        wanted = module.state_dict()
        missing = [prefix + name for name in wanted if prefix + name not in self.tensors]
        if missing:
            raise self._missing_error(missing)
        for name, tensor in wanted.items():
            given, needed = tuple(self.tensors[prefix + name].shape), tuple(tensor.shape)
            if given != needed:
                raise FileFormatError(
                    f"{self.path}: {prefix}{name} has shape {given}; {needed} is needed. Fix: copy the file again."
                )
        module.load_state_dict({name: self.tensors[prefix + name] for name in wanted})
        return module.eval()

    def _tensor(self, name: str) -> torch.Tensor:
        if name not in self.tensors:
            raise self._missing_error([name])
        return self.tensors[name]

    def _shape(self, name: str, n_axes: int) -> tuple[int, ...]:
        shape = tuple(self._tensor(name).shape)
        if len(shape) != n_axes:
            raise FileFormatError(
                f"{self.path}: {name} has shape {shape}; it must have {n_axes} axes. Fix: copy the file again."
            )
        return shape

    def _heads(self, width: int, where: str) -> int:
        """The number of attention heads of an encoder of this width."""
        if width % HEAD_WIDTH:
            raise FileFormatError(
                f"{self.path}: {where} is {width} wide; ALBEF's heads are {HEAD_WIDTH} wide, so a multiple is needed. "
                "Fix: use a checkpoint of ALBEF."
            )
        return width // HEAD_WIDTH

    def _layers(self, pattern: str) -> set[int]:
        """Numbers of the layers whose names match `pattern`."""
        return {int(match.group(1)) for name in self.tensors if (match := re.match(pattern, name))}

    def _missing_error(self, missing: list[str]) -> FileFormatError:
        others = sorted({name.split(".")[0] for name in self.tensors} - KNOWN_NAMES)
        unknown = f" It contains parts that ALBEF does not have: {', '.join(others[:5])}." if others else ""
        more = f" and {len(missing) - 1} more tensors" if missing[1:] else ""
        return FileFormatError(
            f"{self.path} lacks {missing[0]!r}{more}, so it is not a complete ALBEF checkpoint.{unknown} "
            f"Fix: pass one for pre-training or retrieval, such as {DOWNLOAD_URL}."
        )

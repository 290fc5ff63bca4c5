"""The contrastive part of an ALBEF checkpoint, which holds momentum copies, queues and other heads besides.

These are the image tower, the layers of the text tower before images are mixed in, the two projections and the
temperature. Their sizes are read off the tensors: the file need not hold a configuration.
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
    "HEAD_WIDTH",
    "WHERE_FROM",
    "Checkpoint",
    "VisionSizes",
    "VisionTransformer",
    "find_checkpoint",
    "read_state",
]


# Where an ALBEF checkpoint lies, and what is in the file.


SUFFIXES = (".pth", ".pt")

WHERE_FROM = "https://storage.googleapis.com/sfr-pcl-data-research/ALBEF/ALBEF.pth"
"""Where the authors keep the model pre-trained on 14 million images; ALBEF_4M, flickr30k and mscoco lie beside it."""


def find_checkpoint(source: str) -> Path:
    """The checkpoint that `source` means: the file itself, or the only one in a folder."""
    given = Path(source)
    if given.is_file():
        return given
    if not given.is_dir():
        raise FileNotFoundError(
            f"no ALBEF checkpoint at {source}. Fix: download one, such as {WHERE_FROM}, and give its path."
        )
    found = sorted(path for path in given.iterdir() if path.suffix in SUFFIXES)
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise FileNotFoundError(
            f"{source} must hold one checkpoint ({' or '.join(SUFFIXES)}); it holds {names}. Fix: name the file itself."
        )
    return found[0]


def read_state(path: Path) -> dict[str, torch.Tensor]:
    """The state dictionary, without running code that a file may bring along."""
    import torch

    try:
        # Mapped where the format allows it: momentum copies and an optimizer's state then stay on the disk.
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        raise FileFormatError(
            f"{path} is not a torch checkpoint, or holds more than tensors and numbers. Fix: copy it again if it may "
            "be damaged; if you trust where it is from, save the weights alone: "
            "torch.save({'model': torch.load(path, weights_only=False)['model']}, new_path)."
        ) from error
    except (OSError, MemoryError):
        raise
    except Exception as error:
        # Over damaged bytes torch fails with whatever comes first: KeyError, IndexError, AssertionError, ...
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise FileFormatError(f"{path} cannot be read as a torch checkpoint ({reason}). Fix: copy it again.") from error
    tensors = content.get("model") if isinstance(content, dict) else None
    if not isinstance(tensors, dict):
        kept = f"keys {', '.join(map(str, list(content)[:5]))}" if isinstance(content, dict) else type(content).__name__
        raise FileFormatError(
            f"{path} must hold a dictionary with the key 'model'; it holds {kept}. Fix: give a checkpoint as ALBEF "
            "wrote it, or save the state dictionary as {'model': state}."
        )
    return {str(name): value for name, value in tensors.items() if isinstance(value, torch.Tensor)}


# ALBEF's image tower: a vision transformer as in Dosovitskiy et al. (ICLR 2021), norms before the layers.
#
# Parameters have the names they have in ALBEF's checkpoints (those of the timm library), so that weights go in by
# name.


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


TEXT_LAYER_NORM_EPS = 1e-12
"""BERT's own."""

OWN_PREFIXES = ("visual_encoder", "text_encoder", "vision_proj", "text_proj")
OWN_NAMES = {
    *OWN_PREFIXES,
    *(f"{prefix}_m" for prefix in OWN_PREFIXES),
    *("temp", "itm_head", "image_queue", "text_queue", "idx_queue", "queue_ptr"),
}
"""What the names of an ALBEF checkpoint begin with; `_m` are the momentum copies."""


class Checkpoint:
    """A checkpoint in memory, and the parts of the model it makes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tensors = read_state(path)
        # Pre-training puts BERT under a language model's head; fine-tuning for retrieval does not.
        wrapped = any(name.startswith("text_encoder.bert.") for name in self.tensors)
        self.text_prefix = "text_encoder.bert." if wrapped else "text_encoder."

    @cached_property
    def vision_sizes(self) -> VisionSizes:
        width, _, patch, _ = self._shape("visual_encoder.patch_embed.proj.weight", 4)
        places = self._shape("visual_encoder.pos_embed", 3)[1] - 1
        grid = math.isqrt(max(places, 0))
        if grid**2 != places or grid == 0:
            raise FileFormatError(
                f"{self.path}: visual_encoder.pos_embed has {places} places beside the class token; a square number is "
                "needed. Fix: take a checkpoint for square pictures."
            )
        self._heads(width, "visual_encoder")
        return VisionSizes(
            width=width,
            depth=len(self._layers(r"visual_encoder\.blocks\.(\d+)\.")),
            hidden=self._shape("visual_encoder.blocks.0.mlp.fc1.weight", 2)[0],
            patch=patch,
            grid=grid,
        )

    def vision_tower(self) -> VisionTransformer:
        return self._filled(VisionTransformer(self.vision_sizes), "visual_encoder.")

    def text_tower(self) -> Any:
        """A BERT of the layers that see text alone: those before the first with cross-attention."""
        from transformers import BertConfig, BertModel

        prefix = self.text_prefix
        mixing = self._layers(re.escape(prefix) + r"encoder\.layer\.(\d+)\.crossattention\.")
        if not mixing or min(mixing) == 0:
            raise FileFormatError(
                f"{self.path} has {'only' if mixing else 'no'} layers with cross-attention under {prefix}, so the text "
                f"tower's end cannot be told. Fix: give a checkpoint as ALBEF wrote it, such as {WHERE_FROM}."
            )
        words, width = self._shape(f"{prefix}embeddings.word_embeddings.weight", 2)
        config = BertConfig(
            vocab_size=words,
            hidden_size=width,
            num_hidden_layers=min(mixing),
            num_attention_heads=self._heads(width, prefix.rstrip(".")),
            intermediate_size=self._shape(f"{prefix}encoder.layer.0.intermediate.dense.weight", 2)[0],
            max_position_embeddings=self._shape(f"{prefix}embeddings.position_embeddings.weight", 2)[0],
            type_vocab_size=self._shape(f"{prefix}embeddings.token_type_embeddings.weight", 2)[0],
            layer_norm_eps=TEXT_LAYER_NORM_EPS,
            hidden_act="gelu",
        )
        return self._filled(BertModel(config, add_pooling_layer=False), prefix)

    def projection(self, name: str, width: int, dimension: int) -> nn.Linear:
        """The last layer of a tower, "vision_proj" or "text_proj"."""
        from torch import nn

        return self._filled(nn.Linear(width, dimension), f"{name}.")

    @property
    def dimension(self) -> int:
        """d, of both projections."""
        return self._shape("vision_proj.weight", 2)[0]

    @property
    def temperature(self) -> float:
        """What cosines are divided by."""
        self._shape("temp", 0)
        value = float(self._tensor("temp"))
        if not 0 < value < math.inf:
            raise FileFormatError(f"{self.path}: temp is {value:g}; it must be positive. Fix: copy the file again.")
        return value

    def _filled(self, module: Any, prefix: str) -> Any:
        """`module` with its tensors from the checkpoint: every one of them, and of the same shape."""
        wanted = module.state_dict()
        missing = [prefix + name for name in wanted if prefix + name not in self.tensors]
        if missing:
            raise self._lacking(missing)
        for name, tensor in wanted.items():
            given, needed = tuple(self.tensors[prefix + name].shape), tuple(tensor.shape)
            if given != needed:
                raise FileFormatError(
                    f"{self.path}: {prefix}{name} has shape {given}; with the other tensors goes {needed}. "
                    "Fix: copy the file again."
                )
        module.load_state_dict({name: self.tensors[prefix + name] for name in wanted})
        return module.eval()

    def _tensor(self, name: str) -> torch.Tensor:
        if name not in self.tensors:
            raise self._lacking([name])
        return self.tensors[name]

    def _shape(self, name: str, n_axes: int) -> tuple[int, ...]:
        shape = tuple(self._tensor(name).shape)
        if len(shape) != n_axes:
            raise FileFormatError(
                f"{self.path}: {name} has shape {shape}; it must have {n_axes} axes. Fix: copy the file again."
            )
        return shape

    def _heads(self, width: int, where: str) -> int:
        """How many attention heads a tower of this width has."""
        if width % HEAD_WIDTH:
            raise FileFormatError(
                f"{self.path}: {where} is {width} wide; ALBEF's heads are {HEAD_WIDTH} wide, so a multiple is needed. "
                "Fix: take a checkpoint of ALBEF itself."
            )
        return width // HEAD_WIDTH

    def _layers(self, pattern: str) -> set[int]:
        """The numbers of the layers whose names begin with `pattern`."""
        return {int(match.group(1)) for name in self.tensors if (match := re.match(pattern, name))}

    def _lacking(self, missing: list[str]) -> FileFormatError:
        others = sorted({name.split(".")[0] for name in self.tensors} - OWN_NAMES)
        unknown = f" It holds what ALBEF does not: {', '.join(others[:5])}." if others else ""
        more = f" and {len(missing) - 1} more tensors" if missing[1:] else ""
        return FileFormatError(
            f"{self.path} lacks {missing[0]!r}{more}, so it is not a whole ALBEF checkpoint.{unknown} "
            f"Fix: give one for pre-training or retrieval, such as {WHERE_FROM}."
        )

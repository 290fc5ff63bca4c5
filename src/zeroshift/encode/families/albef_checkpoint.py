"""The contrastive part of an ALBEF checkpoint, which holds momentum copies, queues and other heads besides.

These are the image tower, the layers of the text tower before images are mixed in, the two projections and the
temperature. Their sizes are read off the tensors: the file need not hold a configuration.
"""

from __future__ import annotations

import math
import re
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeroshift.encode.families.albef_files import WHERE_FROM, read_state
from zeroshift.encode.families.albef_vision import HEAD_WIDTH, VisionSizes, VisionTransformer
from zeroshift.files import FileFormatError

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["Checkpoint"]

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

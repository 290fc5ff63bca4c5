"""ALBEF (Li et al., "Align before fuse", NeurIPS 2021), read from the checkpoints its authors published."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from zeroshift.encode.devices import choose_device, choose_dtype
from zeroshift.encode.encoder import Encoder
from zeroshift.encode.preprocessing import PixelPreprocessing, affine_table
from zeroshift.files import FileFormatError

if TYPE_CHECKING:
    import torch

    from zeroshift.encode.families.albef_checkpoint import Checkpoint
    from zeroshift.encode.families.albef_text import CaptionTokenizer

__all__ = ["ALBEFEncoder"]

MAX_TOKENS = 30
"""Tokens of a prompt that ALBEF's own retrieval evaluation reads, [CLS] included (its pre-training read 25)."""

MEAN, STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
"""Of the pixels; CLIP's, which ALBEF took over."""


class ALBEFEncoder(Encoder):
    """The contrastive part of ALBEF: both towers and their projections. Layers that fuse the two are not used."""

    family = "albef"

    def __init__(
        self,
        source: str,
        revision: str | None,
        checkpoint: Checkpoint,
        tokenizer: CaptionTokenizer,
        *,
        device: Any,
        dtype: Any,
    ) -> None:
        from zeroshift.encode.families.weights import check_revision, weights_digest

        vision, text = checkpoint.vision_tower(), checkpoint.text_tower()
        if len(tokenizer.vocabulary) != text.config.vocab_size:
            raise FileFormatError(
                f"the vocabulary has {len(tokenizer.vocabulary)} word pieces, and {checkpoint.path} has embeddings for "
                f"{text.config.vocab_size}. Fix: give the vocab.txt the model was trained with, as tokenizer=."
            )
        self.dimension = checkpoint.dimension
        parts = {
            "vision": vision,
            "text": text,
            "vision_proj": checkpoint.projection("vision_proj", checkpoint.vision_sizes.width, self.dimension),
            "text_proj": checkpoint.projection("text_proj", text.config.hidden_size, self.dimension),
        }
        used = {f"{part}.{name}": each for part, module in parts.items() for name, each in module.state_dict().items()}
        self.revision = weights_digest(used, tokenizer.vocabulary)
        check_revision(revision, self.revision, source)
        self.source, self.tokenizer = source, tokenizer
        self.device, self.dtype = device, dtype
        self.parts = {name: module.to(device=device, dtype=dtype) for name, module in parts.items()}
        self.logit_scale = 1 / checkpoint.temperature
        self.text_length = min(MAX_TOKENS, text.config.max_position_embeddings)
        side = checkpoint.vision_sizes.side
        self.preprocessing = PixelPreprocessing(("exact", side, side), None, "bicubic", affine_table(MEAN, STD))

    @classmethod
    def load(
        cls,
        source: str,
        *,
        device: str = "auto",
        dtype: str = "auto",
        revision: str | None = None,
        tokenizer: str | os.PathLike[str] | None = None,
    ) -> ALBEFEncoder:
        """From a checkpoint file (ALBEF.pth, ALBEF_4M.pth, flickr30k.pth, mscoco.pth), or a folder that holds one.

        Parameters
        ----------
        source : the file or the folder.
        revision : the hash the weights must have, as `revision` of an encoder says it; None takes any.
        tokenizer : BERT's vocabulary: a vocab.txt, a folder with one, or a hub id. None takes the vocab.txt
            beside the checkpoint, else the hub's bert-base-uncased.
        """
        from zeroshift.encode.families.albef_checkpoint import Checkpoint
        from zeroshift.encode.families.albef_files import find_checkpoint
        from zeroshift.encode.families.albef_text import DEFAULT_TOKENIZER, CaptionTokenizer, find_vocabulary

        where = choose_device(device)
        numbers = choose_dtype(dtype, where)
        path = find_checkpoint(source)
        if tokenizer is None:
            beside = path.with_name("vocab.txt")
            tokenizer = beside if beside.is_file() else DEFAULT_TOKENIZER
        # The vocabulary first: it is small, and may be what cannot be had.
        pieces = CaptionTokenizer(find_vocabulary(tokenizer))
        # The file's name and not where it lies: the same checkpoint elsewhere makes the same features.
        return cls(path.name, revision, Checkpoint(path), pieces, device=where, dtype=numbers)

    def count_tokens(self, prompts: Sequence[str]) -> list[int]:
        return [len(row) for row in self.tokenizer(prompts, max_words=None)]

    def _text_features(self, prompts: Sequence[str]) -> torch.Tensor:
        import torch

        rows = [row[: self.text_length] for row in self.tokenizer(prompts)]
        longest = max(map(len, rows))
        ids = torch.tensor([row + [self.tokenizer.padding] * (longest - len(row)) for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
        states = self.parts["text"](input_ids=ids.to(self.device), attention_mask=mask.to(self.device))
        return self.parts["text_proj"](states.last_hidden_state[:, 0])

    def _image_features(self, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return self.parts["vision_proj"](self.parts["vision"](batch[0]))

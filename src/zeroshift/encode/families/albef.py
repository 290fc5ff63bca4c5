"""ALBEF (Li et al., "Align before fuse", NeurIPS 2021), read from the checkpoints its authors published."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeroshift.encode.encoder import Encoder, choose_device, choose_dtype
from zeroshift.encode.preprocessing import PixelPreprocessing, affine_table
from zeroshift.files import FileFormatError

if TYPE_CHECKING:
    import torch

    from zeroshift.encode.families.albef_checkpoint import Checkpoint

__all__ = ["DEFAULT_TOKENIZER", "ALBEFEncoder", "CaptionTokenizer", "clean_caption", "find_vocabulary"]


# Prompts as ALBEF reads them: cleaned like the captions it was trained on, cut into BERT's word pieces.


DEFAULT_TOKENIZER = "bert-base-uncased"
"""The hub id ALBEF was trained with."""

MAX_WORDS = 30
"""Captions of ALBEF's data sets end after this many words."""

VOCABULARY_FILE = "vocab.txt"

SIGNS = ("[PAD]", "[UNK]", "[CLS]")
"""Word pieces that stand for no words, and that every prompt may need."""

DROPPED = re.compile(r"""[,.'!?"()*#:;~]""")
RUNS_OF_SPACE = re.compile(r"\s{2,}")


def clean_caption(caption: str, max_words: int | None = MAX_WORDS) -> str:
    """Small letters, no punctuation, hyphens and slashes as spaces, no runs of spaces; None keeps every word.

    >>> clean_caption("A photo of a T-shirt/top.")
    'a photo of a t shirt top'
    """
    text = DROPPED.sub("", caption.lower()).replace("-", " ").replace("/", " ")
    # How Conceptual Captions, a part of ALBEF's training data, writes the names it took out.
    text = RUNS_OF_SPACE.sub(" ", text.replace("<person>", "person")).strip(" \n")
    return " ".join(text.split(" ")[:max_words])


def find_vocabulary(tokenizer: str | os.PathLike[str]) -> Path:
    """The vocabulary file that `tokenizer` means: a file, a folder with a vocab.txt, or a hub id."""
    given = Path(tokenizer)
    if given.is_file():
        return given
    if given.is_dir():
        if (given / VOCABULARY_FILE).is_file():
            return given / VOCABULARY_FILE
        raise FileNotFoundError(
            f"tokenizer={str(tokenizer)!r} is a folder without {VOCABULARY_FILE}. "
            f"Fix: copy the {VOCABULARY_FILE} of {DEFAULT_TOKENIZER} there."
        )
    # The file itself and not BertTokenizer.from_pretrained, which makes a tokenizer of five words where it finds none.
    from transformers.utils import cached_file

    try:
        return Path(str(cached_file(str(tokenizer), VOCABULARY_FILE)))
    except (OSError, ValueError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise OSError(
            f"tokenizer={str(tokenizer)!r} cannot be had from the hub ({reason}). Fix: get the {VOCABULARY_FILE} of "
            f"{DEFAULT_TOKENIZER} where there is a network, and put it beside the checkpoint, "
            "or name it: tokenizer='path/to/vocab.txt'."
        ) from error


class CaptionTokenizer:
    """[CLS] and the word pieces of a cleaned prompt. No [SEP] after them: ALBEF was trained without."""

    def __init__(self, vocabulary_file: Path) -> None:
        from transformers import BertTokenizer

        # One piece a line; its number is the line's.
        lines = vocabulary_file.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        self.vocabulary = {piece: number for number, piece in enumerate(lines)}
        missing = [sign for sign in SIGNS if sign not in self.vocabulary]
        if missing:
            raise FileFormatError(
                f"{vocabulary_file} lacks {', '.join(missing)}, so it is not a BERT vocabulary. "
                f"Fix: give the {VOCABULARY_FILE} of {DEFAULT_TOKENIZER}."
            )
        self.padding = self.vocabulary["[PAD]"]
        self._pieces = BertTokenizer(vocab=self.vocabulary)

    def __call__(self, prompts: Sequence[str], max_words: int | None = MAX_WORDS) -> list[list[int]]:
        """The numbers of each prompt's pieces, as many as they are."""
        captions = [clean_caption(prompt, max_words) for prompt in prompts]
        pieces = self._pieces(captions, add_special_tokens=False, verbose=False)["input_ids"]
        return [[self.vocabulary["[CLS]"], *row] for row in pieces]


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
        from zeroshift.encode.families.base import check_revision, weights_digest

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
        from zeroshift.encode.families.albef_checkpoint import Checkpoint, find_checkpoint

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

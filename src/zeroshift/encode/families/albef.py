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


DEFAULT_TOKENIZER = "bert-base-uncased"
"""Hub id of the tokenizer ALBEF was trained with."""

MAX_WORDS = 30
"""Captions in ALBEF's data sets are truncated to this many words."""

VOCABULARY_FILE = "vocab.txt"

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]")
"""Word pieces that a vocabulary must contain."""

DROPPED = re.compile(r"""[,.'!?"()*#:;~]""")
RUNS_OF_SPACE = re.compile(r"\s{2,}")


def clean_caption(caption: str, max_words: int | None = MAX_WORDS) -> str:
    """Lower case, without punctuation, hyphens and slashes as spaces, single spaces; `max_words` None keeps all words.

    >>> clean_caption("A photo of a T-shirt/top.")
    'a photo of a t shirt top'
    """
    text = DROPPED.sub("", caption.lower()).replace("-", " ").replace("/", " ")
    # Conceptual Captions, a part of ALBEF's training data, writes removed names this way.
    text = RUNS_OF_SPACE.sub(" ", text.replace("<person>", "person")).strip(" \n")
    return " ".join(text.split(" ")[:max_words])


def find_vocabulary(tokenizer: str | os.PathLike[str]) -> Path:
    """The vocabulary file of `tokenizer`: a file, a folder with a vocab.txt, or a hub id."""
    path = Path(tokenizer)
    if path.is_file():
        return path
    if path.is_dir():
        if (path / VOCABULARY_FILE).is_file():
            return path / VOCABULARY_FILE
        raise FileNotFoundError(
            f"tokenizer={str(tokenizer)!r} is a folder without {VOCABULARY_FILE}. "
            f"Fix: copy the {VOCABULARY_FILE} of {DEFAULT_TOKENIZER} there."
        )
    # Not BertTokenizer.from_pretrained, which creates a tokenizer of five words if there are no files.
    from transformers.utils import cached_file

    try:
        return Path(str(cached_file(str(tokenizer), VOCABULARY_FILE)))
    except (OSError, ValueError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise OSError(
            f"tokenizer={str(tokenizer)!r} cannot be loaded from the hub ({reason}). Fix: download the "
            f"{VOCABULARY_FILE} of {DEFAULT_TOKENIZER}, and put it next to the checkpoint, or pass "
            "tokenizer='path/to/vocab.txt'."
        ) from error


class CaptionTokenizer:
    """[CLS] and the word pieces of a cleaned prompt, without [SEP], as ALBEF was trained."""

    def __init__(self, vocabulary_file: Path) -> None:
        from transformers import BertTokenizer

        # One piece per line; its number is the line number.
        lines = vocabulary_file.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        self.vocabulary = {piece: number for number, piece in enumerate(lines)}
        missing = [sign for sign in SPECIAL_TOKENS if sign not in self.vocabulary]
        if missing:
            raise FileFormatError(
                f"{vocabulary_file} lacks {', '.join(missing)}, so it is not a BERT vocabulary. "
                f"Fix: pass the {VOCABULARY_FILE} of {DEFAULT_TOKENIZER}."
            )
        self.padding = self.vocabulary["[PAD]"]
        self._pieces = BertTokenizer(vocab=self.vocabulary)

    def __call__(self, prompts: Sequence[str], max_words: int | None = MAX_WORDS) -> list[list[int]]:
        """Token ids of each prompt, without truncation and padding."""
        captions = [clean_caption(prompt, max_words) for prompt in prompts]
        pieces = self._pieces(captions, add_special_tokens=False, verbose=False)["input_ids"]
        return [[self.vocabulary["[CLS]"], *row] for row in pieces]


MAX_TOKENS = 30
"""Maximum tokens per prompt in ALBEF's retrieval evaluation, including [CLS] (25 in its pre-training)."""

MEAN, STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
"""Mean and standard deviation of the pixels, the same as CLIP's."""


class ALBEFEncoder(Encoder):
    """The contrastive part of ALBEF: both encoders and their projections, without the layers that fuse them."""

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

        vision, text = checkpoint.vision_model(), checkpoint.text_model()
        if len(tokenizer.vocabulary) != text.config.vocab_size:
            raise FileFormatError(
                f"the vocabulary has {len(tokenizer.vocabulary)} word pieces, and {checkpoint.path} has embeddings for "
                f"{text.config.vocab_size}. Fix: pass the vocab.txt the model was trained with as tokenizer=."
            )
        self.dimension = checkpoint.dimension
        parts = {
            "vision": vision,
            "text": text,
            "vision_proj": checkpoint.projection("vision_proj", checkpoint.vision_sizes.width, self.dimension),
            "text_proj": checkpoint.projection("text_proj", text.config.hidden_size, self.dimension),
        }
        weights = {
            f"{part}.{name}": each for part, module in parts.items() for name, each in module.state_dict().items()
        }
        self.revision = weights_digest(weights, tokenizer.vocabulary)
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
        """Load a checkpoint file (ALBEF.pth, ALBEF_4M.pth, flickr30k.pth, mscoco.pth), or the one in a folder.

        Parameters
        ----------
        source : the file or the folder.
        revision : the hash the weights must have, as in `revision` of an encoder; None accepts any.
        tokenizer : BERT's vocabulary: a vocab.txt, a folder with one, or a hub id. None uses the vocab.txt next to the
            checkpoint or, if there is none, the hub's bert-base-uncased.
        """
        from zeroshift.encode.families.albef_checkpoint import Checkpoint, find_checkpoint

        torch_device = choose_device(device)
        torch_dtype = choose_dtype(dtype, torch_device)
        path = find_checkpoint(source)
        if tokenizer is None:
            local = path.with_name("vocab.txt")
            tokenizer = local if local.is_file() else DEFAULT_TOKENIZER
        # The vocabulary first: it is small, and may not be available.
        caption_tokenizer = CaptionTokenizer(find_vocabulary(tokenizer))
        # The file's name and not its path: the same checkpoint elsewhere gives the same features.
        return cls(path.name, revision, Checkpoint(path), caption_tokenizer, device=torch_device, dtype=torch_dtype)

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

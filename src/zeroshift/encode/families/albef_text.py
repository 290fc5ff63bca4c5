"""Prompts as ALBEF reads them: cleaned like the captions it was trained on, cut into BERT's word pieces."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from zeroshift.files import FileFormatError

__all__ = ["DEFAULT_TOKENIZER", "CaptionTokenizer", "clean_caption", "find_vocabulary"]

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

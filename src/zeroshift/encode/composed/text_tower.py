"""all-MiniLM-L6-v2: sentences to vectors of 384 numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from zeroshift.encode.composed.packages import TEXT_FOLDER, package_file

if TYPE_CHECKING:
    import torch

__all__ = ["TEXT_DIMENSION", "TEXT_LENGTH", "TextTower"]

TEXT_DIMENSION = 384

TEXT_LENGTH = 256
"""Tokens, the model's two own included: `max_seq_length` in its sentence_bert_config.json."""

TOGETHER = 64
"""Sentences of about one length that go through the model at once."""


class TextTower:
    """The model in float32, whatever the pictures' precision: the bridge is fitted on differences between sentences."""

    def __init__(self, device: torch.device) -> None:
        from transformers import AutoModel, AutoTokenizer

        folder = package_file(*TEXT_FOLDER)
        self.device = device
        self.tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        with _no_progress_bar():
            self.model = AutoModel.from_pretrained(folder, local_files_only=True).to(device).float().eval()

    def embed(self, sentences: Sequence[str]) -> torch.Tensor:
        """(n, 384) of any length: the mean over a sentence's tokens."""
        import torch

        tokens = self.tokenizer(list(sentences), truncation=True, max_length=TEXT_LENGTH)["input_ids"]
        # Short ones with short ones, so that little is filled up.
        order = sorted(range(len(tokens)), key=lambda i: len(tokens[i]))
        rows = torch.empty(len(tokens), TEXT_DIMENSION, device=self.device)
        for start in range(0, len(order), TOGETHER):
            chosen = order[start : start + TOGETHER]
            batch = self.tokenizer.pad({"input_ids": [tokens[i] for i in chosen]}, return_tensors="pt").to(self.device)
            states = self.model(**batch).last_hidden_state
            real = batch["attention_mask"].unsqueeze(-1).to(states.dtype)
            rows[chosen] = (states * real).sum(dim=1) / real.sum(dim=1)
        return rows

    def count_tokens(self, sentences: Sequence[str]) -> list[int]:
        """Tokens of each sentence, uncut, the model's two own included."""
        # Not verbose: transformers would say that a long sentence is longer than the model's 512 positions.
        return [len(ids) for ids in self.tokenizer(list(sentences), truncation=False, verbose=False)["input_ids"]]


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """Without transformers' bar for a load that takes a moment; as it was before, afterwards."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()

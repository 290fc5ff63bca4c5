"""The text side of a loaded encoder with words that can be tuned: gradients in chunks of classes, so K can be large."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from zeroshift.arrays import Array, Home, to_numpy
from zeroshift.methods.parts.towers import PromptedText
from zeroshift.parameters import Number

if TYPE_CHECKING:
    import torch

__all__ = ["CHUNK", "ContextText"]

CHUNK = 64
"""Prompts whose activations are held at once for a gradient."""


class ContextText(PromptedText):
    """K tokenised prompts through a text model whose embeddings at some positions are replaced by a context.

    A gradient needs the loss of all K classes first and the activations of a few only: it is given with respect to the
    features, and carried back `chunk_size` prompts at a time, each chunk encoded anew. Exact, and memory does not grow
    with K.

    Parameters
    ----------
    encode : tokens to (n, d) text features of any length, differentiable.
    embedding : the module that looks up the tokens' embeddings.
    tokens : what `encode` takes, tensors with a row for each prompt; among them "input_ids".
    start, words : where in every prompt the context stands, and how many tokens it has.
    chunk_size : prompts at a time with gradients; `batch_size` without.
    identity : what says which text model and which prompts these are.
    """

    def __init__(
        self,
        encode: Callable[[Mapping[str, torch.Tensor]], torch.Tensor],
        embedding: torch.nn.Module,
        tokens: Mapping[str, torch.Tensor],
        *,
        start: int,
        words: int,
        chunk_size: int = CHUNK,
        batch_size: int = 256,
        identity: Mapping[str, Any] | None = None,
    ) -> None:
        import torch

        self._encode, self._embedding, self._tokens = encode, embedding, dict(tokens)
        self.start, self.words = start, words
        self.chunk_size = int(Number(1, integer=True).check("chunk_size", chunk_size))
        self.batch_size = int(Number(1, integer=True).check("batch_size", batch_size))
        ids = self._tokens["input_ids"]
        self.n_classes = int(ids.shape[0])
        with torch.inference_mode():
            self.context = to_numpy(embedding(ids[:1, start : start + words])[0].float())
        self._identity = {
            **(identity or {}),
            "prompts": hashlib.sha256(to_numpy(ids).astype(np.int64).tobytes()).hexdigest()[:16],
            "start": start,
            "words": words,
        }
        self.dimension = int(self.features(self.context).shape[1])

    @property
    def identity(self) -> Mapping[str, Any]:
        return self._identity

    def features(self, context: Array) -> Array:
        import torch

        with torch.no_grad(), _plain(self._device):
            words = self._words(context)
            parts = [self._unit(words, rows) for rows in self._blocks(self.batch_size)]
            return Home.of(context).bring(torch.cat(parts))

    def pull_back(self, context: Array, upstream: Array) -> Array:
        import torch

        with torch.inference_mode(False), torch.enable_grad(), _plain(self._device):
            words = self._words(context).clone().requires_grad_()
            above = torch.as_tensor(upstream).to(self._device, torch.float32)
            total = torch.zeros_like(words)
            for rows in self._blocks(self.chunk_size):
                (part,) = torch.autograd.grad(self._unit(words, rows), words, above[rows])
                total += part
            return Home.of(context).bring(total.detach())

    def _blocks(self, size: int) -> Iterator[slice]:
        return (slice(start, start + size) for start in range(0, self.n_classes, size))

    def _words(self, context: Array) -> torch.Tensor:
        import torch

        tensor = torch.as_tensor(context).to(self._device, torch.float32)
        if tuple(tensor.shape) != (self.words, tensor.shape[-1]):
            raise ValueError(
                f"context must have the shape ({self.words}, width); got {tuple(tensor.shape)}. Fix: as text.context."
            )
        return tensor

    def _unit(self, words: torch.Tensor, rows: slice) -> torch.Tensor:
        """(n, d) unit rows in float32, of the prompts `rows`."""
        import torch

        def replaced(module: Any, arguments: Any, found: torch.Tensor) -> torch.Tensor:
            ahead, behind = found[:, : self.start], found[:, self.start + self.words :]
            return torch.cat([ahead, words.to(found.dtype).expand(len(found), -1, -1), behind], dim=1)

        handle = self._embedding.register_forward_hook(replaced)
        try:
            found = self._encode({name: tensor[rows] for name, tensor in self._tokens.items()}).float()
        finally:
            handle.remove()
        return found / found.norm(dim=-1, keepdim=True)

    @property
    def _device(self) -> torch.device:
        return self._tokens["input_ids"].device

    def __repr__(self) -> str:
        return f"<text of {self.n_classes} classes, {self.words} words to tune>"


def _plain(device: torch.device) -> Any:
    """Whatever the caller is in the middle of, nothing is narrowed by autocast."""
    import torch

    return torch.autocast(device.type, enabled=False)


def find_context(rows: Sequence[Sequence[int]], words: Sequence[int]) -> int | None:
    """Where the tokens `words` begin in every row; None where they do not stand at one place in all of them.

    >>> find_context([[1, 7, 8, 9], [1, 7, 8, 5]], [7, 8])
    1
    """
    first, n = list(rows[0]), len(words)
    for start in range(len(first) - n + 1):
        if all(list(row[start : start + n]) == list(words) for row in rows):
            return start
    return None

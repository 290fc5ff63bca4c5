"""Which weights exactly, where no hub gives them a name: a hash of the numbers themselves."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["check_revision", "weights_digest"]


def weights_digest(tensors: Mapping[str, torch.Tensor], vocabulary: Mapping[str, int] | None = None) -> str:
    """One hash of names, types, shapes and numbers, in any order; and of the vocabulary, where that is read apart.

    >>> import torch
    >>> weights_digest({"a": torch.zeros(2), "b": torch.ones(1)})
    'sha256:831a61fb1ec25cf4'
    """
    import torch

    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        # As bytes, because NumPy does not know every type torch has.
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    for word, number in sorted((vocabulary or {}).items()):
        digest.update(f"{word}\0{number}\0".encode())
    return f"sha256:{digest.hexdigest()[:16]}"


def check_revision(asked: str | None, found: str, source: str) -> None:
    """Refuse weights that are not the ones asked for: there is no hub to fetch others from."""
    if asked is not None and asked != found:
        raise ValueError(
            f"revision={asked!r} was asked for, but {source} is {found!r}. Fix: give the checkpoint that has this "
            "hash, or leave revision out."
        )

"""Passes through a frozen model that record gradients for its input alone, as many rows at a time as memory allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from zeroshift.encode.encoder import in_batches

if TYPE_CHECKING:
    import torch

__all__ = ["each_chunk", "frozen", "powers_of_two", "tracing", "unpicklable"]

NOTHING = np.empty(0)

SMALLEST_EXPONENT = -100
"""Of entries that are still scaled up: the power of two that does it must be a float32 itself."""


def each_chunk(count: int, size: int, work: Callable[[slice], None]) -> int:
    """`work` on rows 0 to `count`, at most `size` at a time, fewer where memory runs out; the size that it allowed.

    `work` keeps its results itself, as the last thing it does: a chunk that failed is done again in halves.

    >>> seen = []
    >>> each_chunk(5, 2, seen.append), seen
    (2, [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)])
    """

    def one(rows: slice) -> np.ndarray:
        work(rows)
        return NOTHING

    return in_batches(count, size, one)[1]


@contextmanager
def frozen(modules: Sequence[torch.nn.Module]) -> Iterator[None]:
    """No gradient is recorded for the weights, nor is what only theirs would need; afterwards they are as before."""
    thawed = [weights for module in modules for weights in module.parameters() if weights.requires_grad]
    for weights in thawed:
        weights.requires_grad_(False)
    try:
        yield
    finally:
        for weights in thawed:
            weights.requires_grad_(True)


@contextmanager
def tracing(device: torch.device, *, gradients: bool) -> Iterator[None]:
    """Whatever the caller is in the middle of: gradients recorded or not as said, nothing narrowed by autocast."""
    import torch

    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.set_grad_enabled(gradients))
        stack.enter_context(torch.autocast(device.type, enabled=False))
        yield


def unpicklable(side: str) -> NoReturn:
    """A model is not to be written into a method's pickle by accident, with all its weights, or half of it."""
    raise TypeError(
        f"{side} is a side of a loaded encoder, which is not pickled, nor is a method that holds it. "
        f"Fix: method.save(path), and load it with {side}=...; copy.deepcopy(method) shares it."
    )


def powers_of_two(rows: torch.Tensor) -> torch.Tensor:
    """(n, 1): a power of two for each row that brings its largest entry to between 1/2 and 1.

    A gradient is linear in what comes from above: scaled up before a model in half precision and down again behind it,
    it does not vanish there, and in float32 not one bit changes.
    """
    import torch

    _, exponents = torch.frexp(rows.abs().amax(dim=1, keepdim=True))
    return torch.ldexp(torch.ones_like(exponents, dtype=rows.dtype), -exponents.clamp(min=SMALLEST_EXPONENT))

"""Gradients with respect to the input of a frozen model, in chunks that fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from zeroshift.encode.encoder import is_out_of_memory, run_in_batches

if TYPE_CHECKING:
    import torch

__all__ = [
    "expect_out_of_memory",
    "for_each_chunk",
    "freeze_parameters",
    "gradient_mode",
    "powers_of_two",
    "refuse_pickling",
]

NOTHING = np.empty(0)

SMALLEST_EXPONENT = -100
"""Smallest exponent that is compensated: the factor must be a float32."""


def for_each_chunk(count: int, size: int, work: Callable[[slice], None]) -> int:
    """Call `work` on slices of at most `size` rows, halving `size` when memory runs out; returns the final size.

    `work` must store its results as its last step: a chunk that failed is repeated in halves.

    >>> seen = []
    >>> for_each_chunk(5, 2, seen.append), seen
    (2, [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)])
    """

    def run(rows: slice) -> np.ndarray:
        work(rows)
        return NOTHING

    return run_in_batches(count, size, run)[1]


@contextmanager
def expect_out_of_memory() -> Iterator[None]:
    """Leave the block without an error where memory runs out."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise


@contextmanager
def freeze_parameters(modules: Sequence[torch.nn.Module]) -> Iterator[None]:
    """Record no gradients for the weights of `modules` in this block."""
    trainable = [weights for module in modules for weights in module.parameters() if weights.requires_grad]
    for weights in trainable:
        weights.requires_grad_(False)
    try:
        yield
    finally:
        for weights in trainable:
            weights.requires_grad_(True)


@contextmanager
def gradient_mode(device: torch.device, *, gradients: bool) -> Iterator[None]:
    """Enable or disable gradients, and disable inference mode and autocast, whatever the caller's settings."""
    import torch

    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.set_grad_enabled(gradients))
        stack.enter_context(torch.autocast(device.type, enabled=False))
        yield


def refuse_pickling(argument: str) -> NoReturn:
    """Raise: a model with all its weights must not be pickled with a method by accident."""
    raise TypeError(
        f"{argument} is part of a loaded encoder, which cannot be pickled, nor can a method that uses it. "
        f"Fix: method.save(path), and load it with {argument}=...; copy.deepcopy(method) shares it."
    )


def powers_of_two(rows: torch.Tensor) -> torch.Tensor:
    """(n, 1): a power of two for each row that scales its largest entry to between 1/2 and 1.

    Gradients are linear in the upstream gradient: scaled up before a half-precision model and down again afterwards,
    they do not underflow. In float32 no bit changes.
    """
    import torch

    _, exponents = torch.frexp(rows.abs().amax(dim=1, keepdim=True))
    return torch.ldexp(torch.ones_like(exponents, dtype=rows.dtype), -exponents.clamp(min=SMALLEST_EXPONENT))

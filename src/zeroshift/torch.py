"""A frozen classifier as a torch module (extra `torch`): features in, probabilities out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Self

from zeroshift.installation import install_command

try:
    import torch
except ImportError as error:
    raise ImportError(f"zeroshift.torch needs torch. Fix: {install_command('torch')}.") from error

from zeroshift.frozen import FrozenHead, evaluate

__all__ = ["FrozenModule"]


class FrozenModule(torch.nn.Module):
    """Probabilities (N, K) of unit-length features (N, d), as `predict` of the frozen method computes them.

    The arrays are buffers: they are saved in the `state_dict` and move with the module. They are float64, and features
    of any precision are computed in it; the answer is float32, or float64 for float64 features. After `.float()`, which
    devices without float64 need, it computes in float32. `.half()` leaves it as it is: in half precision, large scores
    would lose the differences between classes. Gradients reach the features.

    >>> import numpy as np
    >>> from zeroshift import ZeroShot
    >>> module = FrozenModule(ZeroShot(np.eye(2), logit_scale=5.0).freeze(["cat", "dog"]))
    >>> module(torch.tensor([[0.8, 0.6]]))
    tensor([[0.7311, 0.2689]])
    >>> module
    FrozenModule(zero_shot, 2 classes, d = 2, matmul softmax)
    """

    def __init__(self, head: FrozenHead) -> None:
        super().__init__()
        if not isinstance(head, FrozenHead):
            raise TypeError(f"head must be a FrozenHead; got {type(head).__name__}. Fix: method.freeze().")
        self.class_names = head.class_names
        self.steps = head.steps
        self._description = repr(head)
        for name, array in head.arrays.items():
            self.register_buffer(name, torch.tensor(array))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        if not isinstance(features, torch.Tensor):
            raise TypeError(
                f"features must be a tensor; got {type(features).__name__}. Fix: torch.as_tensor(features)."
            )
        arrays = dict(self.named_buffers())
        precision = next(iter(arrays.values())).dtype
        device = features.device.type
        with torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext():
            probabilities = evaluate(self.steps, arrays, features.to(precision))
        return probabilities.to(features.dtype if features.dtype == torch.float64 else torch.float32)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        # What `.half()`, `.to(...)` and the like apply to each buffer.
        def at_least_float32(tensor: torch.Tensor) -> torch.Tensor:
            moved = fn(tensor)
            return moved if moved.dtype.itemsize >= 4 else tensor.to(moved.device)

        return super()._apply(at_least_float32, recurse)  # type: ignore[no-untyped-call]

    def __repr__(self) -> str:
        return self._description.replace("FrozenHead", type(self).__name__, 1)

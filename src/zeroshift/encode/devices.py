"""Where a model runs and in which precision, chosen or as asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["DTYPES", "choose_device", "choose_dtype", "gpu_batch_size"]

GPU_BATCH = 256
"""From here on the largest GPUs are busy."""

BYTES_A_PIXEL = 1000
"""Memory of the device one pixel of a picture is given: a few times what a vision transformer needs for it."""

DTYPES = ("float32", "float16", "bfloat16")


def choose_device(device: str = "auto") -> torch.device:
    """`device`, or for "auto" the first there is of CUDA, Apple's MPS and the CPU."""
    import torch

    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.zeros(1, device=chosen).item()  # a device that holds no numbers is none
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"device={device!r} cannot be used here ({reason}). Fix: device='auto' (--device auto) takes what there is."
        ) from error
    return chosen


def choose_dtype(dtype: str = "auto", device: Any = None) -> torch.dtype:
    """`dtype`, or for "auto" float32 on every device: halves of it change features in the third digit."""
    import torch

    name = "float32" if dtype == "auto" else dtype
    if name not in DTYPES:
        raise ValueError(f"dtype must be 'auto', {', '.join(map(repr, DTYPES))}; got {dtype!r}.")
    if name == "float16" and device is not None and device.type == "cpu":
        raise ValueError(
            "dtype='float16' is for GPUs: on a CPU it is slower than float32 and several layers lack it. "
            "Fix: dtype='float32' (--dtype float32), or 'bfloat16'."
        )
    return getattr(torch, name)


def gpu_batch_size(device: torch.device, size: tuple[int, int]) -> int:
    """Pictures of this height and width at a time to begin with, by the memory the GPU has in all: the same on every
    run, whatever else is on it."""
    import torch

    fitting = torch.cuda.get_device_properties(device).total_memory // (BYTES_A_PIXEL * size[0] * size[1])
    # A power of two, so that halving it when memory runs out nonetheless loses nothing.
    return min(GPU_BATCH, 2 ** max(0, int(fitting).bit_length() - 1))

"""The state of a method as its file has it, for tests of what was learned."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from zeroshift.serialization import KIND, STATE_SCHEMA
from zeroshift.tensor_files import read_tensors


def saved_state(method, folder: Path) -> dict[str, np.ndarray]:
    """The arrays of the state, by their names in the file."""
    method.save(folder / "state.safetensors")
    tensors, _ = read_tensors(folder / "state.safetensors", kind=KIND, schema=STATE_SCHEMA)
    return {name.removeprefix("state/"): array for name, array in tensors.items() if name.startswith("state/")}

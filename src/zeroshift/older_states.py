"""State files of earlier versions: their arrays under the names and in the layout that the methods have now."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

__all__ = ["as_written_now"]

Tensors = dict[str, np.ndarray]


def as_written_now(method: str, tensors: Mapping[str, np.ndarray]) -> Tensors:
    """The tensors of a state file, whatever version wrote it. Those it cannot convert are left for later checks."""
    converted = dict(tensors)
    for convert in CONVERTERS.get(method, ()):
        convert(converted)
    return converted


def _wide(*names: str) -> Callable[[Tensors], None]:
    """These arrays were in the precision of the prototypes; now they are in float64."""

    def convert(tensors: Tensors) -> None:
        for name in names:
            if (array := tensors.get(f"state/{name}")) is not None and array.dtype == np.float32:
                tensors[f"state/{name}"] = array.astype(np.float64)

    return convert


def _memory_by_class(tensors: Tensors) -> None:
    """`features` (K, M, d) with empty slots became `entries`, one row for each sample, and the `rows` of the slots."""
    if "state/features" not in tensors:
        return
    features, arrivals = tensors.pop("state/features"), tensors["state/arrivals"]
    held = arrivals > 0
    entries = np.zeros((1 + held.size, features.shape[-1]))
    entries[1 : 1 + held.sum()] = features[held]
    rows = np.zeros(held.shape, dtype=np.int64)
    rows[held] = 1 + np.arange(held.sum())
    tensors |= {"state/entries": entries, "state/rows": rows}


CONVERTERS: dict[str, tuple[Callable[[Tensors], None], ...]] = {
    "tda": (_wide("positive_entries", "negative_entries", "negative_masks"),),
    "boostadapter": (_wide("positive_entries", "negative_entries", "negative_masks"),),
    "oga": (_memory_by_class,),
    "histpt": (_wide("local", "hard"),),
}

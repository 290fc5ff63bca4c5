"""Predictions as a file: CSV for people and spreadsheets, parquet for data frames, npz with every probability."""

from __future__ import annotations

import csv
import importlib.util
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from zeroshift.evaluate import Comparison
from zeroshift.files import atomic_path

__all__ = ["check_format", "write_predictions"]

CLASS_COLUMNS = ("prediction", "zero_shot", "label")
"""Columns that hold classes: indices here, names in the file."""


def check_format(path: str | os.PathLike[str]) -> None:
    """Refuse a file name `write_predictions` could not write to, before anything has been computed."""
    suffix = Path(path).suffix
    if suffix not in WRITERS:
        raise ValueError(
            f"predictions are written as .csv, .parquet or .npz, by the file's suffix; got {str(path)!r}. "
            f"Fix: {Path(path).with_suffix('.csv')}."
        )
    if suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise ImportError(
            f"{path} needs pyarrow, which is not installed. Fix: pip install 'zeroshift[parquet]', or write a .csv."
        )


def write_predictions(path: str | os.PathLike[str], comparison: Comparison) -> None:
    """Write what the last method of a comparison predicts, and beside it what its baseline does; whole or not at all.

    .csv and .parquet hold a row for each sample: `row`, `prediction`, `probability`, `zero_shot`,
    `zero_shot_probability` and, where known, `label`, classes by their names. .npz holds `probabilities` (N, K),
    `predictions`, `zero_shot_predictions` and `labels` as class indices, and `class_names`.
    """
    check_format(path)
    with atomic_path(path) as temporary:
        WRITERS[Path(path).suffix](temporary, comparison)


def _columns(comparison: Comparison) -> dict[str, np.ndarray]:
    adapted, zero_shot = comparison.results[-1], comparison.baseline
    columns = {
        "row": np.arange(comparison.features.n_samples),
        "prediction": adapted.predictions,
        "probability": adapted.run.probabilities.max(axis=1),
        "zero_shot": zero_shot.predictions,
        "zero_shot_probability": zero_shot.run.probabilities.max(axis=1),
    }
    if comparison.features.labels is not None:
        columns["label"] = comparison.features.labels
    return columns


def _write_csv(path: Path, comparison: Comparison) -> None:
    names = comparison.features.class_names

    def written(column: str, value: Any) -> str:
        if column in CLASS_COLUMNS:
            return names[value]
        return str(value) if column == "row" else f"{value:.6g}"

    columns = _columns(comparison)
    with open(path, "w", encoding="utf-8", newline="") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(columns)
        for values in zip(*columns.values(), strict=True):
            writer.writerow(written(column, value) for column, value in zip(columns, values, strict=True))


def _write_parquet(path: Path, comparison: Comparison) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = pa.array(comparison.features.class_names, pa.string())
    columns = {
        # Names are stored once and referred to by number; readers see strings.
        name: pa.DictionaryArray.from_arrays(pa.array(values, pa.int32()), names) if name in CLASS_COLUMNS else values
        for name, values in _columns(comparison).items()
    }
    pq.write_table(pa.table(columns), path)


def _write_npz(path: Path, comparison: Comparison) -> None:
    arrays: dict[str, Any] = {
        "probabilities": comparison.results[-1].run.probabilities,
        "predictions": comparison.results[-1].predictions,
        "zero_shot_predictions": comparison.baseline.predictions,
        "class_names": np.array(comparison.features.class_names, dtype=str),
    }
    if comparison.features.labels is not None:
        arrays["labels"] = comparison.features.labels
    # Through a handle: given a name, NumPy would put ".npz" behind the temporary one.
    with open(path, "wb") as handle:
        np.savez(handle, **arrays)


WRITERS: Mapping[str, Callable[[Path, Comparison], None]] = {
    ".csv": _write_csv,
    ".parquet": _write_parquet,
    ".npz": _write_npz,
}

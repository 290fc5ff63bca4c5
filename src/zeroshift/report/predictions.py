"""Predictions as a file: CSV for people and spreadsheets, parquet for data frames, npz with every probability."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from zeroshift.evaluate import Comparison
from zeroshift.files import atomic_path
from zeroshift.report.columns import TABLE_WRITERS, ByName, Column, check_suffix

__all__ = ["check_format", "write_predictions"]

ARCHIVE = ".npz"


def check_format(path: str | os.PathLike[str]) -> None:
    """Refuse a file name `write_predictions` could not write to, before anything has been computed."""
    check_suffix(path, [*TABLE_WRITERS, ARCHIVE])


def write_predictions(path: str | os.PathLike[str], comparison: Comparison) -> None:
    """Write what the last method of a comparison predicts, and beside it what its baseline does; whole or not at all.

    .csv and .parquet hold a row for each sample: `row`, where known `file`, `prediction`, `probability`, `zero_shot`,
    `zero_shot_probability` and, where known, `label`, classes by their names. .npz holds `probabilities` (N, K),
    `predictions`, `zero_shot_predictions` and `labels` as class indices, `class_names` and `files`.
    """
    check_format(path)
    suffix = Path(path).suffix
    with atomic_path(path) as temporary:
        if suffix == ARCHIVE:
            _write_npz(temporary, comparison)
        else:
            TABLE_WRITERS[suffix](temporary, _columns(comparison))


def _columns(comparison: Comparison) -> dict[str, Column]:
    adapted, zero_shot = comparison.results[-1], comparison.baseline
    names, labels = comparison.features.class_names, comparison.features.labels
    files = comparison.features.sample_names
    columns: dict[str, Column] = {
        "row": np.arange(comparison.features.n_samples),
        **({} if files is None else {"file": files}),
        "prediction": ByName(adapted.predictions, names),
        "probability": adapted.run.probabilities.max(axis=1),
        "zero_shot": ByName(zero_shot.predictions, names),
        "zero_shot_probability": zero_shot.run.probabilities.max(axis=1),
    }
    if labels is not None:
        columns["label"] = ByName(labels, names)
    return columns


def _write_npz(path: Path, comparison: Comparison) -> None:
    arrays: dict[str, Any] = {
        "probabilities": comparison.results[-1].run.probabilities,
        "predictions": comparison.results[-1].predictions,
        "zero_shot_predictions": comparison.baseline.predictions,
        "class_names": np.array(comparison.features.class_names, dtype=str),
    }
    if comparison.features.labels is not None:
        arrays["labels"] = comparison.features.labels
    if comparison.features.sample_names is not None:
        arrays["files"] = np.array(comparison.features.sample_names, dtype=str)
    # Through a handle: given a name, NumPy would put ".npz" behind the temporary one.
    with open(path, "wb") as handle:
        np.savez(handle, **arrays)

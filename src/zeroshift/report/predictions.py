"""Predictions as files: .csv for people and spreadsheets, .parquet for data frames, .npz with every probability."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from zeroshift.arrays import Array, to_numpy
from zeroshift.evaluate import Comparison
from zeroshift.files import atomic_path
from zeroshift.report.tables import csv_text, encodable, write_csv_rows

__all__ = [
    "ClassColumn",
    "PredictionColumn",
    "SecondsColumn",
    "check_predictions_format",
    "checked_files",
    "checked_reject",
    "write_csv",
    "write_parquet",
    "write_predictions",
]


class ClassColumn(NamedTuple):
    """Classes by index; the file has their names."""

    indices: np.ndarray
    names: Sequence[str]


class SecondsColumn(NamedTuple):
    """Times, to the millisecond in .csv whatever their size."""

    seconds: np.ndarray


PredictionColumn = ClassColumn | SecondsColumn | np.ndarray | Sequence[str]
"""Classes, times, numbers or texts, one per row."""


def write_csv(path: Path, columns: Mapping[str, PredictionColumn], *, raw: bool = False) -> None:
    """UTF-8, quoted as in RFC 4180, rows end with a line feed, numbers have six significant digits.

    Names are written as `zeroshift.report.tables.csv_text` does; with `raw`, as they are.
    """
    write = encodable if raw else csv_text
    with open(path, "w", encoding="utf-8", newline="") as handle:
        rows = zip(*(_cells(column, write) for column in columns.values()), strict=True)
        write_csv_rows(handle, chain([tuple(columns)], rows))


def _cells(column: PredictionColumn, write: Callable[[str], str]) -> Iterable[str]:
    if isinstance(column, ClassColumn):
        names = [write(name) for name in column.names]
        return (names[index] for index in column.indices)
    if isinstance(column, SecondsColumn):
        return (f"{seconds:.3f}" for seconds in column.seconds)
    if isinstance(column, np.ndarray):
        return (f"{value:.6g}" for value in column) if column.dtype.kind == "f" else map(str, column)
    return map(write, column)


def write_parquet(path: Path, columns: Mapping[str, PredictionColumn]) -> None:
    """Numbers at full precision; names of classes are stored once, readers see them as text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays = {}
    for name, column in columns.items():
        if isinstance(column, ClassColumn):
            names = pa.array(map(encodable, column.names), pa.string())
            arrays[name] = pa.DictionaryArray.from_arrays(pa.array(column.indices, pa.int32()), names)
        elif isinstance(column, SecondsColumn):
            arrays[name] = pa.array(column.seconds)
        elif isinstance(column, np.ndarray):
            arrays[name] = pa.array(column)
        else:
            arrays[name] = pa.array(map(encodable, column), pa.string())
    pq.write_table(pa.table(arrays), path)


SUFFIXES = (".csv", ".parquet", ".npz")


def check_predictions_format(path: str | os.PathLike[str]) -> None:
    """Refuse a file name `write_predictions` could not write to, before anything has been computed.

    >>> check_predictions_format("predictions.csv")
    """
    suffix = Path(path).suffix
    if suffix not in SUFFIXES:
        raise ValueError(
            f"predictions are written as {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}, by the file's suffix; "
            f"got {str(path)!r}. Fix: {os.fspath(path).removesuffix(suffix)}.csv."
        )
    if suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise ImportError(
            f"{path} needs pyarrow, which is not installed. Fix: pip install 'zeroshift[parquet]', or write a .csv."
        )


def write_predictions(
    path: str | os.PathLike[str],
    comparison: Comparison,
    reject: Array,
    *,
    raw_csv: bool = False,
    seconds: np.ndarray | None = None,
) -> None:
    """Write the predictions of the last method of a comparison and of its baseline; completely or not at all.

    .csv and .parquet have one row per sample with the columns `file` (`row` where samples have no names),
    `prediction`, `probability`, `zero_shot`, `zero_shot_probability`, `reject` and, where they are known, `label`, the
    true class, and after the names `time`, in seconds. Classes are names. CSV holds six significant digits and times to
    the millisecond, parquet all. .npz holds `probabilities` (N, K), `predictions`, `zero_shot_predictions` and `labels`
    as class indices, `reject`, `class_names`, `files` and `times`.

    Parameters
    ----------
    path : where to; a file of that name is replaced.
    comparison : zero-shot first and the method last.
    reject : (N,) scores; the higher, the less a sample is like any of the classes.
    raw_csv : write names to .csv as they are. By default, a name that a spreadsheet would compute as a formula gets an
        apostrophe before it, and control characters are spelled out.
    seconds : (N,) times of the samples, for frames of a video.

    Examples
    --------
    >>> import tempfile
    >>> from zeroshift import FeatureSet, OnlineADAPT, ZeroShot
    >>> from zeroshift.evaluate import compare
    >>> pets = FeatureSet(np.eye(2), prototypes=np.eye(2), class_names=["cat", "dog"], sample_names=["a.jpg", "b.jpg"])
    >>> comparison = compare(pets, [ZeroShot(np.eye(2)), OnlineADAPT(np.eye(2))])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_predictions(Path(folder) / "p.csv", comparison, np.array([0.25, 0.5]))
    ...     print((Path(folder) / "p.csv").read_text())
    file,prediction,probability,zero_shot,zero_shot_probability,reject
    a.jpg,cat,1,cat,1,0.25
    b.jpg,dog,1,dog,1,0.5
    """
    check_predictions_format(path)
    suffix, reject = Path(path).suffix, checked_reject(comparison, reject)
    with atomic_path(path) as temporary:
        if suffix == ".npz":
            _write_npz(temporary, comparison, reject, seconds)
        elif suffix == ".csv":
            write_csv(temporary, _columns(comparison, reject, seconds), raw=raw_csv)
        else:
            write_parquet(temporary, _columns(comparison, reject, seconds))


def _columns(comparison: Comparison, reject: np.ndarray, seconds: np.ndarray | None) -> dict[str, PredictionColumn]:
    adapted, zero_shot = comparison.results[-1], comparison.baseline
    names, labels = comparison.features.class_names, comparison.features.labels
    files = comparison.features.sample_names
    columns: dict[str, PredictionColumn] = {
        **({"row": np.arange(comparison.features.n_samples)} if files is None else {"file": files}),
        **({} if seconds is None else {"time": SecondsColumn(seconds)}),
        "prediction": ClassColumn(adapted.predictions, names),
        "probability": adapted.run.probabilities.max(axis=1),
        "zero_shot": ClassColumn(zero_shot.predictions, names),
        "zero_shot_probability": zero_shot.run.probabilities.max(axis=1),
        "reject": reject,
    }
    if labels is not None:
        columns["label"] = ClassColumn(labels, names)
    return columns


def _write_npz(path: Path, comparison: Comparison, reject: np.ndarray, seconds: np.ndarray | None) -> None:
    arrays: dict[str, Any] = {
        "probabilities": comparison.results[-1].run.probabilities,
        "predictions": comparison.results[-1].predictions,
        "zero_shot_predictions": comparison.baseline.predictions,
        "reject": reject,
        "class_names": np.array(comparison.features.class_names, dtype=str),
    }
    if comparison.features.labels is not None:
        arrays["labels"] = comparison.features.labels
    if comparison.features.sample_names is not None:
        arrays["files"] = np.array(comparison.features.sample_names, dtype=str)
    if seconds is not None:
        arrays["times"] = seconds
    # Through a handle: NumPy would add ".npz" to the temporary name.
    with open(path, "wb") as handle:
        np.savez(handle, **arrays)


def checked_files(comparison: Comparison) -> tuple[str, ...]:
    """The names of the images; an error where the set has none."""
    names = comparison.features.sample_names
    if names is None:
        raise ValueError(
            "comparison must be of a set whose images have names, and its sample_names is None. "
            "Fix: FeatureSet(..., sample_names=[one name per image])."
        )
    return names


def checked_reject(comparison: Comparison, reject: Array) -> np.ndarray:
    """The reject scores as an array; an error where they are not one finite number per image."""
    scores, n_samples = to_numpy(reject), comparison.features.n_samples
    if scores.shape != (n_samples,) or scores.dtype.kind != "f":
        raise ValueError(
            f"reject must be a vector of {n_samples} floating-point scores, one for each image; "
            f"got shape {scores.shape} of {scores.dtype}. Fix: score every image of the set, in its order."
        )
    faulty = ~np.isfinite(scores)
    if faulty.any():
        at = int(np.argmax(faulty))
        raise ValueError(f"reject must be finite; got {scores[at]} for image {at}. Fix: look at that image's feature.")
    return scores

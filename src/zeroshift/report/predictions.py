"""Predictions as files: .csv for people and spreadsheets, .parquet for data frames, .npz with every probability."""

from __future__ import annotations

import csv
import importlib.util
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from zeroshift.arrays import Array, to_numpy
from zeroshift.evaluate import Comparison
from zeroshift.files import atomic_path

__all__ = [
    "TABLE_WRITERS",
    "ClassColumn",
    "PredictionColumn",
    "check_classifications_format",
    "check_predictions_format",
    "check_suffix",
    "checked_files",
    "checked_reject",
    "encodable",
    "write_classifications",
    "write_csv",
    "write_parquet",
    "write_predictions",
]


class ClassColumn(NamedTuple):
    """Classes by index; the file has their names."""

    indices: np.ndarray
    names: Sequence[str]


PredictionColumn = ClassColumn | np.ndarray | Sequence[str]
"""Classes, numbers or texts, one per row."""


def check_suffix(path: str | os.PathLike[str], suffixes: Sequence[str]) -> None:
    """Refuse a file of predictions whose name does not end in one of `suffixes`, or whose format cannot be written.

    >>> check_suffix("predictions.csv", [".csv", ".parquet"])
    """
    suffix = Path(path).suffix
    if suffix not in suffixes:
        allowed = f"{', '.join(suffixes[:-1])} or {suffixes[-1]}"
        raise ValueError(
            f"predictions are written as {allowed}, by the file's suffix; got {str(path)!r}. "
            f"Fix: {Path(path).with_suffix('.csv')}."
        )
    if suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise ImportError(
            f"{path} needs pyarrow, which is not installed. Fix: pip install 'zeroshift[parquet]', or write a .csv."
        )


def encodable(text: str) -> str:
    r"""The text, with bytes that are not UTF-8 spelled out; names of old files may have some.

    >>> print(encodable("caf\udce9.jpg"))
    caf\udce9.jpg
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def write_csv(path: Path, columns: Mapping[str, PredictionColumn]) -> None:
    """UTF-8, quoted as in RFC 4180, rows end with a line feed, numbers have six significant digits."""
    with open(path, "w", encoding="utf-8", newline="") as handle:
        plain = csv.writer(handle, lineterminator="\n")
        quoted = csv.writer(handle, lineterminator="\n", quoting=csv.QUOTE_ALL)
        plain.writerow(columns)
        for row in zip(*map(_cells, columns.values()), strict=True):
            # Before Python 3.13 a carriage return is not quoted, and readers would start a new row at it.
            (quoted if any("\r" in cell for cell in row) else plain).writerow(row)


def _cells(column: PredictionColumn) -> Iterable[str]:
    if isinstance(column, ClassColumn):
        names = [encodable(name) for name in column.names]
        return (names[index] for index in column.indices)
    if isinstance(column, np.ndarray):
        return (f"{value:.6g}" for value in column) if column.dtype.kind == "f" else map(str, column)
    return map(encodable, column)


def write_parquet(path: Path, columns: Mapping[str, PredictionColumn]) -> None:
    """Numbers at full precision; names of classes are stored once, readers see them as text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays = {}
    for name, column in columns.items():
        if isinstance(column, ClassColumn):
            names = pa.array(map(encodable, column.names), pa.string())
            arrays[name] = pa.DictionaryArray.from_arrays(pa.array(column.indices, pa.int32()), names)
        elif isinstance(column, np.ndarray):
            arrays[name] = pa.array(column)
        else:
            arrays[name] = pa.array(map(encodable, column), pa.string())
    pq.write_table(pa.table(arrays), path)


TABLE_WRITERS: Mapping[str, Callable[[Path, Mapping[str, PredictionColumn]], None]] = {
    ".csv": write_csv,
    ".parquet": write_parquet,
}
"""How columns are written, by the file's suffix."""


ARCHIVE = ".npz"


def check_predictions_format(path: str | os.PathLike[str]) -> None:
    """Refuse a file name `write_predictions` could not write to, before anything has been computed."""
    check_suffix(path, [*TABLE_WRITERS, ARCHIVE])


def write_predictions(path: str | os.PathLike[str], comparison: Comparison) -> None:
    """Write the predictions of the last method of a comparison and of its baseline; completely or not at all.

    .csv and .parquet hold a row for each sample: `row`, where known `file`, `prediction`, `probability`, `zero_shot`,
    `zero_shot_probability` and, where known, `label`, classes by their names. .npz holds `probabilities` (N, K),
    `predictions`, `zero_shot_predictions` and `labels` as class indices, `class_names` and `files`.
    """
    check_predictions_format(path)
    suffix = Path(path).suffix
    with atomic_path(path) as temporary:
        if suffix == ARCHIVE:
            _write_npz(temporary, comparison)
        else:
            TABLE_WRITERS[suffix](temporary, _prediction_columns(comparison))


def _prediction_columns(comparison: Comparison) -> dict[str, PredictionColumn]:
    adapted, zero_shot = comparison.results[-1], comparison.baseline
    names, labels = comparison.features.class_names, comparison.features.labels
    files = comparison.features.sample_names
    columns: dict[str, PredictionColumn] = {
        "row": np.arange(comparison.features.n_samples),
        **({} if files is None else {"file": files}),
        "prediction": ClassColumn(adapted.predictions, names),
        "probability": adapted.run.probabilities.max(axis=1),
        "zero_shot": ClassColumn(zero_shot.predictions, names),
        "zero_shot_probability": zero_shot.run.probabilities.max(axis=1),
    }
    if labels is not None:
        columns["label"] = ClassColumn(labels, names)
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
    # Through a handle: NumPy would add ".npz" to the temporary name.
    with open(path, "wb") as handle:
        np.savez(handle, **arrays)


def check_classifications_format(path: str | os.PathLike[str]) -> None:
    """Refuse a file name `write_classifications` could not write to, before anything has been computed.

    >>> check_classifications_format("predictions.csv")
    """
    check_suffix(path, list(TABLE_WRITERS))


def write_classifications(path: str | os.PathLike[str], comparison: Comparison, reject: Array) -> None:
    """Write one row per image as .csv or .parquet, by the suffix of `path`; completely or not at all.

    The columns are `file`, `label`, `probability`, `zero_shot_label`, `zero_shot_probability`, `reject_score` and,
    where known, `true_label`. CSV holds six significant digits, parquet all.

    Parameters
    ----------
    path : where to; a file of that name is replaced.
    comparison : zero-shot first and the method last, on a set with `sample_names`.
    reject : (N,) scores; the higher, the less an image is like any of the classes.

    Examples
    --------
    >>> import tempfile
    >>> from zeroshift import FeatureSet, OnlineADAPT, ZeroShot
    >>> from zeroshift.evaluate import compare
    >>> pets = FeatureSet(np.eye(2), prototypes=np.eye(2), class_names=["cat", "dog"], sample_names=["a.jpg", "b.jpg"])
    >>> comparison = compare(pets, [ZeroShot(np.eye(2)), OnlineADAPT(np.eye(2))])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_classifications(Path(folder) / "p.csv", comparison, np.array([0.25, 0.5]))
    ...     print((Path(folder) / "p.csv").read_text())
    file,label,probability,zero_shot_label,zero_shot_probability,reject_score
    a.jpg,cat,1,cat,1,0.25
    b.jpg,dog,1,dog,1,0.5
    """
    check_classifications_format(path)
    columns = _classification_columns(comparison, reject)
    with atomic_path(path) as temporary:
        TABLE_WRITERS[Path(path).suffix](temporary, columns)


def _classification_columns(comparison: Comparison, reject: Array) -> dict[str, PredictionColumn]:
    adapted, zero_shot = comparison.results[-1], comparison.baseline
    names, labels = comparison.features.class_names, comparison.features.labels
    columns: dict[str, PredictionColumn] = {
        "file": checked_files(comparison),
        "label": ClassColumn(adapted.predictions, names),
        "probability": adapted.run.probabilities.max(axis=1),
        "zero_shot_label": ClassColumn(zero_shot.predictions, names),
        "zero_shot_probability": zero_shot.run.probabilities.max(axis=1),
        "reject_score": checked_reject(comparison, reject),
    }
    if labels is not None:
        columns["true_label"] = ClassColumn(labels, names)
    return columns


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

"""Predictions as files: .csv for people and spreadsheets, .parquet for data frames, .npz with every probability."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from zeroshift.evaluate import Comparison
from zeroshift.files import atomic_path
from zeroshift.installation import install_command
from zeroshift.parameters import Number
from zeroshift.reject import Rejects, rejected_label
from zeroshift.report.tables import csv_text, encodable, write_csv_rows
from zeroshift.zero_shot import class_columns

__all__ = [
    "ClassColumn",
    "PartialColumn",
    "PredictionColumn",
    "SecondsColumn",
    "check_predictions_format",
    "check_top_k",
    "checked_files",
    "checked_rejects",
    "final_classes",
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


class PartialColumn(NamedTuple):
    """Numbers, of which some are missing: empty in .csv, null in .parquet."""

    numbers: np.ndarray
    missing: np.ndarray


PredictionColumn = ClassColumn | SecondsColumn | PartialColumn | np.ndarray | Sequence[str]
"""Classes, times, numbers, truth values or texts, one per row."""


def write_csv(path: Path, columns: Mapping[str, PredictionColumn], *, raw: bool = False) -> None:
    """UTF-8, quoted as in RFC 4180, rows end with a line feed, numbers have six significant digits.

    Names are written as `zeroshift.report.tables.csv_text` does; with `raw`, as they are.
    """
    write = encodable if raw else csv_text
    with open(path, "w", encoding="utf-8", newline="") as handle:
        rows = zip(*(_cells(column, write) for column in columns.values()), strict=True)
        write_csv_rows(handle, chain([tuple(map(write, columns))], rows))


def _cells(column: PredictionColumn, write: Callable[[str], str]) -> Iterable[str]:
    if isinstance(column, ClassColumn):
        names = [write(name) for name in column.names]
        return (names[index] for index in column.indices)
    if isinstance(column, SecondsColumn):
        return (f"{seconds:.3f}" for seconds in column.seconds)
    if isinstance(column, PartialColumn):
        return ("" if gone else f"{value:.6g}" for value, gone in zip(column.numbers, column.missing, strict=True))
    if isinstance(column, np.ndarray):
        if column.dtype.kind == "b":
            return ("true" if value else "false" for value in column)
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
        elif isinstance(column, PartialColumn):
            arrays[name] = pa.array(column.numbers, mask=column.missing)
        elif isinstance(column, np.ndarray):
            arrays[name] = pa.array(column)
        else:
            arrays[name] = pa.array(map(encodable, column), pa.string())
    pq.write_table(pa.table(list(arrays.values()), names=list(map(encodable, arrays))), path)


SUFFIXES = (".csv", ".parquet", ".npz")


def check_predictions_format(path: str | os.PathLike[str]) -> None:
    """Refuse a file name `write_predictions` could not write to, before anything has been computed.

    >>> check_predictions_format("predictions.csv")
    """
    suffix = Path(path).suffix
    if suffix not in SUFFIXES:
        is_folder = os.path.isdir(path)
        fix = Path(path) / "predictions.csv" if is_folder else f"{os.fspath(path).removesuffix(suffix)}.csv"
        raise ValueError(
            f"predictions are written as {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}, by the file's suffix; "
            f"got {str(path)!r}{', which is a folder' if is_folder else ''}. Fix: {fix}."
        )
    if suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise ImportError(
            f"{path} needs pyarrow, which is not installed. Fix: {install_command('parquet')}, or write a .csv."
        )


def check_top_k(top_k: int, n_classes: int, name: str = "top_k") -> int:
    """The number of most probable classes to write; an error, which calls it `name`, if there are fewer classes."""
    number = int(Number(0, integer=True).check(name, top_k))
    if number > n_classes:
        raise ValueError(f"{name} must be at most {n_classes}, the number of classes; got {number}. Fix: {n_classes}.")
    return number


def write_predictions(
    path: str | os.PathLike[str],
    comparison: Comparison,
    rejects: Rejects,
    *,
    top_k: int = 0,
    per_class: bool = False,
    raw_csv: bool = False,
    seconds: np.ndarray | None = None,
) -> None:
    """Write the predictions of the last method of a comparison and of its baseline; completely or not at all.

    .csv and .parquet have one row per sample. Classes are names. CSV holds six significant digits and times to the
    millisecond, parquet all.

    - `file`, the name of the sample, or `row`, its number; `time` in seconds, where times are known
    - `prediction`: a class, or "none of these" for rejected samples
    - `probability` of the prediction; empty for rejected samples
    - `zero_shot`, `zero_shot_probability`: the same for the baseline, which rejects nothing
    - `reject`: the reject score, from 0 to 1; `rejected`: true or false
    - `best_class`, `best_probability`: the most probable class, also for rejected samples, if it had to be one of them
    - `label`: the true class, where it is known
    - `top_1`, `top_1_probability` and so on with `top_k`, and `p(CLASS)` for every class with `per_class`

    .npz holds `probabilities` (N, K), `predictions` as class indices, -1 for rejected samples, `best_classes`,
    `zero_shot_predictions`, `labels`, `reject`, `rejected`, `class_names`, `files` and `times`.

    Parameters
    ----------
    path : where to; a file of that name is replaced.
    comparison : zero-shot first and the method last.
    rejects : of the samples of the comparison.
    top_k : how many of the most probable classes are written, the most probable first.
    per_class : whether the probability of every class is written. .npz always has them.
    raw_csv : write names to .csv as they are. By default, a name that a spreadsheet would compute as a formula gets an
        apostrophe before it, and control characters are spelled out.
    seconds : (N,) times of the samples, for frames of a video.

    Examples
    --------
    >>> import tempfile
    >>> from zeroshift import FeatureSet, OnlineADAPT, ZeroShot
    >>> from zeroshift.evaluate import compare
    >>> from zeroshift.reject import class_distances
    >>> pets = FeatureSet(np.eye(2), prototypes=np.eye(2), class_names=["cat", "dog"], sample_names=["a.jpg", "b.jpg"])
    >>> comparison = compare(pets, [ZeroShot(np.eye(2)), OnlineADAPT(np.eye(2))])
    >>> rejects = Rejects.of(class_distances(pets.features, pets.prototypes_for()))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_predictions(Path(folder) / "p.csv", comparison, rejects)
    ...     print((Path(folder) / "p.csv").read_text())
    file,prediction,probability,zero_shot,zero_shot_probability,reject,rejected,best_class,best_probability
    a.jpg,cat,1,cat,1,0.05,false,cat,1
    b.jpg,dog,1,dog,1,0.05,false,dog,1
    """
    check_predictions_format(path)
    suffix, top_k = Path(path).suffix, check_top_k(top_k, comparison.features.n_classes)
    checked_rejects(comparison, rejects)
    with atomic_path(path) as temporary:
        if suffix == ".npz":
            _write_npz(temporary, comparison, rejects, seconds)
            return
        columns = _columns(comparison, rejects, seconds, top_k, per_class)
        if suffix == ".csv":
            write_csv(temporary, columns, raw=raw_csv)
        else:
            write_parquet(temporary, columns)


def final_classes(comparison: Comparison, rejects: Rejects) -> ClassColumn:
    """The classes that the last method predicts; rejected samples have one more, with a name of its own."""
    names = comparison.features.class_names
    best = comparison.results[-1].predictions
    return ClassColumn(np.where(rejects.rejected, len(names), best), (*names, rejected_label(names)))


def _columns(
    comparison: Comparison, rejects: Rejects, seconds: np.ndarray | None, top_k: int, per_class: bool
) -> dict[str, PredictionColumn]:
    adapted, zero_shot = comparison.results[-1], comparison.baseline
    names, labels = comparison.features.class_names, comparison.features.labels
    files, probabilities = comparison.features.sample_names, adapted.run.probabilities
    columns: dict[str, PredictionColumn] = {
        **({"row": np.arange(comparison.features.n_samples)} if files is None else {"file": files}),
        **({} if seconds is None else {"time": SecondsColumn(seconds)}),
        "prediction": final_classes(comparison, rejects),
        "probability": PartialColumn(probabilities.max(axis=1), rejects.rejected),
        "zero_shot": ClassColumn(zero_shot.predictions, names),
        "zero_shot_probability": zero_shot.run.probabilities.max(axis=1),
        "reject": rejects.scores,
        "rejected": rejects.rejected,
        "best_class": ClassColumn(adapted.predictions, names),
        "best_probability": probabilities.max(axis=1),
    }
    if labels is not None:
        columns["label"] = ClassColumn(labels, names)
    for name, column in class_columns(probabilities, names, top_k, per_class).items():
        columns[name] = ClassColumn(column, names) if column.dtype.kind == "i" else column
    return columns


def _write_npz(path: Path, comparison: Comparison, rejects: Rejects, seconds: np.ndarray | None) -> None:
    best = comparison.results[-1].predictions
    arrays: dict[str, Any] = {
        "probabilities": comparison.results[-1].run.probabilities,
        "predictions": np.where(rejects.rejected, -1, best),
        "best_classes": best,
        "zero_shot_predictions": comparison.baseline.predictions,
        "reject": rejects.scores,
        "rejected": rejects.rejected,
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


def checked_rejects(comparison: Comparison, rejects: Rejects) -> Rejects:
    """The argument; an error where it is not about as many samples as the comparison."""
    if not isinstance(rejects, Rejects):
        raise TypeError(
            f"rejects must be a zeroshift.reject.Rejects; got {type(rejects).__name__}. "
            "Fix: Rejects.of(class_distances(features, prototypes))."
        )
    n_samples = comparison.features.n_samples
    if rejects.scores.shape != (n_samples,) or rejects.rejected.shape != (n_samples,):
        raise ValueError(
            f"rejects must be about the {n_samples} samples of the comparison; got {len(rejects.scores)}. "
            "Fix: Rejects.of(...) of the whole set, in its order."
        )
    return rejects

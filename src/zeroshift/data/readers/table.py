"""Tables of image files, CSV or parquet: a column of paths and, optionally, one of labels."""

from __future__ import annotations

import csv
import io
import os
import posixpath
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from zeroshift.data.image_set import ImageSet, checked_names
from zeroshift.data.images import TRANSPARENCY, ImageFiles
from zeroshift.data.readers.folder import missing_files, parse_labels
from zeroshift.installation import install_command
from zeroshift.parsers import read_text
from zeroshift.suggest import did_you_mean

__all__ = ["LABEL_COLUMN", "PATH_COLUMNS", "TABLE_SUFFIXES", "read_table"]

PATH_COLUMNS = ("path", "file", "image", "filename")
"""Accepted names of the column of paths; the first one present is used."""
LABEL_COLUMN = "label"
TABLE_SUFFIXES = (".csv", ".parquet")


class TableRow(NamedTuple):
    """One image of a table."""

    location: str
    """File and line, for messages."""
    path: str
    label: str | None


def read_table(
    path: str | os.PathLike[str],
    root: str | os.PathLike[str] | None = None,
    classes: Sequence[str] | None = None,
    *,
    upright: bool = True,
    transparency: str = "white",
) -> ImageSet:
    """The images a table lists, in its order.

    Parameters
    ----------
    path : a .csv or .parquet file with a column `path` (or `file`, `image`, `filename`) and, optionally, a column
        `label`: class names, or numbers from 0 into `classes`.
    root : the folder the paths are relative to; by default, the folder of the table.
    classes : names of the classes; by default, the sorted labels.
    upright : rotate photographs as their EXIF orientation says.
    transparency : "white" or "black", what shows through transparent pixels; "drop" ignores transparency.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as top:
    ...     open(os.path.join(top, "a.jpg"), "w").close()
    ...     with open(os.path.join(top, "pets.csv"), "w") as handle:
    ...         _ = handle.write("file,label\\na.jpg,dog\\n")
    ...     pets = read_table(os.path.join(top, "pets.csv"), classes=("cat", "dog"))
    >>> pets.labels.tolist()
    [1]
    """
    table = Path(path)
    rows = _rows(table)
    folder = table.parent if root is None else Path(root)
    names = [_relative(row, folder) for row in rows]
    if missing := missing_files(folder, names):
        first = rows[names.index(missing[0])]
        message = (
            f"{first.location}: no file {first.path} in {folder}; {len(missing)} of {len(rows)} listed files are "
            "missing. Fix: pass root= (--data), the folder the paths are relative to, or restore the files."
        )
        absent = set(missing)
        rows = [row for row, name in zip(rows, names, strict=True) if name not in absent]
        names = [name for name in names if name not in absent]
        if not names:
            raise FileNotFoundError(message)
        warnings.warn(f"skipped: {message}", stacklevel=2)
    labels = None
    if rows[0].label is not None:
        texts = [row.label or "" for row in rows]
        fix = "correct the label, or the list of classes"
        classes, labels = parse_labels(texts, classes, lambda i: rows[i].location, fix)
    return ImageSet(
        name=table.stem,
        images=ImageFiles(folder, tuple(names), upright, TRANSPARENCY.check("transparency", transparency)),
        class_names=None if classes is None else checked_names("classes", classes),
        labels=labels,
        provenance={"source": "table", "images": len(names), "upright": upright, "transparency": transparency},
    )


def _relative(row: TableRow, folder: Path) -> str:
    """The row's path relative to `folder`: an absolute path would be wrong on another machine."""
    path = row.path
    if os.path.isabs(path):
        relative = os.path.relpath(path, os.path.abspath(folder))
        if relative.startswith(os.pardir):
            raise ValueError(
                f"{row.location}: {path} is not inside {folder}. Fix: pass root= (--data), a folder that "
                "contains all paths, or write them relative to the table."
            )
        path = relative
    return posixpath.normpath(path.replace(os.sep, "/"))


def _rows(table: Path) -> list[TableRow]:
    suffix = table.suffix.lower()
    if suffix not in TABLE_SUFFIXES:
        raise ValueError(f"a table of images is a .csv or .parquet file; got {str(table)!r}. Fix: save it as .csv.")
    if not table.is_file():
        raise FileNotFoundError(f"no table at {table}. Fix: check the path.")
    header, records = _read_csv(table) if suffix == ".csv" else _read_parquet(table)
    names = [column.strip().lower() for column in header]
    path_column = next((names.index(name) for name in PATH_COLUMNS if name in names), None)
    if path_column is None:
        guess = next(filter(None, (did_you_mean(name, PATH_COLUMNS) for name in names)), "")
        raise ValueError(
            f"{table}, line 1: no column of paths; it must be called {', '.join(PATH_COLUMNS)}; got "
            f"{', '.join(map(repr, header)) or 'none'}. {guess}Fix: rename the column, or add a first line with names."
        )
    label_column = names.index(LABEL_COLUMN) if LABEL_COLUMN in names else None
    rows = []
    for location, values in records:
        label = None if label_column is None else values[label_column].strip()
        row = TableRow(location, values[path_column].strip(), label)
        if not row.path:
            warnings.warn(f"skipped: {location}: the path is empty", stacklevel=3)
            continue
        if label == "":
            raise ValueError(f"{location}: the label is empty. Fix: fill it in, delete the line, or remove the column.")
        rows.append(row)
    if not rows:
        raise ValueError(f"{table} lists no images. Fix: add a line for each, below the names of the columns.")
    return rows


Records = list[tuple[str, list[str]]]
"""The location of each row, and its values."""


def _read_csv(table: Path) -> tuple[list[str], Records]:
    records: Records = []
    reader = csv.reader(io.StringIO(read_text(table), newline=""))
    try:
        header = next(reader, [])
        for values in filter(None, reader):
            location = f"{table}, line {reader.line_num}"
            if len(values) == len(header) + 1 and not values[-1].strip():
                warnings.warn(f"{location} ends with a comma too many, which is skipped", stacklevel=4)
                values = values[:-1]
            if len(values) != len(header):
                raise ValueError(
                    f"{location}: {len(values)} values for {len(header)} columns. Fix: put values that contain "
                    "commas in quotation marks."
                )
            records.append((location, values))
    except csv.Error as error:
        raise ValueError(f"{table}, line {reader.line_num}: {error}. Fix: save it as CSV UTF-8.") from error
    return header, records


def _read_parquet(table: Path) -> tuple[list[str], Records]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ImportError(
            f"{table} needs pyarrow, which is not installed. Fix: {install_command('parquet')}, or save it as .csv."
        ) from error
    try:
        read = pq.read_table(table)
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"{table} is not a readable parquet file ({error}). Fix: write it again.") from error
    columns = [["" if value is None else str(value) for value in column.to_pylist()] for column in read.columns]
    rows = zip(*columns, strict=True)
    return list(read.column_names), [(f"{table}, row {number}", list(row)) for number, row in enumerate(rows)]

"""Features in many files. Only the rows that are asked for are read, so nothing ever holds all of them."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from zeroshift.distributed.folders import Folder, file_system, import_optional, is_url, open_file
from zeroshift.files import FileFormatError
from zeroshift.parsers import read_array_header

__all__ = ["FeatureShards", "Shard", "ShardChangedError", "ShardError"]

SUFFIXES = (".npy", ".parquet", ".safetensors")
SAFETENSORS_TYPES = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}
MOST_HEADER_BYTES = 32 * 2**20
VERSION_FIELDS = (
    "size", "mtime", "created", "updated", "last_modified", "LastModified", "etag", "ETag", "md5Hash", "crc32c",
)  # fmt: skip
"""What file systems of fsspec call the size, the time of the last change, and checksums."""

OPENED_TOGETHER = 16
"""Headers read at the same time: on a remote file system each takes a while."""


class ShardError(ValueError):
    """A shard that cannot be used, or some rows of one. `path` names it, and `rows` has the numbers of these rows."""

    def __init__(self, path: str, reason: str, rows: Sequence[int] = ()) -> None:
        super().__init__(f"the shard {path} cannot be used: {reason}")
        self.path, self.reason, self.rows = path, reason, tuple(rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return ShardError, (self.path, self.reason, self.rows)


class ShardChangedError(ValueError):
    """A shard that has other content than earlier in the same run."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"the shard {path} was replaced or written again during the run, so its answers would be about other "
            "rows than those that were learned. Fix: run again when nothing writes to the shards; the run then begins "
            "from its beginning."
        )
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return ShardChangedError, (self.path,)


@dataclass(frozen=True)
class Shard:
    """A file with features (rows, dimension)."""

    path: str
    rows: int
    """Without those that are left out."""
    dimension: int
    dtype: str
    start: int = 0
    """Byte at which the numbers begin; 0 in a parquet file."""
    column: str = ""
    """Of a parquet file."""
    version: str = ""
    """Size and time of the file when it was opened, and its checksum if the file system has one: a file that is written
    again is another shard."""
    left_out: tuple[int, ...] = ()
    """Numbers, in the file, of rows that cannot be used, in ascending order."""

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name

    @property
    def bytes(self) -> int:
        return self.rows * self.dimension * np.dtype(self.dtype).itemsize

    @property
    def rows_in_file(self) -> int:
        return self.rows + len(self.left_out)

    def numbers(self, start: int, stop: int) -> np.ndarray:
        """The numbers of these rows in the file, where the rows that are left out are counted too.

        >>> Shard("a.npy", rows=4, dimension=8, dtype="<f4", left_out=(0, 3)).numbers(0, 4)
        array([1, 2, 4, 5])
        """
        rows = np.arange(start, stop)
        before = np.asarray(self.left_out, np.int64) - np.arange(len(self.left_out))  # rows that are kept before each
        return rows + np.searchsorted(before, rows, side="right")

    def read(self, start: int, stop: int) -> np.ndarray:
        """These rows. Of a local file of numbers they are memory-mapped; of others, only they are loaded.

        A file that was written again since the shard was opened is an error.
        """
        try:
            if self.version and _version(self.path) != self.version:
                raise ShardChangedError(self.path)
            numbers = self.numbers(start, stop)
            if self.column:
                return self._read_parquet(numbers)
            rows = self._read_numbers(int(numbers[0]), int(numbers[-1]) + 1)
            return rows if len(rows) == len(numbers) else rows[numbers - numbers[0]]
        except (ShardError, ShardChangedError):
            raise
        except Exception as error:  # whatever the file system or the format raises
            raise ShardError(self.path, f"{type(error).__name__}: {error}") from error

    def _read_numbers(self, start: int, stop: int) -> np.ndarray:
        row_bytes = self.dimension * np.dtype(self.dtype).itemsize
        first, last, shape = self.start + start * row_bytes, self.start + stop * row_bytes, (stop - start, -1)
        if is_url(self.path):
            content = file_system(self.path).cat_file(self.path, start=first, end=last)
            return np.frombuffer(content, self.dtype).reshape(shape)
        with open_file(self.path) as handle:
            return np.memmap(handle, self.dtype, "r", first, (stop - start, self.dimension)).view(np.ndarray)

    def _read_parquet(self, numbers: np.ndarray) -> np.ndarray:
        column = read_parquet_rows(self.path, [self.column], numbers).column(0).combine_chunks()
        self._check_lists(column, numbers)
        return np.asarray(column.flatten().to_numpy(zero_copy_only=False)).reshape(-1, self.dimension)

    def _check_lists(self, part: Any, numbers: np.ndarray) -> None:
        """Refuse lists, of the rows with these numbers, that are missing or are not as long as the others."""
        lengths = part.value_lengths().fill_null(-1).to_numpy(zero_copy_only=False)
        wrong = np.flatnonzero(lengths != self.dimension)
        if len(wrong):
            length = int(lengths[wrong[0]])
            what = "is null" if length < 0 else f"has {length} numbers, not {self.dimension}"
            raise ShardError(
                self.path, f"row {numbers[wrong[0]]} {what}. Fix: drop the row or recompute its features.",
                numbers[wrong].tolist(),
            )  # fmt: skip


@dataclass(frozen=True)
class FeatureShards:
    """Shards of one set, in order.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(f"{folder}/img_emb_0.npy", np.eye(3, 8, dtype=np.float16))
    ...     shards = FeatureShards.open(folder)
    >>> shards.rows, shards.dimension
    (3, 8)
    """

    shards: tuple[Shard, ...]
    skipped: tuple[ShardError, ...] = ()
    """Files that could not be used, with `on_error="skip"`."""

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, column: str | None = None, on_error: str = "raise") -> FeatureShards:
        """The shards at `path`: a file, a folder of .npy, .parquet or .safetensors files, or a folder in the layout of
        clip-retrieval (`img_emb/img_emb_*.npy`); on this machine or an fsspec URL (`s3://...`).

        Only headers are read. `column` names the embeddings in parquet files; by default the only list of numbers.
        `on_error="skip"` leaves out files that cannot be used, and lists them in `skipped`.
        """
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error must be 'raise' or 'skip'; got {on_error!r}. Fix: on_error='skip'.")
        source = Folder.of(path).path
        files = list_files(f"{source.rstrip('/')}/img_emb", (".npy",)) or list_files(source, SUFFIXES)
        if not files:
            raise FileNotFoundError(
                f"no shards at {source}: a file or a folder with {', '.join(SUFFIXES)} files, or with a folder img_emb "
                "of .npy files, is needed. Fix: check the path."
            )

        def header(file: str) -> Shard | ShardError:
            try:
                return replace(_read_header(file, column), version=_version(file))
            except ShardError as error:
                return error
            except Exception as error:  # whatever the file system or the format raises
                return ShardError(file, f"{type(error).__name__}: {error}")

        with ThreadPoolExecutor(OPENED_TOGETHER) as threads:
            found = list(threads.map(header, files))
        good = [one for one in found if isinstance(one, Shard)]
        bad = [one for one in found if isinstance(one, ShardError)]
        if good:
            usual = good[0].dimension
            wrong = [one for one in good if one.dimension != usual]
            bad += [ShardError(one.path, f"it has {one.dimension} columns, others {usual}") for one in wrong]
            good = [one for one in good if one.dimension == usual and one.rows]
        if bad and (on_error == "raise" or not good):
            raise bad[0]
        if not good:
            raise ValueError(f"the shards at {source} have no rows. Fix: check the path.")
        return cls(tuple(good), tuple(bad))

    @property
    def rows(self) -> int:
        return sum(shard.rows for shard in self.shards)

    @property
    def dimension(self) -> int:
        return self.shards[0].dimension

    @property
    def bytes(self) -> int:
        return sum(shard.bytes for shard in self.shards)

    def first_rows(self, count: int) -> np.ndarray:
        """The first rows, as many as there are up to `count`."""
        parts, left = [], count
        for shard in self.shards:
            parts.append(shard.read(0, min(left, shard.rows)))
            left -= len(parts[-1])
            if not left:
                break
        return np.concatenate(parts)

    def without(self, errors: Sequence[ShardError]) -> FeatureShards:
        """Without the rows that these errors name, or the whole shard where they name none."""
        whole = {error.path for error in errors if not error.rows}
        rows: dict[str, set[int]] = {}
        for error in errors:
            rows.setdefault(error.path, set()).update(error.rows)
        kept = []
        for shard in self.shards:
            left_out = tuple(sorted({*shard.left_out, *rows.get(shard.path, ())}))
            if shard.path not in whole and len(left_out) < shard.rows_in_file:
                kept.append(replace(shard, rows=shard.rows_in_file - len(left_out), left_out=left_out))
        if not kept:
            raise ValueError(f"none of {len(self.shards)} shards can be used; the first error: {errors[0]}")
        return FeatureShards(tuple(kept), self.skipped)


def list_files(source: str, suffixes: tuple[str, ...]) -> list[str]:
    """The file itself, or those with these suffixes in a folder, in natural order; none if there is nothing."""
    if is_url(source):
        system = file_system(source)
        system.invalidate_cache()  # files may have been written again since they were listed
        prefix = source.split("://")[0] + "://"

        def is_folder(path: str) -> bool:
            return bool(system.isdir(path))

        def names(path: str) -> list[str]:
            return [prefix + str(one).removeprefix(prefix) for one in system.ls(path, detail=False)]

        exists: Callable[[str], bool] = system.exists
    else:
        exists = os.path.exists

        def is_folder(path: str) -> bool:
            return os.path.isdir(path)

        def names(path: str) -> list[str]:
            return [os.path.join(path, name) for name in os.listdir(path)]

    if not exists(source):
        return []
    if not is_folder(source):
        return [source]
    return sorted((one for one in names(source) if one.endswith(suffixes)), key=_natural)


def _natural(path: str) -> list[Any]:
    """Sorts img_emb_2 before img_emb_10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path)]


def _version(path: str) -> str:
    if not is_url(path):
        found = os.stat(path)
        return f"{found.st_size} {found.st_mtime_ns}"
    info = file_system(path).info(path)
    return " ".join(f"{name}={info[name]}" for name in VERSION_FIELDS if info.get(name) is not None)


def read_parquet_rows(path: str, columns: Sequence[str], numbers: np.ndarray) -> Any:
    """A table of these columns, of the rows with these ascending numbers; only the row groups with them are read."""
    parquet = import_optional("pyarrow.parquet", "parquet")
    with open_file(path) as handle:
        file = parquet.ParquetFile(handle)
        sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        ends = np.cumsum(sizes)
        first, last = np.searchsorted(ends, numbers[[0, -1]], side="right")
        table = file.read_row_groups(list(range(first, last + 1)), columns=list(columns))
    at = numbers - (ends[first] - sizes[first])
    table = table.slice(at[0], at[-1] + 1 - at[0])
    return table if table.num_rows == len(at) else table.take(at - at[0])


def _read_header(path: str, column: str | None) -> Shard:
    if path.endswith(".parquet"):
        return _parquet_header(path, column)
    with open_file(path) as handle:
        if path.endswith(".npy"):
            try:
                shape, fortran, dtype = read_array_header(handle, path)
            except FileFormatError as error:
                raise ShardError(path, str(error).removeprefix(f"{path} ")) from error
            if fortran and len(shape) == 2 and min(shape) > 1:
                raise ShardError(path, "its numbers are stored by column. Fix: np.ascontiguousarray.")
            start = handle.tell()
        elif path.endswith(".safetensors"):
            length = int.from_bytes(handle.read(8), "little")
            if not 2 <= length <= MOST_HEADER_BYTES:
                raise ShardError(path, "it is no safetensors file")
            tensors = json.loads(handle.read(length))
            if "features" not in tensors or tensors["features"]["dtype"] not in SAFETENSORS_TYPES:
                raise ShardError(path, "it has no array `features` of float16, float32 or float64")
            shape, dtype = tensors["features"]["shape"], np.dtype(SAFETENSORS_TYPES[tensors["features"]["dtype"]])
            first, last = tensors["features"]["data_offsets"]
            if last - first != math.prod(shape) * dtype.itemsize:
                raise ShardError(path, f"its header declares {last - first} bytes for {dtype} of shape {tuple(shape)}")
            start = 8 + length + first
        else:
            raise ShardError(path, f"its suffix is none of {', '.join(SUFFIXES)}")
        size = handle.seek(0, os.SEEK_END)
    if len(shape) != 2 or dtype.kind != "f":
        raise ShardError(path, f"features must be a matrix of floats; got {dtype} of shape {tuple(shape)}")
    shard = Shard(path, int(shape[0]), int(shape[1]), dtype.str, start)
    if size < start + shard.bytes:
        raise ShardError(path, f"it is truncated: {size} bytes instead of {start + shard.bytes}. Fix: copy it again.")
    if path.endswith(".npy") and size > start + shard.bytes:
        raise ShardError(
            path, f"it has {size} bytes, but its header declares {shard.rows} rows, which take {start + shard.bytes}. "
            "Fix: write it again."
        )  # fmt: skip
    return shard


def _parquet_header(path: str, column: str | None) -> Shard:
    arrow, parquet = import_optional("pyarrow", "parquet"), import_optional("pyarrow.parquet", "parquet")
    with open_file(path) as handle:
        file = parquet.ParquetFile(handle)
        schema, rows = file.schema_arrow, file.metadata.num_rows
        lists = [
            one.name
            for one in schema
            if any(
                check(one.type)
                for check in (arrow.types.is_fixed_size_list, arrow.types.is_list, arrow.types.is_large_list)
            )
            and arrow.types.is_floating(one.type.value_type)
        ]
        if column is None and len(lists) != 1:
            found = ", ".join(lists) or "none"
            raise ShardError(path, f"which column has the embeddings? Lists of numbers: {found}. Fix: column=...")
        name = column or lists[0]
        if name not in lists:
            raise ShardError(path, f"no column {name!r} with lists of floats. Fix: one of {', '.join(lists)}")
        kind = schema.field(name).type
        if arrow.types.is_fixed_size_list(kind):
            dimension = kind.list_size
        else:
            batches = (batch.column(0) for batch in file.iter_batches(columns=[name]))
            dimension = next((len(one) for lists in batches for one in lists.drop_null()), 0)
            if rows and not dimension:
                raise ShardError(path, f"all rows of column {name!r} are null or empty. Fix: --column (column=)")
        dtype = np.dtype(kind.value_type.to_pandas_dtype()).str
    return Shard(path, rows, dimension, dtype, column=name)

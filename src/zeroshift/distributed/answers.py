"""What is written about the rows of shards, and the files that it is written to."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from io import BytesIO
from itertools import groupby
from typing import Any

import numpy as np

from zeroshift.arrays import Array, check_labels, to_numpy
from zeroshift.distributed.folders import Folder, import_optional, open_file
from zeroshift.distributed.shards import OPENED_TOGETHER, FeatureShards, Shard, ShardError, read_parquet_rows
from zeroshift.files import FileFormatError, has_valid_checksum, with_checksum
from zeroshift.method import Method
from zeroshift.parsers import parse_json
from zeroshift.reject import RejectRule, class_distances, rejected_label
from zeroshift.zero_shot import class_columns

__all__ = [
    "PROGRESS",
    "RECORD",
    "AnswerOptions",
    "Answers",
    "FinishedRunError",
    "Predictions",
    "RowAnswers",
    "Totals",
    "damaged_file",
]

PROGRESS = ".progress"
"""Folder in the output folder with what an interrupted run continues from."""

RECORD = ".predictions.json"
"""File in the output folder that says which run wrote `predictions`, and the names of its files."""

TOTALS = b"zeroshift"
"""Name of the totals in the metadata of a parquet file."""

CLASSES = re.compile(r"prediction|zero_shot|best_class|label|top_\d+")
"""Columns with classes."""

WRITTEN = re.compile(
    rf"{CLASSES.pattern}|shard|row|probability|zero_shot_probability|reject|rejected|best_probability"
    r"|top_\d+_probability|p\(.*\)"
)
"""Columns that metadata may not replace."""


class FinishedRunError(FileExistsError):
    """The predictions that are asked for are all there."""


def damaged_file(folder: Folder, fix: str) -> FileFormatError:
    return FileFormatError(f"{folder} is damaged: its checksum does not match its content. Fix: {fix}.")


@dataclass(frozen=True)
class AnswerOptions:
    """What is written about each row in addition to its prediction."""

    top_k: int = 0
    """How many of the most probable classes."""
    per_class: bool = False
    """Whether the probability of every class."""
    reject_above: float | None = None
    """Rows with a higher reject score, from 0 to 1, are "none of these"; None to find no rejects."""
    labels: np.ndarray | None = None
    """(N,) classes of all rows, in the order of the shards; may be memory-mapped."""
    metadata: tuple[str, ...] = ()
    """Columns of the metadata to copy: of `metadata/metadata_N.parquet`, or of the shard itself if it is parquet."""

    def check(self, method: Method, shards: FeatureShards) -> None:
        """Refuse what these shards and classes cannot give, before anything is computed."""
        if not 0 <= self.top_k <= method.n_classes:
            raise ValueError(
                f"top_k (--top-k) must be at most {method.n_classes}, the number of classes; got {self.top_k}. "
                f"Fix: {method.n_classes}."
            )
        if self.labels is not None:
            if shards.skipped:
                raise ValueError(
                    f"labels (--labels) belong to all rows, but how many {shards.skipped[0].path} has is not known. "
                    "Fix: repair that file, or leave out the labels."
                )
            check_labels("labels", self.labels, rows=shards.rows, classes=method.n_classes)
        for name in self.metadata:
            if WRITTEN.fullmatch(name) and (name != "label" or self.labels is not None):
                raise ValueError(f"metadata (--metadata) {name} is a column of the predictions too. Fix: leave it out.")
        if self.metadata:
            with ThreadPoolExecutor(OPENED_TOGETHER) as threads:
                list(threads.map(self._check_metadata, shards.shards))

    def describe(self, totals: Totals) -> dict[str, Any]:
        """The totals that these options give, None for others."""
        labelled = self.labels is not None
        return {
            "answered": totals.rows,
            "rejected": None if self.reject_above is None else totals.rejected,
            "accuracy": totals.correct / max(totals.rows, 1) if labelled else None,
            "zero_shot_accuracy": totals.zero_shot_correct / max(totals.rows, 1) if labelled else None,
        }

    def _check_metadata(self, shard: Shard) -> None:
        """Refuse metadata of other rows, and without the columns."""
        parquet = import_optional("pyarrow.parquet", "parquet")
        path = metadata_of(shard)
        try:
            with open_file(path) as handle:
                file = parquet.ParquetFile(handle)
                rows, names = file.metadata.num_rows, file.schema_arrow.names
        except Exception as error:  # whatever the file system or the format raises
            raise ShardError(shard.path, f"its metadata, {path}, cannot be read ({error})") from error
        if rows != shard.rows_in_file:
            raise ShardError(shard.path, f"its metadata, {path}, has {rows} rows instead of {shard.rows_in_file}")
        if missing := sorted(set(self.metadata) - set(names)):
            raise ShardError(
                shard.path, f"its metadata, {path}, has no column {missing[0]!r}. Fix: one of {', '.join(names)}."
            )


def metadata_of(shard: Shard) -> str:
    """The file with the metadata of a shard.

    >>> metadata_of(Shard("set/img_emb/img_emb_7.npy", rows=4, dimension=8, dtype="<f4"))
    'set/metadata/metadata_7.parquet'
    """
    return re.sub(r"img_emb/img_emb_(\d+)\.npy$", r"metadata/metadata_\1.parquet", shard.path)


@dataclass(frozen=True)
class RowAnswers:
    """The answers for some rows of a shard: the columns of a file of predictions, with classes as indices."""

    shard: Shard
    numbers: np.ndarray
    """Of the rows, in the file of the shard."""
    columns: dict[str, np.ndarray]


@dataclass
class Totals:
    """Counts over the rows of files of predictions."""

    rows: int = 0
    rejected: int = 0
    correct: int = 0
    """Of the best classes, also of rejected rows."""
    zero_shot_correct: int = 0

    @classmethod
    def of(cls, columns: dict[str, np.ndarray]) -> Totals:
        totals = cls(len(columns["prediction"]), int(np.count_nonzero(columns.get("rejected", 0))))
        if "label" in columns:
            best = columns.get("best_class", columns["prediction"])
            totals.correct = int(np.count_nonzero(best == columns["label"]))
            totals.zero_shot_correct = int(np.count_nonzero(columns["zero_shot"] == columns["label"]))
        return totals

    @classmethod
    def read(cls, folder: Folder, names: Iterable[str]) -> Totals:
        """The sums over files, from what is written in their footers."""
        parquet = import_optional("pyarrow.parquet", "parquet")
        sums = cls()
        for name in names:
            with open_file((folder / name).path) as handle:
                written = parquet.read_metadata(handle).metadata or {}
            for count, value in json.loads(written.get(TOTALS, b"{}")).items():
                setattr(sums, count, getattr(sums, count) + value)
        return sums


@dataclass(frozen=True)
class Answers:
    """Makes the columns of predictions, and writes them; sent to workers."""

    options: AnswerOptions = field(default_factory=AnswerOptions)
    """Without the labels, which are sent with the rows that they belong to."""
    class_names: tuple[str, ...] | None = None
    rule: RejectRule | None = None
    """From where on rows are rejected; found before anything is written."""

    def of_rows(
        self, answer: Array, zero_shot: Method, rows: np.ndarray, shard: Shard, numbers: np.ndarray
    ) -> RowAnswers:
        """The columns for rows of a shard, from their probabilities."""
        probabilities, base = to_numpy(answer), to_numpy(zero_shot.predict(rows))
        best, top = probabilities.argmax(axis=1), probabilities.max(axis=1)
        columns = {"prediction": best, "probability": top, "zero_shot": base.argmax(axis=1)}
        if self.rule is not None and self.options.reject_above is not None:
            distances = class_distances(rows, zero_shot.prototypes)
            rejected = self.rule.rejected(distances, above=self.options.reject_above)
            columns |= {
                "prediction": np.where(rejected, -1, best), "reject": self.rule.scores(distances),
                "rejected": rejected, "best_class": best, "best_probability": top,
            }  # fmt: skip
        names = self.class_names or tuple(map(str, range(probabilities.shape[1])))
        columns |= class_columns(probabilities, names, self.options.top_k, self.options.per_class)
        return RowAnswers(shard, numbers, columns)

    def write(self, folder: Folder, name: str, parts: Sequence[RowAnswers]) -> None:
        """Write a file of predictions. Its footer has the totals of its rows."""
        pyarrow, parquet = import_optional("pyarrow", "parquet"), import_optional("pyarrow.parquet", "parquet")
        columns = {
            name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns
        }  # fmt: skip
        shards = [part.shard.name for part in parts for _ in part.numbers]
        table = {
            "shard": pyarrow.array(shards, pyarrow.string()).dictionary_encode(),
            "row": np.concatenate([part.numbers for part in parts]),
            **self._metadata(parts),
            **{name: self._stored(name, columns) for name in columns},
        }
        content, totals = BytesIO(), json.dumps(vars(Totals.of(columns)))
        parquet.write_table(pyarrow.table(table).replace_schema_metadata({TOTALS: totals}), content)
        folder.write(name, content.getvalue())

    def _stored(self, name: str, columns: dict[str, np.ndarray]) -> Any:
        """A column as it is written: classes by their names, and no probability of a rejected prediction."""
        pyarrow = import_optional("pyarrow", "parquet")
        if CLASSES.fullmatch(name) and self.class_names is not None:
            names = pyarrow.array([*self.class_names, rejected_label(self.class_names)])
            return names.take(pyarrow.array(columns[name] % len(names)))  # -1 is the last one
        if name == "probability" and "rejected" in columns:
            return pyarrow.array(columns[name], mask=columns["rejected"])
        return columns[name]

    def _metadata(self, parts: Sequence[RowAnswers]) -> dict[str, Any]:
        if not self.options.metadata:
            return {}
        pyarrow = import_optional("pyarrow", "parquet")
        tables = []
        for shard, same in groupby(parts, lambda part: part.shard):
            numbers = np.concatenate([part.numbers for part in same])
            tables.append(read_parquet_rows(metadata_of(shard), self.options.metadata, numbers))
        table = pyarrow.concat_tables(tables)
        return {name: table[name] for name in self.options.metadata}


@dataclass(frozen=True)
class Predictions:
    """The files that a run writes to `out/predictions`. Files that no run recorded are never deleted.

    `run` is the key of what the user asked for. A run that did not finish continues if it is asked for again; other
    files are in its way, and `force` allows to replace those that are recorded.
    """

    out: Folder
    run: str
    force: bool = False

    @property
    def folder(self) -> Folder:
        return self.out / "predictions"

    def _record(self) -> dict[str, Any]:
        content = self.out.read(RECORD)
        if content is None:
            return {"run": "", "key": "", "finished": False, "files": []}
        try:
            record = parse_json(content, self.out / RECORD)
            if not isinstance(record, dict) or not has_valid_checksum(record):
                raise FileFormatError("its checksum differs")
        except FileFormatError as error:
            raise damaged_file(self.out / RECORD, "move it and the predictions, or another --out (out=)") from error
        return record

    def check(self, names: Iterable[str]) -> None:
        """Refuse to write files with these names if others are in the way."""
        record = self._record()
        present = {name for name in self.folder.names() if name.endswith(".parquet")}
        recorded = present & set(record["files"])
        if taken := sorted((present - recorded) & set(names)):
            raise FileExistsError(
                f"{self.folder} has {taken[0]}, which no run recorded as its own and this one would replace. "
                "Fix: move it, or another --out (out=)."
            )
        if self.force or not present:
            return
        if other := sorted(present - recorded):
            raise FileExistsError(
                f"{self.folder} has files that zeroshift did not record as its own, such as {other[0]}. Fix: another "
                "--out (out=), or --force (force=True), which keeps them next to the predictions."
            )
        if record["run"] != self.run:
            raise FileExistsError(
                f"{self.folder} has the predictions of another run ({len(recorded):,} files). Fix: --force "
                "(force=True) to replace them, or another --out (out=)."
            )
        if record["finished"]:
            (self.out / PROGRESS).remove_all()  # its driver may have been killed before it did
            raise FinishedRunError(
                f"{self.folder} has the predictions of this run, which is finished ({len(recorded):,} files). Fix: "
                "nothing needs to be done; --force (force=True) to run it again."
            )

    def begin(self, key: str, names: Iterable[str]) -> set[str]:
        """Record the files that will be written, and delete those of other runs. Returns the files that are there
        already, if they were written with the same key."""
        record, names = self._record(), list(names)
        self.check(names)
        present = set(self.folder.names())
        if (record["run"], record["key"], record["finished"]) == (self.run, key, False):
            return present
        for old in present & set(record["files"]):
            self.folder.remove(old)
        self._write(key, names, finished=False)
        return set()

    def totals(self) -> Totals:
        """Of the files of this run."""
        return Totals.read(self.folder, set(self._record()["files"]) & set(self.folder.names()))

    def finish(self) -> None:
        record = self._record()
        self._write(record["key"], record["files"], finished=True)
        (self.out / PROGRESS).remove_all()

    def _write(self, key: str, names: list[str], *, finished: bool) -> None:
        record = {"run": self.run, "key": key, "finished": finished, "files": names}
        self.out.write(RECORD, json.dumps(with_checksum(record)).encode())

"""`zeroshift adapt` for features in many files: a plan, passes over the shards, and predictions in as many files."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from zeroshift.cli._encoder_options import AUTO, check_on
from zeroshift.cli._inputs import check_exists, is_pack, split_names
from zeroshift.cli._method_options import MethodOptions
from zeroshift.cli._output_paths import check_outputs, check_packages, check_space, claim
from zeroshift.cli._prediction_options import parse_reject_above
from zeroshift.cli._prediction_summary import format_scale
from zeroshift.cli.console import console, print_json, print_warning
from zeroshift.cli.progress import ProgressBar, progress_bar
from zeroshift.data.images import is_image
from zeroshift.data.readers.folder import is_folder, visible_entries
from zeroshift.distributed import FeatureShards, Plan, adapt, follow_shards, plan
from zeroshift.distributed.adaptation import (
    TASK_ROWS,
    Result,
    check_arguments,
    check_learns_in_passes,
    describe_skipped,
)
from zeroshift.distributed.answers import AnswerOptions, FinishedRunError
from zeroshift.distributed.folders import Folder, file_system, is_url
from zeroshift.distributed.replicas import EVERY, check_online_out
from zeroshift.encode.prompts import parse_class_names
from zeroshift.encode.sharded import ABOUT
from zeroshift.method import Method
from zeroshift.mixture.online import OnlineAnchoredMixture
from zeroshift.parameters import Choice, Number
from zeroshift.parsers import parse_json, parse_npy, read_npy
from zeroshift.report.formatting import counted, duration, file_size, percent, significant
from zeroshift.report.tables import ReportTable, summary_table

__all__ = [
    "Column",
    "DryRun",
    "Exact",
    "ExchangeEvery",
    "FitRows",
    "Metadata",
    "OnBadShard",
    "Replicas",
    "ShardOptions",
    "ShardProgress",
    "TaskRows",
    "is_sharded",
]

PANEL = "Features in many files"

FitRows = Annotated[
    float | None,
    typer.Option(
        "--fit-rows", metavar="NUMBER",
        help="Rows of the random samples that most rounds are over: a share up to 1, or a number. The first three "
        "rounds and the last one are over all rows.",
        show_default="all, up to 2,000,000", rich_help_panel=PANEL,
    ),
]  # fmt: skip
Exact = Annotated[bool, typer.Option("--exact", help="Every round over all rows.", rich_help_panel=PANEL)]
TaskRows = Annotated[
    int | None,
    typer.Option("--task-rows", metavar="N", help="Rows per task.", show_default=f"{TASK_ROWS}", rich_help_panel=PANEL),
]
OnBadShard = Annotated[
    str,
    typer.Option(
        "--on-bad-shard", metavar="raise|skip",
        help="What to do with files that cannot be read, and with rows that cannot be used (NaN, zero).",
        rich_help_panel=PANEL,
    ),
]  # fmt: skip
Column = Annotated[
    str | None,
    typer.Option(
        "--column", metavar="NAME", help="Column of the embeddings in .parquet files.",
        show_default="the only list of numbers", rich_help_panel=PANEL,
    ),
]  # fmt: skip
Metadata = Annotated[
    str | None,
    typer.Option(
        "--metadata", metavar="NAMES",
        help="Columns of the metadata to copy to the predictions, with commas: image_path,caption.",
        rich_help_panel=PANEL,
    ),
]  # fmt: skip
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Print the plan with an estimate of the time, and do nothing.", rich_help_panel=PANEL
    ),
]

Replicas = Annotated[
    int | None,
    typer.Option(
        "--replicas", metavar="N", help="Online: replicas, each of which follows its own shards.",
        show_default="4", rich_help_panel=PANEL,
    ),
]  # fmt: skip
ExchangeEvery = Annotated[
    int | None,
    typer.Option(
        "--exchange-every", metavar="N",
        help="Online: samples of each replica after which they exchange what they learned.",
        show_default=f"{EVERY}", rich_help_panel=PANEL,
    ),
]  # fmt: skip

DEFAULT_REPLICAS = 4
"""Not the number of workers: it changes the answers, and they must not depend on the machine."""

ROW_BYTES = 16
"""Of predictions: a class and two probabilities, compressed."""

LOG_SECONDS = 10.0
"""Where no bar can be drawn, time between two lines."""


def is_sharded(source: str) -> bool:
    """Whether features are in a folder, or at an address of fsspec."""
    return not is_pack(source) and (is_url(source) or os.path.isdir(source))


def _prepare(out: str) -> None:
    """Refuse an output folder that cannot be written, or that another command writes to, and missing packages."""
    check_packages(("pyarrow", "parquet"))
    if is_url(out):
        file_system(out)
    else:
        check_outputs(folders=[Path(out)])
        claim(Path(out, "predictions"))


@dataclass(frozen=True)
class ShardOptions:
    """The options of `adapt` that are for features in many files."""

    on: str | None
    fit_rows: float | None
    exact: bool
    task_rows: int | None
    on_bad_shard: str
    column: str | None
    replicas: int | None
    exchange_every: int | None
    metadata: str | None
    dry_run: bool

    def __post_init__(self) -> None:
        check_on(self.on)
        if self.task_rows is not None:
            Number(1, integer=True).check("--task-rows", self.task_rows)
        if self.fit_rows is not None:
            Number(0, above=True).check("--fit-rows", self.fit_rows)
            if self.exact:
                raise ValueError("--fit-rows and --exact contradict each other. Fix: leave out one of them.")
        for option, value in (("--replicas", self.replicas), ("--exchange-every", self.exchange_every)):
            if value is not None:
                Number(1, integer=True).check(option, value)
        Choice(("raise", "skip")).check("--on-bad-shard", self.on_bad_shard)

    @property
    def are_given(self) -> bool:
        return self != ShardOptions(None, None, False, None, "raise", None, None, None, None, False)

    def run(self, source: str, out: str, chosen: MethodOptions, *, json: bool, quiet: bool, **given: Any) -> None:
        """Adapt to the shards at `source` and write the predictions to the folder `out`; `given` is as for `_run`."""
        try:
            self._run(source, out, chosen, json=json, quiet=quiet, **given)
        except FinishedRunError as finished:
            if json:
                print_json({"result": {"finished": True, "out": out}})
            elif not quiet:
                console().print(str(finished), soft_wrap=True, markup=False, highlight=False)

    def _run(
        self,
        source: str,
        out: str,
        chosen: MethodOptions,
        *,
        prototypes: Path | None,
        logit_scale: float | None,
        classes: str | None,
        normalize: bool,
        device: str,
        json: bool,
        quiet: bool,
        force: bool,
        labels: Path | None,
        reject_above: str | None,
        top_k: int | None,
        per_class: bool,
        others: dict[str, object],
    ) -> None:
        if not is_sharded(source):
            if not is_pack(source):
                check_exists(source)
            settings = {
                "--on": self.on, "--dry-run": self.dry_run, "--fit-rows": self.fit_rows, "--exact": self.exact,
                "--task-rows": self.task_rows, "--on-bad-shard": self.on_bad_shard != "raise", "--column": self.column,
                "--replicas": self.replicas, "--exchange-every": self.exchange_every, "--metadata": self.metadata,
            }  # fmt: skip
            named = [option for option, value in settings.items() if value]
            raise ValueError(
                f"{' and '.join(named)} need{'s' * (len(named) == 1)} a folder or URL of features; got {source}. "
                "Fix: leave out such options, or name the folder."
            )
        if not is_url(source) and _has_images(Path(source)):
            raise ValueError(
                f"{source} is a folder of images, and adapt takes features. Fix: zeroshift classify {source}; or "
                "zeroshift extract, and adapt what it writes."
            )
        refused = [option for option, given in others.items() if given]
        if refused:
            raise ValueError(f"{refused[0]} cannot be used with features in many files. Fix: leave it out.")
        online = issubclass(chosen.info.cls, OnlineAnchoredMixture)
        if not online:
            check_learns_in_passes(chosen.info.cls)
        only = {"--fit-rows": self.fit_rows, "--exact": self.exact, "--task-rows": self.task_rows}
        if not online:
            only = {"--replicas": self.replicas, "--exchange-every": self.exchange_every}
        for option, given in only.items():
            if given:
                raise ValueError(
                    f"{option} is not for {chosen.info.name}, which is {chosen.info.protocol}. Fix: leave it out."
                )
        if Path(out).suffix and not is_url(out):
            raise ValueError(
                f"--out must be a folder for features in many files; got {out}. Fix: --out {Path(out).with_suffix('')}."
            )
        _prepare(out)
        text, about = _classes_of(source, prototypes)
        scale = about.get("logit_scale") if logit_scale is None else logit_scale
        method = chosen.info.cls(text, **{**({} if scale is None else {"logit_scale": scale}), **chosen.parameters})
        names = about.get("class_names") if classes is None else parse_class_names(classes, "--classes")
        if names is not None and len(names) != len(text):
            raise ValueError(
                f"--classes {classes} has {len(names)} names, but {prototypes or source} has {len(text)} prototypes. "
                "Fix: one name per prototype, in their order."
            )
        scale_used = {
            "logit_scale": float(getattr(method, "logit_scale", 100.0)),
            "logit_scale_assumed": scale is None and "logit_scale" not in chosen.parameters,
        }
        scale_text = format_scale(scale_used["logit_scale"], assumed=bool(scale_used["logit_scale_assumed"]))
        shards = FeatureShards.open(source, column=self.column, on_error=self.on_bad_shard)
        if not is_url(out):
            check_space(Path(out), shards.rows * ROW_BYTES)
        for error in shards.skipped:
            print_warning(f"skipped: {error}")
        if top_k is not None:
            Number(1, integer=True).check("--top-k", top_k)
        answers = AnswerOptions(
            top_k=top_k or 0,
            per_class=per_class,
            reject_above=None if reject_above is None else parse_reject_above(reject_above),
            labels=None if labels is None else read_npy(labels, mapped=True),
            metadata=tuple(split_names(self.metadata)),
        )
        if isinstance(method, OnlineAnchoredMixture):
            self._follow(
                method,
                shards,
                out,
                names,
                answers,
                scale_used,
                scale_text,
                normalize=normalize,
                json=json,
                quiet=quiet,
                force=force,
            )
            return
        how: dict[str, Any] = {
            "on": self.on or "local",
            "fit_rows": self.fit_rows,
            "exact": self.exact,
            "task_rows": self.task_rows or TASK_ROWS,
            "device": None if device == AUTO else device,
            "out": out,
            "class_names": names,
            "normalize": normalize,
            "on_bad_shard": self.on_bad_shard,
            "force": force,
            "answers": answers,
        }
        planned = plan(method, shards, **how, probe=not quiet or json)
        if self.dry_run:
            if json:
                print_json({"plan": asdict(planned), **scale_used})
            else:
                console().print(plan_table(source, planned, scale_text))
            return
        if not quiet and not json:
            console(stderr=True).print(plan_table(source, planned, scale_text))
        with ShardProgress(quiet=quiet) as progress:
            note = None if quiet else partial(typer.echo, err=True)
            result = adapt(method, shards, **how, progress=progress, note=note)
        _warn_of_skipped(result.skipped_rows, result.reasons, known=len(shards.skipped))
        if json:
            print_json({"plan": asdict(planned), "result": asdict(result), **scale_used})
        elif not quiet:
            console().print(_result_table(method, result, scale_text))

    def _follow(
        self,
        method: OnlineAnchoredMixture,
        shards: FeatureShards,
        out: str,
        names: Sequence[str] | None,
        answers: AnswerOptions,
        scale_used: dict[str, Any],
        scale_text: str,
        *,
        normalize: bool,
        json: bool,
        quiet: bool,
        force: bool,
    ) -> None:
        """The online mixture, in replicas."""
        replicas, every = self.replicas or DEFAULT_REPLICAS, self.exchange_every or EVERY
        check_arguments(method, shards, names, self.on_bad_shard, answers)
        files = check_online_out(method, shards, out, replicas, every, names, normalize, force, answers)
        used = min(replicas, len(shards.shards))
        planned = {
            "shards": len(shards.shards), "rows": shards.rows, "bytes": shards.bytes, "replicas": replicas,
            "replicas_with_shards": used, "exchange_every": every,
        }  # fmt: skip
        size = f"{shards.rows:,} rows in {counted(len(shards.shards), 'shard')}, {file_size(shards.bytes)}"
        some = f"{replicas}" if used == replicas else f"{used} of {replicas} replicas have shards"
        exchange = f"{some}, which exchange sums every {every:,} samples"
        entries = {"features": size, "logit scale": scale_text, "replicas": exchange}
        if self.dry_run:
            if json:
                print_json({"plan": planned, **scale_used})
            else:
                console().print(summary_table(entries))
            return
        began = time.monotonic()
        with ShardProgress(quiet=quiet) as progress:
            bad = follow_shards(
                method, shards, replicas=replicas, every=every, on=self.on or "local", out=out,
                class_names=names, normalize=normalize, on_bad_shard=self.on_bad_shard, progress=progress,
                force=force, answers=answers,
            )  # fmt: skip
        seconds = time.monotonic() - began
        skipped, skipped_rows, reasons = describe_skipped([*shards.skipped, *bad])
        _warn_of_skipped(skipped_rows, reasons, known=len(shards.skipped))
        assert files is not None
        found = answers.describe(files.predictions.totals())
        if json:
            result = {
                "rows": method.n_seen, "seconds": seconds, "skipped": skipped, "skipped_rows": skipped_rows,
                "reasons": reasons, **found, "out": out,
            }  # fmt: skip
            print_json({"plan": planned, "result": result, **scale_used})
        elif not quiet:
            entries["seconds"] = f"{seconds:,.1f} ({method.n_seen / max(seconds, 1e-9):,.0f} rows/s)"
            entries |= {"method": method.name, **_found_entries(found), "predictions": f"{out}/predictions"}
            console().print(summary_table(entries))


def _has_images(folder: Path) -> bool:
    """Whether image files are in a folder or, if there are only subfolders, in one of these."""
    entries = visible_entries(folder)
    if not all(map(is_folder, entries)):
        return any(is_image(entry.name) for entry in entries)
    return any(is_image(entry.name) for inner in entries for entry in visible_entries(folder / inner.name))


def _classes_of(source: str, prototypes: Path | None) -> tuple[np.ndarray, dict[str, Any]]:
    """The prototypes, and what `zeroshift extract` has written about those in the folder of the features."""
    if prototypes is not None:
        return np.asarray(read_npy(prototypes)), {}
    folder = Folder.of(source)
    content, about = folder.read("prototypes.npy"), folder.read(ABOUT)
    if content is None:
        raise ValueError(
            f"{source} has features in many files, which hold no prototypes. Fix: --prototypes FILE, the text "
            "features of the classes as (K, d) .npy."
        )
    return (
        parse_npy(content, folder / "prototypes.npy"),
        {} if about is None else parse_json(about, folder / ABOUT),
    )


def plan_table(source: str, planned: Plan, scale: str) -> ReportTable:
    samples = planned.most_rounds - planned.whole_rounds
    rounds = f"at most {planned.most_rounds} over all rows"
    if samples:
        rounds = f"at most {planned.whole_rounds} over all rows and {samples} over samples of {planned.fit_rows:,}"
    entries = {
        "features": f"{planned.rows:,} rows in {counted(planned.shards, 'shard')}, {file_size(planned.bytes)}",
        "logit scale": scale,
        "rounds": f"{rounds}, then a pass that answers",
        "read": f"at most {file_size(planned.most_bytes_read)} ({source})",
        "tasks": f"{planned.tasks:,} per round, for {counted(planned.workers, 'worker')}",
        "memory": f"{file_size(planned.memory_per_worker)} per worker, beyond Python and its libraries",
    }
    if planned.seconds is not None:
        entries["time"] = f"about {duration(planned.seconds)}, without starting processes, from a probe on this machine"
    return summary_table(entries)


def _result_table(method: Method, result: Result, scale: str) -> ReportTable:
    sampled = f", with samples of {result.fit_rows:,}" if result.fit_rows < result.rows else ""
    entries = {
        "method": method.name,
        "logit scale": scale,
        "rows": f"{result.rows:,}" + sampled,
        "rounds": str(result.rounds),
        "seconds": f"{result.seconds:,.1f}",
        "predictions": f"{result.out}/predictions",
    }
    entries |= _found_entries(asdict(result))
    skipped = [counted(len(result.skipped), "shard")] if result.skipped else []
    skipped += [counted(sum(result.skipped_rows.values()), "row")] if result.skipped_rows else []
    if skipped:
        entries["skipped"] = " and ".join(skipped)
    return summary_table(entries)


def _found_entries(found: Mapping[str, Any]) -> dict[str, str]:
    """What is known about the predictions: accuracies if there are labels, and how many are rejected."""
    entries = {}
    if found["accuracy"] is not None:
        entries["accuracy"] = f"{percent(found['accuracy'])}%"
        entries["zero-shot"] = f"{percent(found['zero_shot_accuracy'])}%"
    if found["rejected"] is not None:
        entries["rejected"] = f"{found['rejected']:,} of {found['answered']:,}"
    return entries


SHOWN_SKIPPED = 5
"""Shards with skipped rows that are named in warnings."""


def _warn_of_skipped(rows: Mapping[str, int], reasons: Mapping[str, str], *, known: int) -> None:
    """What was left out, and why; the user knows the first reasons already."""
    named = list(reasons.items())[known:]
    for path, reason in named[:SHOWN_SKIPPED]:
        what = f"{counted(rows[path], 'row')} of {path}" if path in rows else f"the shard {path}"
        print_warning(f"skipped: {what}: {reason}")
    if len(named) > SHOWN_SKIPPED:
        more = sum(rows.get(path, 0) for path, _ in named[SHOWN_SKIPPED:])
        print_warning(
            f"skipped: {counted(more, 'row')} in {counted(len(named) - SHOWN_SKIPPED, 'more shard')}, or all of these"
        )


class ShardProgress:
    """One bar per pass, with rows per second and time left; without a terminal, lines."""

    def __init__(self, *, quiet: bool, unit: str = "rows") -> None:
        self._quiet, self._unit = quiet, unit
        self._lines = not quiet and not console(stderr=True).is_terminal
        self._what, self._done = "", 0
        self._began = self._printed = 0.0
        self._first = 0
        self._stack = ExitStack()
        self._bar: ProgressBar | None = None

    def __enter__(self) -> ShardProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __call__(self, what: str, rows: int, total: int) -> None:
        now = time.monotonic()
        if what != self._what:
            self._stack.close()
            self._bar = self._stack.enter_context(progress_bar(what, total, quiet=self._quiet, unit=self._unit))
            self._what, self._done, self._began, self._printed = what, 0, now, now
            self._first = rows
        assert self._bar is not None
        self._bar(rows - self._done, what)
        self._done = rows
        if self._lines and (rows >= total or now - self._printed > LOG_SECONDS):
            self._printed = now
            rate = (rows - self._first) / max(now - self._began, 1e-9)
            speed = (
                f", {significant(rate)} {self._unit}/s, {duration((total - rows) / rate)} left"
                if rate and rows < total
                else ""
            )
            typer.echo(f"{what}: {rows:,} of {total:,} {self._unit}{speed}", err=True)

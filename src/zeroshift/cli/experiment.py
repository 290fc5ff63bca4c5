"""`zeroshift experiment`: the paper's experiments by name, on packs, feature files or data sets on the disk."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zeroshift.benchmarks.machine import machine
from zeroshift.cli import _encoder_options as options
from zeroshift.cli._inputs import is_pack
from zeroshift.cli._output_paths import check_folder, check_writable
from zeroshift.cli.console import console, print_json, print_warning
from zeroshift.cli.progress import RunLog, progress_bar, told_apart
from zeroshift.evaluate import Job, JobOutcome, Ledger
from zeroshift.experiments import Chapter, Experiment, Investigation, Suite, get, list_experiments
from zeroshift.parameters import Number
from zeroshift.report.formatting import counted

if TYPE_CHECKING:
    pass

__all__ = [
    "FEATURES",
    "RUNS",
    "Outputs",
    "chosen_experiments",
    "experiment",
    "print_experiments",
    "processes",
    "retyped",
    "run_investigation",
]


# Which experiments `zeroshift experiment` does, and the command that does them again.


ALL = "all"


def chosen_experiments(names: str | None, sources: Sequence[str]) -> list[Experiment]:
    """Those named, each once, in the order of the registry for `all`; what reads as a slip is answered as one."""
    known = {experiment.name for experiment in list_experiments()}
    wanted = [name.strip() for name in (names or "").split(",") if name.strip()]
    if not wanted:
        raise ValueError("no experiment is named. Fix: zeroshift experiment all, or see zeroshift experiment list.")
    beside = [source for source in sources if (source in known or source == ALL) and not os.path.exists(source)]
    if beside:
        raise ValueError(
            f"no file at {beside[0]}; an experiment is called so. Fix: a list with commas, {names},{','.join(beside)}."
        )
    (first, *others) = wanted
    if not others and first not in known and first != ALL and (is_pack(first) or os.path.exists(first)):
        raise ValueError(
            f"{first} is no experiment but {'a pack' if is_pack(first) else 'a file or folder'}; the experiment comes "
            f"first. Fix: zeroshift experiment all {shlex.quote(first)}."
        )
    for name, count in Counter(wanted).items():
        if count > 1:
            print_warning(f"{name} is named {count} times; it counts once")
    if ALL in wanted and (beside := [name for name in dict.fromkeys(wanted) if name in known]):
        print_warning(f"{ALL} holds {', '.join(beside)} too; it counts once")
    chosen: list[Experiment] = []
    for name in wanted:
        chosen += list_experiments() if name == ALL else [get(name)]
    return list({experiment.name: experiment for experiment in chosen}.values())


def retyped(given: Mapping[str | None, Any]) -> str:
    """A command line that a reader can type, from options by name and, under None, arguments.

    >>> retyped({None: ["ablation", "my set.npz"], "--packs": None, "--normalize": True, "--encoder": ["composed"]})
    "zeroshift experiment ablation 'my set.npz' --normalize --encoder composed"
    """
    words = ["zeroshift", "experiment"]
    for option, value in given.items():
        for one in value if isinstance(value, list) else [value]:
            if one is True and option is not None:
                words.append(option)
            elif isinstance(one, (str, int, Path)) and one is not False:
                words += [str(one)] if option is None else [option, str(one)]
    return shlex.join(words)


# `zeroshift experiment list`: every experiment, what it asks and where the paper has it.


def print_experiments(*, as_json: bool) -> None:
    listed = list_experiments()
    if as_json:
        fields = ("name", "title", "question", "where")
        print_json([{**{f: getattr(e, f) for f in fields}, "paper_tables": list(e.tables)} for e in listed])
        return
    from zeroshift.report.listings import experiments_table

    screen = console()
    screen.print(experiments_table(listed))
    screen.print("Do one with: zeroshift experiment NAME; all of them with: zeroshift experiment all", style="dim")


# The loop of `zeroshift experiment`: work that is not recorded yet, with a bar or in a log a line a run; findings.


RUNS = "runs"
"""Folder of the records."""

MOST_PROCESSES = 4
"""Unless told otherwise: each holds a set in memory."""


def processes(jobs: int | None) -> int:
    """As many as were asked for, or as there are cores."""
    if jobs is None:
        return min(MOST_PROCESSES, os.cpu_count() or 1)
    return int(Number(1, integer=True).check("--jobs", jobs))


def run_investigation(
    investigation: Investigation, ledger: Ledger, *, jobs: int, again: bool, quiet: bool
) -> list[JobOutcome[Job]]:
    """Do what is missing."""
    outcomes: list[JobOutcome[Job]] = []
    total = len(investigation.jobs)
    names = told_apart(investigation.jobs)
    log = RunLog(total, quiet=quiet, names=names)
    try:
        with progress_bar("experiments", total, quiet=quiet, unit="runs") as advance:
            runs = investigation.run(ledger, processes=jobs, again=again, notes={"machine": machine()})
            # Closed at once when something goes wrong, so that no process is left running.
            with closing(runs):
                for outcome in runs:
                    outcomes.append(outcome)
                    log.add(outcome)
                    advance(1, names[outcome.job.key])
    except KeyboardInterrupt:
        kept = sum(outcome.record is not None for outcome in outcomes)
        where = f"{kept} of {counted(total, 'run')} are recorded in {ledger.folder}; the same command goes on"
        print_warning(where if kept else f"none of {counted(total, 'run')} is recorded yet")
        raise
    log.end()
    for path in ledger.damaged:
        print_warning(f"{path} held no record that can be read; its run was done again")
    return outcomes


# What `zeroshift experiment` writes: looked at before anything is run, written at the end.


REPORT = "report.html"
FEATURES = "features"


@dataclass(frozen=True)
class Outputs:
    out: Path
    figures: Path | None = None
    markdown: Path | None = None
    latex: Path | None = None
    csv: Path | None = None

    @property
    def report(self) -> Path:
        return self.out / REPORT

    def check(self) -> None:
        """Refuse what could not be written, and files of others. Nothing is left behind."""
        from zeroshift.report.experiments.markdown import check_markdown
        from zeroshift.report.html import is_report

        # os.path takes a name too long for one that is not there; the folder is tried below.
        if os.path.exists(self.report) and (self.report.is_dir() or not is_report(self.report)):
            raise FileExistsError(f"{self.report} exists and is not a report of zeroshift. Fix: --out another folder.")
        if self.markdown is not None:
            check_markdown(self.markdown)
            check_writable(self.markdown)
        _try_folder(self.out, [self.report])
        for inside in ("runs", FEATURES):
            if os.path.exists(self.out / inside):
                check_folder(self.out / inside, [self.out / inside / "any.json"])
        for folder in (self.figures, self.latex, self.csv):
            if folder is not None:
                _try_folder(folder, [folder / "any.csv"])

    def write(self, chapters: Sequence[Chapter], suite: Suite, *, command: str, quiet: bool) -> list[Path]:
        """Everything that was asked for, the report in any case."""
        from zeroshift.benchmarks.machine import machine
        from zeroshift.report.experiments.figures import write_figures
        from zeroshift.report.experiments.markdown import write_markdown
        from zeroshift.report.experiments.page import write_page
        from zeroshift.report.experiments.tables import write_csv, write_latex

        screen = console(stderr=True)
        screen.quiet = quiet
        written: list[Path] = []
        pictures: dict[str, Path] = {}
        self.out.mkdir(parents=True, exist_ok=True)
        if not quiet and not screen.is_terminal:
            typer.echo("drawing the report", err=True)
        with screen.status("drawing the report"):
            if self.figures is not None:
                drawn = _unless_none("figures", self.figures, write_figures, chapters)
                pictures = {path.stem: path for path in drawn if path.suffix == ".svg"}
                written += drawn
            zero_shot = {member.name: member.dataset.load().zero_shot_accuracy() for member in suite.members}
            write_page(self.report, chapters, suite, command=command, machine=machine(), zero_shot=zero_shot)
            if self.markdown is not None:
                seen = {name: _seen_from(self.markdown, path) for name, path in pictures.items()}
                write_markdown(self.markdown, chapters, suite, command=command, figures=seen or None)
                written.append(self.markdown)
            if self.latex is not None:
                written += _unless_none("tables", self.latex, write_latex, chapters)
            if self.csv is not None:
                written += _unless_none("findings with numbers", self.csv, write_csv, chapters)
        return [*written, self.report]

    def record(self, chapters: Sequence[Chapter], suite: Suite) -> dict[str, Any]:
        from zeroshift.report.experiments.tables import chapters_record

        return {**chapters_record(chapters, suite), "out": str(self.out), "report": str(self.report)}

    def show(self, chapters: Sequence[Chapter], written: Sequence[Path], *, paper: bool) -> None:
        """Tables, and where files are: each that was asked for by name, of folders how many."""
        from zeroshift.report.experiments.tables import print_chapters
        from zeroshift.report.formatting import counted

        screen = console()
        print_chapters(screen, chapters, width=screen.width, paper=paper)
        for folder in (self.figures, self.latex, self.csv):
            count = sum(path.parent == folder for path in written)
            if folder is not None and count:
                screen.print(f"written: {counted(count, 'file')} in {folder}", soft_wrap=True)
        if self.markdown is not None:
            screen.print(f"written: {self.markdown}", soft_wrap=True)
        screen.print(f"report: {self.report}", soft_wrap=True)


def _try_folder(folder: Path, files: Sequence[Path]) -> None:
    """As `check_folder`; what it had to make is removed again."""
    missing = [place for place in (folder, *folder.parents) if not os.path.exists(place)]
    try:
        check_folder(folder, files)
    finally:
        _remove_empty(missing)


def _remove_empty(folders: Sequence[Path]) -> None:
    for folder in folders:
        with suppress(OSError):  # not made, or no longer empty
            folder.rmdir()


def _unless_none(what: str, folder: Path, write: Callable[..., list[Path]], chapters: Sequence[Chapter]) -> list[Path]:
    """Files in a folder; where there is nothing to write, no empty one is left, and a line says so."""
    missing = [place for place in (folder, *folder.parents) if not os.path.exists(place)]
    written = write(folder, chapters)
    if not written:
        _remove_empty(missing)
        print_warning(f"there are no {what}, so nothing is written to {folder}")
    return written


def _seen_from(document: Path, picture: Path) -> Path:
    """The way from a document to a picture, so that both can be moved together."""
    return Path(os.path.relpath(picture.resolve(), document.resolve().parent))


DATA_PANEL = "Data sets on the disk"
SHOWN_PANEL = "What is written"

LIST = "list"


def experiment(
    names: Annotated[
        str | None, typer.Argument(metavar="NAME,...|all", help="Experiments; list shows them.", show_default=False)
    ] = None,
    features: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FEATURES]...",
            help="Labelled feature files, folders of them, or pack:NAME.",
            show_default="the bundled packs",
        ),
    ] = None,
    packs: Annotated[str | None, typer.Option(metavar="NAME,...", help="Bundled packs, or all without views.")] = None,
    normalize: Annotated[bool, typer.Option("--normalize", help="Scale rows of files to unit length first.")] = False,
    orders: Annotated[int, typer.Option(help="Random orders of the stream, or draws of samples.")] = 3,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for records, features and report.html.")] = Path(
        "zeroshift-experiments"
    ),
    jobs: Annotated[
        int | None,
        typer.Option(help="Processes; runs that are timed are done alone.", show_default="the cores, at most 4"),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Do also the runs that are recorded.")] = False,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="ROOT",
            help="Folder the data sets lie below: see `zeroshift data check`.",
            rich_help_panel=DATA_PANEL,
        ),
    ] = None,
    data_sets: Annotated[
        str | None,
        typer.Option(metavar="ID,...", help="Of those.", show_default="all found", rich_help_panel=DATA_PANEL),
    ] = None,
    severities: Annotated[
        str | None,
        typer.Option(metavar="N,...", help="Of ImageNet-C.", show_default="all found", rich_help_panel=DATA_PANEL),
    ] = None,
    encoder: Annotated[
        list[str] | None,
        typer.Option(
            "--encoder",
            "-e",
            help="See `zeroshift encoders`; several times to set them side by side.",
            show_default="openai/clip-vit-base-patch16",
            rich_help_panel=DATA_PANEL,
        ),
    ] = None,
    prompts: Annotated[
        str | None,
        typer.Option(
            metavar="MODE,...",
            help="See `zeroshift prompts`; the first is what methods start from.",
            show_default="ensemble,vanilla,clip_template",
            rich_help_panel=DATA_PANEL,
        ),
    ] = None,
    descriptions: Annotated[
        Path | None,
        typer.Option(
            help="JSON file of sentences by class name, or a folder with the files of several data sets.",
            rich_help_panel=DATA_PANEL,
        ),
    ] = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    batch_size: options.BatchSize = None,
    workers: options.Workers = None,
    cache: options.Cache = None,
    no_cache: options.NoCache = False,
    figures: Annotated[
        Path | None, typer.Option(help="Folder for the figures, as SVG and PNG.", rich_help_panel=SHOWN_PANEL)
    ] = None,
    markdown: Annotated[Path | None, typer.Option(help="File for all of it.", rich_help_panel=SHOWN_PANEL)] = None,
    latex: Annotated[Path | None, typer.Option(help="Folder, a file a table.", rich_help_panel=SHOWN_PANEL)] = None,
    csv: Annotated[Path | None, typer.Option(help="Folder, a file a finding.", rich_help_panel=SHOWN_PANEL)] = None,
    paper: Annotated[
        bool, typer.Option("--paper", help="Print the paper's own tables too.", rich_help_panel=SHOWN_PANEL)
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print everything as JSON.", rich_help_panel=SHOWN_PANEL)
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress and no tables.", rich_help_panel=SHOWN_PANEL)
    ] = False,
    open_report: Annotated[bool, typer.Option("--open", help="Open the report.", rich_help_panel=SHOWN_PANEL)] = False,
    list_them: Annotated[bool, typer.Option("--list", help="List the experiments and stop.")] = False,
) -> None:
    """Do experiments of the paper: each prints its table in the paper's shape; one HTML report holds them all.

    Each run is recorded as it is done: the same command again goes on where it stopped.

    For example: zeroshift experiment ablation,input-order --packs cifar10,cifar10c_fog_5
    """

    if list_them or names == LIST:
        if features:
            raise ValueError(
                f"{LIST} shows all experiments and takes nothing else; got {features[0]!r}. Fix: zeroshift experiment "
                f"{LIST}, or the name of an experiment in its place."
            )
        print_experiments(as_json=json)
        return
    from zeroshift.cli._experiment_data import AUTO, DataSets, chosen_suite
    from zeroshift.cli.progress import ending_on_signals
    from zeroshift.evaluate import Ledger
    from zeroshift.experiments import Investigation, Options
    from zeroshift.experiments._shared.experiment import MOST_ORDERS
    from zeroshift.parameters import Number

    sources = features or []
    Number(1, MOST_ORDERS, integer=True).check("--orders", orders)
    chosen = chosen_experiments(names, sources)
    count = processes(jobs)
    outputs = Outputs(out, figures=figures, markdown=markdown, latex=latex, csv=csv)
    on_disk = DataSets.asked(
        data, data_sets=data_sets, severities=severities, encoders=encoder or [], prompts=prompts,
        descriptions=descriptions, device=device, dtype=dtype, batch_size=batch_size, workers=workers, cache=cache,
        no_cache=no_cache,
    )  # fmt: skip
    outputs.check()
    command = retyped(
        {
            None: [names or "all", *sources], "--packs": packs, "--normalize": normalize, "--data": data,
            "--data-sets": data_sets, "--severities": severities, "--encoder": encoder or [], "--prompts": prompts,
            "--descriptions": descriptions, "--device": device if device != AUTO else None,
            "--dtype": dtype if dtype != AUTO else None, "--orders": orders if orders != Options().orders else None,
        }
    )  # fmt: skip
    with ending_on_signals():
        suite = chosen_suite(sources, packs, on_disk, out=out, normalize=normalize, quiet=quiet)
        investigation = Investigation.of(chosen, suite, Options(orders=orders))
        outcomes = run_investigation(investigation, Ledger(out / RUNS), jobs=count, again=again, quiet=quiet)
        chapters = investigation.chapters(outcomes)
        failed = list(dict.fromkeys(line for chapter in chapters for line in chapter.failed))
        for line in failed:
            print_warning(f"failed: {line}")
        written = outputs.write(chapters, suite, command=command, quiet=quiet)
    if json:
        print_json({**outputs.record(chapters, suite), "command": command, "written": list(map(str, written))})
    elif not quiet:
        outputs.show(chapters, written, paper=paper)
    else:
        console().print(f"report: {outputs.report}", soft_wrap=True)
    if open_report:
        typer.launch(outputs.report.resolve().as_uri())
    if failed:
        raise typer.Exit(1)

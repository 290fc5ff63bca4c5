"""`zeroshift experiment`: the paper's experiments by name, on packs, feature files or data sets on the disk."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from zeroshift.benchmarks.machine import machine
from zeroshift.cli import _encoder_options as options
from zeroshift.cli._encoder_options import AUTO, MOST_PROCESSES, check_on
from zeroshift.cli._experiment_data import FEATURES, CatalogueSource, load_suite
from zeroshift.cli._inputs import absolute_paths, is_pack, split_names
from zeroshift.cli._output_paths import check_outputs, claim
from zeroshift.cli._run_loop import run_recorded
from zeroshift.cli.console import console, print_json, print_warning
from zeroshift.evaluate import Ledger
from zeroshift.experiments import Chapter, Experiment, Investigation, Options, Suite, find, list_experiments
from zeroshift.experiments._shared.experiment import MOST_ORDERS
from zeroshift.parameters import Number
from zeroshift.report.experiments.figures import write_figures
from zeroshift.report.experiments.markdown import check_markdown, write_markdown
from zeroshift.report.experiments.page import write_page
from zeroshift.report.experiments.tables import chapters_record, print_chapters, write_csv, write_latex
from zeroshift.report.formatting import counted
from zeroshift.report.listings import experiments_table

__all__ = ["Outputs", "choose_experiments", "count_processes", "experiment", "format_command"]

DATA_PANEL = "Data sets on the disk"

ALL = "all"
RUNS = "runs"
"""Folder of the records."""

LIST = "list"


def experiment(
    names: Annotated[
        str | None,
        typer.Argument(
            metavar="EXPERIMENT,...|all|list",
            help="Experiments, or table-5, figure-4, ... of the paper; list shows them.",
        ),
    ] = None,
    features: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FEATURES",
            help="Labelled feature files, folders of them, or pack:NAME.",
            show_default="the bundled packs",
        ),
    ] = None,
    packs: Annotated[
        str | None,
        typer.Option(
            metavar="PACK,...|all",
            help="Bundled packs; all are those without views.",
            rich_help_panel=options.SOURCE_PANEL,
        ),
    ] = None,
    normalize: Annotated[
        bool,
        typer.Option(
            "--normalize", help="Scale rows of files to unit length first.", rich_help_panel=options.SOURCE_PANEL
        ),
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder that contains the data sets: see `zeroshift data check`.",
            rich_help_panel=DATA_PANEL,
        ),
    ] = None,
    data_sets: Annotated[
        str | None,
        typer.Option(
            metavar="DATASET,...", help="Data sets to use.", show_default="all found", rich_help_panel=DATA_PANEL
        ),
    ] = None,
    severities: Annotated[
        str | None,
        typer.Option(
            metavar="N,...", help="Severities of ImageNet-C.", show_default="all found", rich_help_panel=DATA_PANEL
        ),
    ] = None,
    encoder: Annotated[
        list[str] | None,
        typer.Option(
            "--encoder",
            "-e",
            metavar="ENCODER",
            help="Name of an encoder: see `zeroshift encoders`; repeat to compare several.",
            show_default="openai/clip-vit-base-patch16",
            rich_help_panel=DATA_PANEL,
        ),
    ] = None,
    prompts: Annotated[
        str | None,
        typer.Option(
            "--prompts",
            "--prompt",
            metavar="MODE,...",
            help="Prompt modes: see `zeroshift prompts`; methods start from the first.",
            show_default="ensemble,vanilla,clip_template",
            rich_help_panel=DATA_PANEL,
        ),
    ] = None,
    descriptions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
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
    orders: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Random orders of the stream, or random draws of samples.",
            rich_help_panel=options.RUN_PANEL,
        ),
    ] = 3,
    jobs: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Processes; timed runs are run alone.",
            show_default="the cores, at most 4",
            rich_help_panel=options.RUN_PANEL,
        ),
    ] = None,
    on: options.On = None,
    again: Annotated[
        bool,
        typer.Option("--again", help="Repeat runs that are already recorded.", rich_help_panel=options.RUN_PANEL),
    ] = False,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="FOLDER",
            help="Folder for records, features and report.html.",
            rich_help_panel=options.OUTPUT_PANEL,
        ),
    ] = Path("zeroshift-experiments"),
    figures: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Folder for the figures, as SVG and PNG.", rich_help_panel=options.OUTPUT_PANEL
        ),
    ] = None,
    markdown: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File for the whole report.", rich_help_panel=options.OUTPUT_PANEL),
    ] = None,
    latex: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder, one file per table.", rich_help_panel=options.OUTPUT_PANEL),
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder, one file per finding.", rich_help_panel=options.OUTPUT_PANEL),
    ] = None,
    raw_csv: options.RawCsv = False,
    force: options.Force = False,
    paper: Annotated[
        bool, typer.Option("--paper", help="Also print the paper's tables.", rich_help_panel=options.OUTPUT_PANEL)
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print everything as JSON.", rich_help_panel=options.OUTPUT_PANEL)
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress and no tables.", rich_help_panel=options.OUTPUT_PANEL)
    ] = False,
    open_report: Annotated[
        bool, typer.Option("--open", help="Open the report.", rich_help_panel=options.OUTPUT_PANEL)
    ] = False,
    list_them: Annotated[
        bool, typer.Option("--list", help="List the experiments and exit.", rich_help_panel=options.OUTPUT_PANEL)
    ] = False,
) -> None:
    """Run experiments of the paper: each prints its table in the paper's layout; one HTML report contains them all.

    Each finished run is recorded: run the same command again to resume.

    For example: zeroshift experiment ablation,input-order --packs cifar10,cifar10c_fog_5
    """
    if list_them or names == LIST:
        if features:
            raise ValueError(
                f"{LIST} shows all experiments and takes nothing else; got {features[0]!r}. Fix: zeroshift experiment "
                f"{LIST}, or the name of an experiment in its place."
            )
        _print_experiments(as_json=json)
        return
    check_on(on, jobs=jobs is not None)
    sources = features or []
    Number(1, MOST_ORDERS, integer=True).check("--orders", orders)
    chosen = choose_experiments(names, sources)
    processes = count_processes(jobs)
    outputs = Outputs(out, figures=figures, markdown=markdown, latex=latex, csv=csv, raw_csv=raw_csv)
    on_disk = CatalogueSource.from_options(
        data, data_sets=data_sets, severities=severities, encoders=encoder or [], prompts=prompts,
        descriptions=descriptions, device=device, dtype=dtype, batch_size=batch_size, workers=workers, cache=cache,
        no_cache=no_cache,
    )  # fmt: skip
    outputs.check(chosen, force=force)
    command = format_command(
        {
            None: [names or "all", *sources], "--packs": packs, "--normalize": normalize, "--data": data,
            "--data-sets": data_sets, "--severities": severities, "--encoder": encoder or [], "--prompts": prompts,
            "--descriptions": descriptions, "--device": device if device != AUTO else None,
            "--dtype": dtype if dtype != AUTO else None, "--orders": orders if orders != Options().orders else None,
        }
    )  # fmt: skip
    suite = load_suite(
        absolute_paths(sources, on),
        packs,
        on_disk,
        out=out if on is None else out.absolute(),
        normalize=normalize,
        quiet=quiet,
    )
    investigation = Investigation.of(chosen, suite, Options(orders=orders))
    ledger = Ledger(out / RUNS)
    runs = investigation.run(ledger, processes=processes, again=again, notes={"machine": machine()}, on=on)
    outcomes = run_recorded(runs, investigation.jobs, ledger, what="experiments", quiet=quiet)
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


def choose_experiments(names: str | None, sources: Sequence[str]) -> list[Experiment]:
    """The experiments in `names`, each once; likely slips get their own error."""
    known = {name for experiment in list_experiments() for name in (experiment.name, *experiment.paper_names)}
    listed = split_names(names)
    if not listed:
        raise ValueError("no experiment is named. Fix: zeroshift experiment all, or see zeroshift experiment list.")
    misplaced = [source for source in sources if (source in known or source == ALL) and not os.path.exists(source)]
    if misplaced:
        raise ValueError(
            f"no file at {misplaced[0]}; it is the name of an experiment. Fix: a list with commas, "
            f"{names},{','.join(misplaced)}."
        )
    first, *others = listed
    if not others and first not in known and first != ALL and (is_pack(first) or os.path.exists(first)):
        raise ValueError(
            f"{first} is {'a pack' if is_pack(first) else 'a file or folder'}, not an experiment; the experiment comes "
            f"first. Fix: zeroshift experiment all {shlex.quote(first)}."
        )
    for name, count in Counter(listed).items():
        if count > 1:
            print_warning(f"{name} is named {count} times; it counts once")
    if ALL in listed and (repeated := [name for name in dict.fromkeys(listed) if name in known]):
        print_warning(f"{ALL} includes {', '.join(repeated)}; it counts once")
    chosen: list[Experiment] = []
    for name in listed:
        chosen += list_experiments() if name == ALL else find(name)
    return list({experiment.name: experiment for experiment in chosen}.values())


def format_command(given: Mapping[str | None, Any]) -> str:
    """The command line with these options by name and, under None, arguments.

    >>> format_command(
    ...     {None: ["ablation", "my set.npz"], "--packs": None, "--normalize": True, "--encoder": ["composed"]}
    ... )
    "zeroshift experiment ablation 'my set.npz' --normalize --encoder composed"
    """
    parts = ["zeroshift", "experiment"]
    for option, value in given.items():
        for one in value if isinstance(value, list) else [value]:
            if one is True and option is not None:
                parts.append(option)
            elif isinstance(one, (str, int, Path)) and one is not False:
                parts += [str(one)] if option is None else [option, str(one)]
    return shlex.join(parts)


DEFAULT_PROCESSES = 4
"""Most processes without `--jobs`: each keeps a set in memory."""


def count_processes(jobs: int | None) -> int:
    """`--jobs`, or the number of cores up to a limit."""
    if jobs is None:
        return min(DEFAULT_PROCESSES, os.cpu_count() or 1)
    return int(Number(1, MOST_PROCESSES, integer=True).check("--jobs", jobs))


REPORT = "report.html"


@dataclass(frozen=True)
class Outputs:
    """What the command writes: checked before anything is run, written at the end."""

    out: Path
    figures: Path | None = None
    markdown: Path | None = None
    latex: Path | None = None
    csv: Path | None = None
    raw_csv: bool = False

    @property
    def report(self) -> Path:
        return self.out / REPORT

    def check(self, chosen: Sequence[Experiment], *, force: bool) -> None:
        """Refuse outputs that cannot be written, files that zeroshift did not write and, without `force`, files of the
        chosen experiments that exist."""
        wanted = [folder for folder in (self.figures, self.latex, self.csv) if folder is not None]
        inside = [self.out / name for name in (RUNS, FEATURES) if os.path.exists(self.out / name)]
        check_outputs(pages=[self.report], folders=[*inside, *wanted])
        if self.markdown is not None:
            check_markdown(self.markdown)
            claim(self.markdown)
        existing = (path for folder in wanted for one in chosen for path in folder.glob(f"{one.name}-*.*"))
        if not force and (found := next(existing, None)) is not None:
            raise FileExistsError(f"{found} exists. Fix: pass --force to replace it, or name another folder.")

    def write(self, chapters: Sequence[Chapter], suite: Suite, *, command: str, quiet: bool) -> list[Path]:
        """The report, and whatever else was requested."""
        screen = console(stderr=True)
        screen.quiet = quiet
        written: list[Path] = []
        pictures: dict[str, Path] = {}
        self.out.mkdir(parents=True, exist_ok=True)
        if not quiet and not screen.is_terminal:
            typer.echo("drawing the report", err=True)
        with screen.status("drawing the report"):
            if self.figures is not None:
                drawn = _write_files("figures", self.figures, write_figures, chapters)
                pictures = {path.stem: path for path in drawn if path.suffix == ".svg"}
                written += drawn
            zero_shot = {member.name: member.dataset.load().zero_shot_accuracy() for member in suite.members}
            write_page(self.report, chapters, suite, command=command, machine=machine(), zero_shot=zero_shot)
            if self.markdown is not None:
                relative = {name: _relative_to(self.markdown, path) for name, path in pictures.items()}
                write_markdown(self.markdown, chapters, suite, command=command, figures=relative or None)
                written.append(self.markdown)
            if self.latex is not None:
                written += _write_files("tables", self.latex, write_latex, chapters)
            if self.csv is not None:
                written += _write_files(
                    "findings with numbers", self.csv, partial(write_csv, raw=self.raw_csv), chapters
                )
        return [*written, self.report]

    def record(self, chapters: Sequence[Chapter], suite: Suite) -> dict[str, Any]:
        return {**chapters_record(chapters, suite), "out": str(self.out), "report": str(self.report)}

    def show(self, chapters: Sequence[Chapter], written: Sequence[Path], *, paper: bool) -> None:
        """Print the tables and where the files are."""
        screen = console()
        print_chapters(screen, chapters, width=screen.width, paper=paper)
        for folder in (self.figures, self.latex, self.csv):
            count = sum(path.parent == folder for path in written)
            if folder is not None and count:
                screen.print(f"written: {counted(count, 'file')} in {folder}", soft_wrap=True)
        if self.markdown is not None:
            screen.print(f"written: {self.markdown}", soft_wrap=True)
        screen.print(f"report: {self.report}", soft_wrap=True)


def _write_files(what: str, folder: Path, write: Callable[..., list[Path]], chapters: Sequence[Chapter]) -> list[Path]:
    """Write files to a folder; if there is nothing to write, warn."""
    written = write(folder, chapters)
    if not written:
        print_warning(f"there are no {what}, so nothing is written to {folder}")
    return written


def _relative_to(document: Path, picture: Path) -> Path:
    """The path from a document to a picture, so that both can be moved together."""
    return Path(os.path.relpath(picture.resolve(), document.resolve().parent))


def _print_experiments(*, as_json: bool) -> None:
    listed = list_experiments()
    if as_json:
        fields = ("name", "title", "question", "where", "paper_names")
        print_json([{**{f: getattr(e, f) for f in fields}, "paper_tables": list(e.tables)} for e in listed])
        return
    screen = console()
    screen.print(experiments_table(listed))
    screen.print("Run one with: zeroshift experiment NAME; all of them with: zeroshift experiment all", style="dim")
    screen.print(
        "A table or figure of the paper is a name too: zeroshift experiment table-5, or figure-4. Tables 1 and 12 and "
        "Figure 1 contain no measurements, and Table 17 prints Table 5 again.",
        style="dim",
    )

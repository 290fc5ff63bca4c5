"""`zeroshift bench`: how fast the engines are here, compared with the definition and the bare matrix products."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from zeroshift.arrays import Backend
from zeroshift.benchmarks.bench import Progress, read_cases, run_cases
from zeroshift.benchmarks.case import (
    DEFAULT,
    FULL,
    QUICK,
    SYNTHETIC,
    BenchBackend,
    BenchCase,
    check_engines,
    default_cases,
    grid_sizes,
)
from zeroshift.benchmarks.problems import GEOMETRIES, BenchProblem
from zeroshift.benchmarks.tables import (
    LEGEND,
    bench_tables,
    case_title,
    case_warnings,
    figure_paths,
    growth_table,
    write_figures,
)
from zeroshift.cli._encoder_options import OUTPUT_PANEL, Quiet
from zeroshift.cli._inputs import load_features, split_names
from zeroshift.cli._output_paths import check_output_files, check_outputs
from zeroshift.cli.console import console, print_json, print_warning
from zeroshift.cli.progress import progress_bar
from zeroshift.installation import install_command
from zeroshift.parameters import Choice, Number

__all__ = ["bench"]

SIZE_PANEL = "Sizes and engines"
WHERE_PANEL = "Device"


def bench(
    quick: Annotated[
        bool, typer.Option("--quick", help="Small sizes: a minute or two.", rich_help_panel=SIZE_PANEL)
    ] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Every size of the grid: long.", rich_help_panel=SIZE_PANEL)
    ] = False,
    classes: Annotated[
        str | None, typer.Option(metavar="K,...", help="Numbers of classes.", rich_help_panel=SIZE_PANEL)
    ] = None,
    dimensions: Annotated[
        str | None, typer.Option(metavar="D,...", help="Dimensions.", rich_help_panel=SIZE_PANEL)
    ] = None,
    samples: Annotated[
        str | None, typer.Option(metavar="N,...", help="Lengths of the stream.", rich_help_panel=SIZE_PANEL)
    ] = None,
    geometry: Annotated[
        str | None,
        typer.Option(
            metavar="GEOMETRY,...",
            help="Synthetic features: clip_like, or clustered, which is harder.",
            show_default=SYNTHETIC,
            rich_help_panel=SIZE_PANEL,
        ),
    ] = None,
    busy: Annotated[
        int, typer.Option(metavar="N", help="Competing processes meanwhile.", rich_help_panel=WHERE_PANEL)
    ] = 0,
    on: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FEATURES", help="Real features instead: a file or pack:NAME.", rich_help_panel=SIZE_PANEL
        ),
    ] = None,
    engines: Annotated[
        str | None,
        typer.Option(
            metavar="ENGINE,...",
            help="Engines to compare with direct.",
            show_default="all",
            rich_help_panel=SIZE_PANEL,
        ),
    ] = None,
    steps: Annotated[
        int, typer.Option(metavar="N", help="Sampled steps at each point.", rich_help_panel=SIZE_PANEL)
    ] = 3,
    repeats: Annotated[
        int, typer.Option(metavar="N", help="Runs of which the median counts.", rich_help_panel=SIZE_PANEL)
    ] = 3,
    memory: Annotated[
        bool, typer.Option("--memory/--no-memory", help="Also measure the peak memory.", rich_help_panel=SIZE_PANEL)
    ] = True,
    library: Annotated[
        str, typer.Option(metavar="numpy|torch", help="Library of the arrays.", rich_help_panel=WHERE_PANEL)
    ] = "numpy",
    device: Annotated[
        str, typer.Option(metavar="cpu|cuda", help="Where to compute.", rich_help_panel=WHERE_PANEL)
    ] = "cpu",
    threads: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Threads of every product.", show_default="the library's", rich_help_panel=WHERE_PANEL
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="JSON file for the results; an existing one is resumed.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = None,
    again: Annotated[
        bool,
        typer.Option("--again", help="Repeat measurements that the file already has.", rich_help_panel=OUTPUT_PANEL),
    ] = False,
    figures: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Draw growth into this folder, as PNG and SVG.", rich_help_panel=OUTPUT_PANEL
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace figures that exist.", rich_help_panel=OUTPUT_PANEL)
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print the results as JSON.", rich_help_panel=OUTPUT_PANEL)
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Measure time and memory of ADAPT's engines and the mixture, compared with the plain implementation.

    For example: zeroshift bench --classes 10,100 --dimensions 256 --samples 1000 --out bench.json
    """
    backend = _check_device(library, device, threads)
    if out is not None:
        check_output_files([out], inputs=[Path(source) for source in on or []], force=True)
        read_cases(out)
    drawings = [] if figures is None else figure_paths(figures)
    check_outputs(folders=[] if figures is None else [figures], files=drawings, force=force)
    cases, problems = _choose_cases(
        backend, quick=quick, full=full, classes=classes, dimensions=dimensions, samples=samples, sources=on or [],
        engines=engines, steps=steps, repeats=repeats, memory=memory, geometry=geometry, busy=busy,
    )  # fmt: skip
    with _case_progress(cases, quiet=quiet) as on_step:
        record = run_cases(cases, out=out, again=again, problems=problems, progress=on_step)
    if figures is not None:
        write_figures(figures, record["growth"])
    for warning in case_warnings(record["cells"]):
        print_warning(warning)
    if json:
        print_json({**record, "out": None if out is None else str(out), "figures": [str(path) for path in drawings]})
    elif not quiet:
        screen = console()
        for table in bench_tables(record["cells"]):
            screen.print(table)
        screen.print(growth_table(record["growth"]))
        screen.print(LEGEND, style="dim")
        for path in drawings if out is None else [out, *drawings]:
            screen.print(f"written: {path}", soft_wrap=True)


DEFAULT_SIZES = {"classes": "1000", "dimensions": "512", "samples": "5000"}
"""Sizes for the options that are not given, if one of them is."""


def _check_device(library: str, device: str, threads: int | None) -> BenchBackend:
    Choice(("numpy", "torch")).check("--library", library)
    if threads is not None:
        Number(1, 1024, integer=True).check("--threads", threads)
    try:
        Backend.named(library, device)
    except ImportError:
        raise ImportError(f"--library torch needs torch. Fix: {install_command('torch')}.") from None
    except (RuntimeError, AssertionError, ValueError) as error:
        first = (str(error).splitlines() or ["no reason given"])[0]
        fix = "--device cpu" if library == "torch" else "--library torch, or --device cpu"
        raise ValueError(
            f"--device must be one that {library} can use here; got {device!r} ({first}). Fix: {fix}."
        ) from None
    return BenchBackend(library, device, threads)


def _choose_cases(
    backend: BenchBackend,
    *,
    quick: bool,
    full: bool,
    classes: str | None,
    dimensions: str | None,
    samples: str | None,
    sources: Sequence[str],
    engines: str | None,
    steps: int,
    repeats: int,
    memory: bool,
    geometry: str | None,
    busy: int,
) -> tuple[list[BenchCase], dict[str, BenchProblem]]:
    """The cases, and the real features of those that are not synthetic."""
    by_name = {"classes": classes, "dimensions": dimensions, "samples": samples}
    named = {name: text for name, text in by_name.items() if text is not None}
    choices = [f"--{option}" for option, given in (("quick", quick), ("full", full)) if given]
    geometries = [SYNTHETIC] if geometry is None else _geometry_names(geometry)
    if sources and (choices or geometry is not None or set(named) - {"samples"}):
        fixed = [*choices, *(f"--{name}" for name in named if name != "samples")]
        fixed += ["--geometry"] if geometry is not None else []
        raise ValueError(f"--on uses features as they are; leave out {', '.join(fixed)}.")
    choices += [f"--{name}" for name in named][:1]
    if len(choices) > 1:
        raise ValueError(f"{' and '.join(choices)} each choose the sizes. Fix: give one of them.")
    Number(1, 10_000, integer=True).check("--steps", steps)
    Number(1, 10_000, integer=True).check("--repeats", repeats)
    Number(0, 1024, integer=True).check("--busy", busy)
    chosen = check_engines(None if engines is None else _engine_names(engines))
    shared: dict[str, Any] = {
        "backend": backend, "engines": chosen, "steps": steps, "repeats": repeats, "memory": memory,
    }  # fmt: skip
    if sources:
        limit = None if samples is None else max(_parse_numbers("samples", samples))
        problems = {source: _load_problem(source, limit) for source in sources}
        shared["competitors"] = busy
        return [_case_of(source, problem, shared) for source, problem in problems.items()], problems
    if not (named or quick or full or geometry is not None or busy):
        return default_cases(**shared), {}
    if named:
        grid = grid_sizes(*(_parse_numbers(name, named.get(name, DEFAULT_SIZES[name])) for name in DEFAULT_SIZES))
    else:
        grid = QUICK if quick else FULL if full else DEFAULT
    return [BenchCase(k, d, n, source=name, competitors=busy, **shared) for name in geometries for k, d, n in grid], {}


def _load_problem(source: str, limit: int | None) -> BenchProblem:
    features = load_features(source, normalize=False)
    return BenchProblem.of(features if limit is None else features.subset(slice(0, limit)))


def _case_of(source: str, problem: BenchProblem, shared: dict[str, Any]) -> BenchCase:
    (classes, dimension), samples = problem.prototypes.shape, len(problem.features)
    return BenchCase(classes, dimension, samples, source=source, **shared)


def _geometry_names(text: str) -> list[str]:
    names = split_names(text) or [text]
    return [str(Choice(tuple(GEOMETRIES)).check("--geometry", name)) for name in names]


def _engine_names(text: str) -> list[str]:
    names = split_names(text)
    if not names:
        raise ValueError(
            f"--engines names no engine; got {text!r}. Fix: one or more of {', '.join(check_engines(None))}."
        )
    return names


def _parse_numbers(name: str, text: str) -> list[int]:
    try:
        numbers = [int(part) for part in split_names(text)]
    except ValueError:
        numbers = []
    if not numbers:
        raise ValueError(
            f"--{name} takes integers separated by commas, for example --{name} {DEFAULT_SIZES[name]}; got {text!r}."
        )
    return numbers


@contextmanager
def _case_progress(cases: Sequence[BenchCase], *, quiet: bool) -> Iterator[Progress]:
    """A bar over the samples of all cases; it advances when a case is done and shows what is being measured."""
    with progress_bar("measuring", sum(case.samples for case in cases), quiet=quiet) as advance:
        yield lambda case, what, done: advance(
            case.samples if done else 0, f"{case_title({'settings': case.record()})}: {what}"
        )

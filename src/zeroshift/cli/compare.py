"""`zeroshift compare`: methods on sets of labelled features, in one table; an interrupted comparison resumes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from zeroshift import methods as registry
from zeroshift.benchmarks.machine import machine
from zeroshift.cli import _encoder_options as options
from zeroshift.cli._encoder_options import MOST_PROCESSES, check_encoder_options, check_on, load_encoder_ref
from zeroshift.cli._inputs import FeaturesKey, LabelsKey, PrototypesKey, absolute_paths, load_datasets, split_names
from zeroshift.cli._method_options import parse_settings
from zeroshift.cli._output_paths import check_outputs, claim
from zeroshift.cli._run_loop import run_recorded
from zeroshift.cli.console import console, print_json, print_warning
from zeroshift.cli.leaderboard import LEADERBOARD, show_leaderboard
from zeroshift.evaluate import (
    JobOutcome,
    Ledger,
    MethodSpec,
    Plan,
    Trial,
    describe_skipped,
    list_method_specs,
    plan_comparison,
    run_plan,
    summarize,
)
from zeroshift.evaluate.differences import check_baseline
from zeroshift.evaluate.leaderboard import build_leaderboard
from zeroshift.evaluate.method_spec import COMPARISON_HINTS
from zeroshift.evaluate.protocols import PROTOCOLS, find_protocol
from zeroshift.evaluate.results import OUTCOMES, collect, flatten
from zeroshift.experiments._shared.experiment import MOST_ORDERS
from zeroshift.methods.inputs import SECOND, TEXT, VIEWS
from zeroshift.methods.sticky_filter import SUFFIX
from zeroshift.parameters import Number
from zeroshift.report.compare_page import write_page
from zeroshift.report.compare_tables import (
    COMPARE_MARKS,
    check_markdown,
    compare_record,
    compare_table,
    remarks,
    set_tables,
    write_markdown,
)
from zeroshift.report.leaderboard import LEADERBOARD_MARKS
from zeroshift.suggest import did_you_mean

__all__ = ["FILTERED", "GROUPS", "choose_methods", "compare"]

RUNS, PAGE = "runs", "compare.html"

MOST_SHOTS = 10_000

WHAT_PANEL = "Methods and data"


def compare(
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
            rich_help_panel=WHAT_PANEL,
        ),
    ] = None,
    methods: Annotated[
        str,
        typer.Option(
            "--methods",
            "-m",
            "--method",
            metavar="METHOD,...",
            help="Methods; NAME+support gives labelled samples too, NAME+views the views of each image, NAME+filter "
            "the order filter. Or all, online, episodic, transductive, few-shot, online+filter.",
            rich_help_panel=WHAT_PANEL,
        ),
    ] = "all",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            "-s",
            metavar="METHOD.NAME=VALUE",
            help="A parameter of a method; can be repeated.",
            rich_help_panel=WHAT_PANEL,
        ),
    ] = None,
    orders: Annotated[
        int,
        typer.Option(
            metavar="N", help="Random orders of the stream, or random draws of samples.", rich_help_panel=WHAT_PANEL
        ),
    ] = 3,
    shots: Annotated[
        int,
        typer.Option(metavar="N", help="Labelled samples per class for few-shot methods.", rich_help_panel=WHAT_PANEL),
    ] = 4,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD",
            help="Also the difference of every method to this one, with its interval.",
            rich_help_panel=WHAT_PANEL,
        ),
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            metavar="EVALUATION",
            help=f"Streams, batch size and metrics of a known evaluation: {', '.join(PROTOCOLS)}. Shows a leaderboard.",
            rich_help_panel=WHAT_PANEL,
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt",
            "--prompts",
            metavar="MODE",
            help="Prompt mode of the prototypes.",
            show_default="each set's",
            rich_help_panel=WHAT_PANEL,
        ),
    ] = None,
    normalize: Annotated[
        bool, typer.Option("--normalize", help="Scale rows to unit length first.", rich_help_panel=WHAT_PANEL)
    ] = False,
    features_key: FeaturesKey = None,
    prototypes_key: PrototypesKey = None,
    labels_key: LabelsKey = None,
    encoder: options.FeatureEncoder = None,
    revision: options.Revision = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    again: Annotated[
        bool,
        typer.Option("--again", help="Repeat runs that are already recorded.", rich_help_panel=options.RUN_PANEL),
    ] = False,
    jobs: Annotated[
        int,
        typer.Option(
            metavar="N", help="Processes. Times are comparable only with 1.", rich_help_panel=options.RUN_PANEL
        ),
    ] = 1,
    on: options.On = None,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="FOLDER",
            help="Folder for the records and the page.",
            rich_help_panel=options.OUTPUT_PANEL,
        ),
    ] = Path("zeroshift-compare"),
    force: options.Force = False,
    by_set: Annotated[
        bool, typer.Option("--by-set", help="Also print one table per set.", rich_help_panel=options.OUTPUT_PANEL)
    ] = False,
    markdown: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the tables to this file, or between its <!-- compare --> and <!-- /compare -->.",
            rich_help_panel=options.OUTPUT_PANEL,
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print everything as JSON.", rich_help_panel=options.OUTPUT_PANEL)
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress bar and no table.", rich_help_panel=options.OUTPUT_PANEL)
    ] = False,
) -> None:
    """Compare methods on labelled features: accuracy, gain over zero-shot, calibration, time, memory, encoder passes.

    Each finished run is recorded: run the same command again to resume.

    For example: zeroshift compare my-features.safetensors --methods online
    """
    for name, value, most in (
        ("--orders", orders, MOST_ORDERS),
        ("--shots", shots, MOST_SHOTS),
        ("--jobs", jobs, MOST_PROCESSES),
    ):
        Number(1, most, integer=True).check(name, value)
    check_on(on, jobs=jobs != 1)
    check_encoder_options(encoder, revision=revision, device=device, dtype=dtype)
    evaluation = None if protocol is None else find_protocol(protocol)
    if evaluation is not None and by_set:
        raise ValueError(
            "--by-set shows the tables of a plain comparison. Fix: leave it out, or zeroshift leaderboard --sets NAME."
        )
    page = PAGE if evaluation is None else LEADERBOARD
    check_outputs(pages=[out / page], folders=[out / RUNS])
    if markdown is not None:
        check_markdown(markdown, COMPARE_MARKS if evaluation is None else LEADERBOARD_MARKS)
        claim(markdown)
    # A wrong name is refused before any set is read; what a method lacks is known only then.
    choose_methods(methods, settings or [], check_inputs=False)
    datasets = load_datasets(
        absolute_paths(features or [], on), packs, prompt=prompt, normalize=normalize, names_matter=encoder is not None,
        features_key=features_key, prototypes_key=prototypes_key, labels_key=labels_key,
    )  # fmt: skip
    views, second = any(dataset.n_views for dataset in datasets), any(dataset.extra for dataset in datasets)
    specs = choose_methods(methods, settings or [], views=views, second=second, encoder=encoder is not None)
    if encoder is not None and not any(spec.tunes_text for spec in specs):
        raise ValueError(
            "--encoder is for methods that tune its prompts, and none is compared. Fix: leave it out, or add -m tpt."
        )
    encoder_ref = load_encoder_ref(encoder, revision=revision, device=device, dtype=dtype)
    plan = plan_comparison(datasets, specs, orders=orders, shots=shots, encoder=encoder_ref, protocol=evaluation)
    for line in describe_skipped(plan.skipped):
        print_warning(f"skipped: {line}")
    if baseline is not None:
        check_baseline(baseline, [spec.label for spec in plan.specs])
    if not plan.trials:
        raise ValueError("no method is left to compare. Fix: see the reasons above.")
    if os.path.exists(out / page) and not force:
        _refuse_to_show_less(out, page, plan)
    ledger = Ledger(out / RUNS)
    runs = run_plan(plan, ledger, jobs=jobs, again=again, notes={"machine": machine()}, on=on)
    sizes = {dataset.name: dataset.n_samples for dataset in datasets}
    outcomes = run_recorded(runs, plan.trials, ledger, what="comparing", quiet=quiet, sizes=sizes)
    if evaluation is not None:
        _show_protocol(plan, outcomes, out / page, baseline, markdown=markdown, json=json, quiet=quiet)
        return
    summary = summarize(plan, outcomes, baseline=baseline)
    for failed in summary.failed:
        print_warning(f"failed: {failed.job}: {failed.error}")
    if summary.overall:
        write_page(out / page, summary)
        if markdown is not None:
            write_markdown(markdown, summary)
    notes = remarks(summary)
    if json:
        print_json({**compare_record(summary), "remarks": notes, "out": str(out), "page": str(out / page)})
    elif not quiet and summary.overall:
        screen = console()
        for table in (compare_table(summary), *(set_tables(summary) if by_set else ())):
            screen.print(table)
        screen.print(" ".join(notes), style="dim")
        for path in (out / page, *([markdown] if markdown else [])):
            screen.print(f"written: {path}", soft_wrap=True)
    if summary.failed:
        raise typer.Exit(1)


def _refuse_to_show_less(out: Path, page: str, plan: Plan) -> None:
    """Refuse to replace a page by one without methods or sets of which there are records."""
    shown = {(trial.spec.label, trial.digest) for trial in plan.trials}
    recorded = {(row["job"], row["digest"]): row["features"] for row in collect([out]).rows}
    lost = next((run for run in recorded if run not in shown), None)
    if lost is not None:
        raise FileExistsError(
            f"{out / page} may show {lost[0]} on {recorded[lost]}, which this comparison leaves out. Fix: name it too, "
            "which runs nothing again; --out another folder; or pass --force to replace the page."
        )


def _show_protocol(
    plan: Plan,
    outcomes: Sequence[JobOutcome[Trial]],
    page: Path,
    baseline: str | None,
    *,
    markdown: Path | None,
    json: bool,
    quiet: bool,
) -> None:
    """The leaderboard of the runs of a protocol."""
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    for outcome in failed:
        print_warning(f"failed: {outcome.job}: {outcome.error}")
    rows = [
        {**flatten(outcome.record), OUTCOMES: outcome.record.get(OUTCOMES)}
        for outcome in outcomes
        if outcome.record is not None
    ]
    if rows:
        board = build_leaderboard(rows, protocol=plan.protocol, baseline=baseline)
        show_leaderboard(board, page=page, markdown=markdown, json=json, quiet=quiet)
    if failed:
        raise typer.Exit(1)


GROUPS = ("online", "episodic", "transductive", "few-shot")

FILTERED = f"online{SUFFIX}"
"""Every online method that the order filter can be used with, with the filter."""

OPTION_HINTS = {
    **COMPARISON_HINTS,
    "support": "--methods NAME+support",
    **dict.fromkeys(("prompts", "validation", "unlabelled"), "leave it out; a comparison takes it from the sets"),
}
"""How `compare` gives each input to a method."""


def choose_methods(
    names: str,
    settings: Sequence[str],
    *,
    views: bool = False,
    second: bool = False,
    encoder: bool = False,
    check_inputs: bool = True,
) -> list[MethodSpec]:
    """The methods in `names`, each once. Those named one by one must be runnable; those of a group need not.

    `views` and `second` say that a set contains views, or features of a second encoder; `encoder` that one is given.
    Without `check_inputs`, only names and settings are checked.

    >>> [spec.label for spec in choose_methods("zero_shot,adapt_online", ["adapt_online.bank_size=8"])]
    ['zero_shot', 'adapt_online bank_size=8']
    """
    chosen: dict[str, MethodSpec] = {}
    single: set[str] = set()
    for name in split_names(names):
        if name == FILTERED:
            found = list(_filtered_methods())
        elif name == "all" or name in GROUPS:
            found = list_method_specs(None if name == "all" else name, views=views)
        else:
            found = [_find_method(name)]
            single.add(found[0].label)
        chosen |= {spec.label: spec for spec in found if spec.label not in chosen}
    if not chosen:
        raise ValueError(
            f"--methods names no method; got {names!r}. Fix: all, {', '.join(GROUPS)}, or some of `zeroshift methods`."
        )
    by_method = _settings_by_method(settings, chosen.values())
    with_settings = {
        label: replace(spec, parameters=parse_settings(spec.info, by_method.get(spec.method, []), OPTION_HINTS))
        for label, spec in chosen.items()
    }
    held = [name for name, there in ((VIEWS, views), (SECOND, second), (TEXT, encoder)) if there]
    reasons = []
    for label in sorted(single) if check_inputs else ():
        spec = with_settings[label]
        # First what no set can give it: other sets would not help.
        if reason := spec.missing_input(VIEWS, SECOND, *held) or spec.missing_input(*held):
            reasons.append(f"{label} cannot be compared: it {reason}.")
    if reasons:
        raise ValueError(" ".join(reasons))
    return list(with_settings.values())


def _filtered_methods() -> Iterator[MethodSpec]:
    for info in registry.list_methods("online"):
        with suppress(ValueError):  # the method uses the order by itself
            yield MethodSpec.named(f"{info.name}{SUFFIX}")


def _find_method(name: str) -> MethodSpec:
    known = [info.name for info in registry.list_methods()]
    method = name.split("+")[0]
    if method not in known:
        guess = did_you_mean(name, [*known, "all", *GROUPS, FILTERED])
        rest = "Fix: see `zeroshift methods`." if guess else f"Known: {', '.join(known)}; all, {', '.join(GROUPS)}."
        raise ValueError(f"--methods: no method is called {method!r}. {guess}{rest}")
    try:
        return MethodSpec.named(name)
    except ValueError as error:
        raise ValueError(f"--methods {name}: {error} Fix: --methods {method}.") from None


def _settings_by_method(settings: Sequence[str], chosen: Iterable[MethodSpec]) -> dict[str, list[str]]:
    """`METHOD.NAME=VALUE` as `NAME=VALUE` under each method."""
    compared = list(dict.fromkeys(spec.method for spec in chosen))
    found: dict[str, list[str]] = {}
    for item in settings:
        method, point, setting = item.partition(".")
        if not point or "=" in method:
            raise ValueError(
                f"--set takes METHOD.NAME=VALUE, for example --set adapt_online.bank_size=8; got {item!r}."
            )
        if "+" in method and (plain := MethodSpec.named(method).method) != method:
            raise ValueError(
                f"--set {item}: parameters belong to the method, whatever its inputs. Fix: --set {plain}.{setting}."
            )
        if method not in compared:
            registry.get(method)  # an unknown name is an error of the registry
            raise ValueError(f"--set {item}: {method} is not among the methods compared. Fix: add it to --methods.")
        found.setdefault(method, []).append(setting)
    return found

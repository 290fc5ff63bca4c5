"""`zeroshift compare`: all methods, any feature sets, one table; whatever stops it, it goes on where it was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from zeroshift import methods
from zeroshift.benchmarks.machine import machine
from zeroshift.cli import _encoder_options as options
from zeroshift.cli._inputs import PACK_PREFIX, holds_features_alone, is_pack, load_features
from zeroshift.cli._method_options import parse_settings
from zeroshift.cli.console import console, print_json, print_warning
from zeroshift.cli.progress import RunLog, ending_on_signals, progress_bar, told_apart
from zeroshift.data import packs as bundled
from zeroshift.evaluate import (
    ComparisonSummary,
    DatasetRef,
    Ledger,
    MethodSpec,
    Plan,
    list_method_specs,
    run_plan,
    summarize,
)
from zeroshift.evaluate.inputs import ENCODER, VIEWS
from zeroshift.features import FeatureSet
from zeroshift.suggest import did_you_mean

__all__ = ["chosen_datasets", "chosen_specs", "compare", "run_with_progress"]


# Which methods `zeroshift compare` runs, and with which parameters, read from `--methods` and `--set`.


GROUPS = ("online", "episodic", "transductive", "few-shot")

ELSEWHERE = {
    "support": "Fix: --methods NAME+support.",
    **dict.fromkeys(("prompts", "validation", "unlabelled"), "Fix: leave it out; a comparison takes it from the sets."),
    "text": "Fix: --encoder SOURCE.",
}
"""How a comparison gives a method what holds arrays, or a model."""


def chosen_specs(
    wanted: str, settings: Sequence[str], *, views: bool = False, encoder: bool = False
) -> list[MethodSpec]:
    """The contestants `wanted` names, each once; those named one by one must be possible, those of a group need not.

    `views` says that a set holds several of each image, `encoder` that one is given.

    >>> [spec.label for spec in chosen_specs("zero_shot,adapt_online", ["adapt_online.bank_size=8"])]
    ['zero_shot', 'adapt_online bank_size=8']
    """
    chosen: dict[str, MethodSpec] = {}
    single: set[str] = set()
    for name in (part.strip() for part in wanted.split(",")):
        if not name:
            continue
        if name == "all" or name in GROUPS:
            found = list_method_specs(None if name == "all" else name, views=views)
        else:
            found = [_named(name)]
            single.add(found[0].label)
        chosen |= {spec.label: spec for spec in found if spec.label not in chosen}
    if not chosen:
        raise ValueError(
            f"--methods names no method; got {wanted!r}. Fix: all, {', '.join(GROUPS)}, or some of `zeroshift methods`."
        )
    parameters = _by_method(settings, chosen.values())
    changed = {
        label: replace(
            spec,
            parameters=parse_settings(spec.info, parameters.get(spec.method, []), ELSEWHERE),
        )
        for label, spec in chosen.items()
    }
    for label in sorted(single):
        held = [*([VIEWS] if views else []), *([ENCODER] if encoder else [])]
        if reason := changed[label].obstacle_with(*held):
            fix = "" if "Fix: " in reason else _fix(changed[label])
            raise ValueError(f"{label} cannot be compared: it {reason}. {fix}".rstrip())
    return list(changed.values())


def _named(name: str) -> MethodSpec:
    known = [info.name for info in methods.list_methods()]
    method = name.split("+")[0]
    if method not in known:
        guess = did_you_mean(name, [*known, "all", *GROUPS])
        raise ValueError(
            f"--methods: no method is called {method!r}. {guess}Known: {', '.join(known)}; all, {', '.join(GROUPS)}."
        )
    try:
        return MethodSpec.named(name)
    except ValueError as error:
        raise ValueError(f"--methods {name}: {error} Fix: --methods {method}.") from None


def _by_method(settings: Sequence[str], chosen: Iterable[MethodSpec]) -> dict[str, list[str]]:
    """`METHOD.NAME=VALUE` as `NAME=VALUE` under each method."""
    compared = list(dict.fromkeys(spec.method for spec in chosen))
    found: dict[str, list[str]] = {}
    for item in settings:
        method, point, setting = item.partition(".")
        if not point or "=" in method:
            raise ValueError(
                f"--set takes METHOD.NAME=VALUE, for example --set adapt_online.bank_size=8; got {item!r}."
            )
        if "+" in method:
            plain = method.split("+")[0]
            raise ValueError(
                f"--set {item}: parameters are the method's, whatever it is given. Fix: --set {plain}.{setting}."
            )
        if method not in compared:
            methods.get(method)  # a name that is none is answered by the registry
            raise ValueError(f"--set {item}: {method} is not among the methods compared. Fix: add it to --methods.")
        found.setdefault(method, []).append(setting)
    return found


def _fix(spec: MethodSpec) -> str:
    """How to come by what it lacks; on the command line only numbers and words can be set."""
    cls = spec.info.cls
    lacking = [p.name for p in spec.info.parameters if p.required and p.name not in spec.given]
    settable = [name for name in lacking if name not in (*cls.array_parameters, *cls.model_parameters)]
    if len(settable) < len(lacking) or not lacking:
        return f"Fix: leave it out; in Python zeroshift.encode.make_method({spec.method!r}, ...) makes it."
    return f"Fix: --set {spec.method}.{settable[0]}=VALUE."


# Which feature sets `zeroshift compare` runs on: files, folders of files, and bundled packs.


SUFFIXES = (".npz", ".safetensors")


def chosen_datasets(
    sources: Sequence[str], packs: str | None, *, prompt: str | None, normalize: bool, names_matter: bool = False
) -> list[DatasetRef]:
    """The sets, each once whatever it is called; of a folder those that can be compared on, the others named.

    `names_matter` where prompts are made of the names of the classes: the same features are then another set under
    other names.
    """
    _check_no_pack(sources, packs)
    named = [*_pack_sources(packs, default=not sources), *sources]
    datasets: list[DatasetRef] = []
    for source, name, must in _places(named):
        load = partial(load_features, source, normalize=normalize, beside={})
        features = _loaded(source, load, must=must)
        if features is None:
            continue
        dataset = DatasetRef.of(name, features, prompt, load)
        twins = (other for other in datasets if other.digest == dataset.digest)
        twin = next((other for other in twins if not names_matter or other.class_names == dataset.class_names), None)
        if twin is not None:
            print_warning(f"left out: {source} holds the same as {twin.name}")
            continue
        for hint in () if is_pack(source) else dataset.hints:
            print_warning(f"{source}: {hint}")
        datasets.append(dataset)
    if not datasets:
        raise ValueError("nothing to compare on: no set is left. Fix: name feature files that hold labels.")
    return datasets


def _check_no_pack(sources: Sequence[str], packs: str | None) -> None:
    """A bare name beside `--packs a` reads as a second pack, and is taken for a file."""
    known = {info.name for info in bundled.list()}
    for source in sources:
        if source in known and not Path(source).exists():
            listed = "" if packs is None else f", or --packs {packs},{source}"
            raise ValueError(f"no file at {source}; a bundled pack is called so. Fix: pack:{source}{listed}.")


def _pack_sources(packs: str | None, *, default: bool) -> list[str]:
    if packs is None and not default:
        return []
    infos = bundled.list()
    plain = [info.name for info in infos if info.n_views == 0]
    names = plain if packs is None else [name.strip() for name in packs.split(",") if name.strip()]
    if not names:
        raise ValueError(f"--packs names no pack. Fix: all, or some of {', '.join(info.name for info in infos)}.")
    wanted = dict.fromkeys(one for name in names for one in (plain if name == "all" else [name]))
    return [f"{PACK_PREFIX}{name}" for name in wanted]


def _places(sources: Sequence[str]) -> Iterator[tuple[str, str, bool]]:
    """(source, a name no other has, whether it was named itself) of every set."""
    found: list[tuple[str, bool]] = []
    for source in sources:
        if is_pack(source) or not Path(source).is_dir():
            found.append((source, True))
        else:
            found += [(file, False) for file in _files(Path(source))]
    found = list({source: (source, must) for source, must in found}.values())
    count = Counter(_short(source) for source, _ in found)
    for source, must in found:
        yield source, _short(source) if count[_short(source)] == 1 else _long(source), must


def _files(folder: Path) -> list[str]:
    files = sorted(str(path) for path in folder.iterdir() if path.suffix in SUFFIXES and path.is_file())
    if not files:
        raise ValueError(
            f"{folder} holds no feature files ({', '.join(SUFFIXES)}). Fix: name another folder, or the files."
        )
    return files


def _short(source: str) -> str:
    return source.removeprefix(PACK_PREFIX) if is_pack(source) else Path(source).stem


def _long(source: str) -> str:
    """With the folder, where the file's own name is not enough."""
    if is_pack(source):
        return source
    path = Path(source).resolve()
    return f"{path.parent.name}/{path.name}"


def _loaded(source: str, load: Callable[[], FeatureSet], *, must: bool) -> FeatureSet | None:
    """The set; None, and a word why, for one that only lies in a folder and cannot be compared on."""
    if holds_features_alone(source):
        raise ValueError(
            f"{source} holds features alone; to compare, labels and prototypes are needed too. "
            "Fix: FeatureSet(features, prototypes=..., labels=...).save('features.safetensors')."
        )
    if must:
        return load()
    try:
        features = load()
        reason = _unfit(features)
    except (ValueError, TypeError) as error:
        reason = str(error)
    if reason is None:
        return features
    said = reason.removeprefix(f"{source}: ").removeprefix(f"{source} ")
    print_warning(f"left out: {source}: {said}")
    return None


def _unfit(features: FeatureSet) -> str | None:
    if features.labels is None:
        return "it has no labels to count by"
    if features.views is not None:
        return "it holds views (name the file itself to compare on it, its plain images and its views)"
    return None


# The loop of `zeroshift compare`: runs that are not recorded yet, and a bar, or in a log file a line a run.


def run_with_progress(planned: Plan, ledger: Ledger, *, jobs: int, again: bool, quiet: bool) -> ComparisonSummary:
    """Do what is missing and sum up."""
    outcomes = []
    sizes = {dataset.name: dataset.n_samples for dataset in planned.datasets}
    log = RunLog(len(planned.trials), quiet=quiet, names=told_apart(planned.trials))
    total = sum(sizes[trial.features] for trial in planned.trials)
    with ending_on_signals(), progress_bar("comparing", total, quiet=quiet) as advance:
        runs = run_plan(planned, ledger, jobs=jobs, again=again, notes={"machine": machine()})
        # Closed at once when something goes wrong, so that no process is left running.
        with closing(runs):
            for outcome in runs:
                outcomes.append(outcome)
                log.add(outcome)
                done = f"{len(outcomes)} of {len(planned.trials)} runs"
                advance(sizes[outcome.job.features], f"{done}: {outcome.job.spec.label}")
    log.end()
    for path in ledger.damaged:
        print_warning(f"{path} held no record that can be read; its run was done again")
    return summarize(planned, outcomes)


RUNS, PAGE = "runs", "compare.html"

WHAT_PANEL = "What is compared"
SHOWN_PANEL = "What is shown"


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
        typer.Option(metavar="NAME,...", help="Bundled packs, or all without views.", rich_help_panel=WHAT_PANEL),
    ] = None,
    methods: Annotated[
        str,
        typer.Option(
            "--methods",
            "-m",
            metavar="NAME,...",
            help="Methods; NAME+support gives labelled samples too, NAME+views the views of each image. "
            "Or all, online, episodic, transductive, few-shot.",
            rich_help_panel=WHAT_PANEL,
        ),
    ] = "all",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            "-s",
            metavar="METHOD.NAME=VALUE",
            help="A parameter of a method; as often as needed.",
            rich_help_panel=WHAT_PANEL,
        ),
    ] = None,
    orders: Annotated[
        int, typer.Option(help="Random orders of the stream, or draws of samples.", rich_help_panel=WHAT_PANEL)
    ] = 3,
    shots: Annotated[
        int,
        typer.Option(help="Labelled samples of a class for few-shot methods.", rich_help_panel=WHAT_PANEL),
    ] = 4,
    prompt: Annotated[
        str | None,
        typer.Option(help="Prompt mode of the prototypes.", show_default="each set's", rich_help_panel=WHAT_PANEL),
    ] = None,
    normalize: Annotated[
        bool, typer.Option("--normalize", help="Scale rows to unit length first.", rich_help_panel=WHAT_PANEL)
    ] = False,
    encoder: options.FeatureEncoder = None,
    revision: options.Revision = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the records and the page.")] = Path(
        "zeroshift-compare"
    ),
    again: Annotated[bool, typer.Option("--again", help="Do also the runs that are recorded.")] = False,
    jobs: Annotated[int, typer.Option(help="Processes. Times are comparable only with 1.")] = 1,
    by_set: Annotated[
        bool, typer.Option("--by-set", help="Also a table for each set.", rich_help_panel=SHOWN_PANEL)
    ] = False,
    markdown: Annotated[
        Path | None,
        typer.Option(
            help="Write the tables to this file, or between its <!-- compare --> and <!-- /compare -->.",
            rich_help_panel=SHOWN_PANEL,
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print everything as JSON.", rich_help_panel=SHOWN_PANEL)
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress bar and no table.", rich_help_panel=SHOWN_PANEL)
    ] = False,
) -> None:
    """Compare methods on labelled features: accuracy, gain over zero-shot, calibration, time, memory, encoder passes.

    Each run is recorded as it is done: the same command again goes on where it stopped.

    For example: zeroshift compare my-features.safetensors --methods online
    """
    from zeroshift.cli._encoder_options import check_encoder_options, load_behind
    from zeroshift.cli._output_paths import check_folder
    from zeroshift.evaluate import Ledger, describe_skipped, plan_comparison
    from zeroshift.parameters import Number
    from zeroshift.report.compare_page import check_page, write_page
    from zeroshift.report.compare_tables import (
        check_markdown,
        compare_record,
        compare_table,
        remarks,
        set_tables,
        write_markdown,
    )

    for name, value, least in (("--orders", orders, 1), ("--shots", shots, 1), ("--jobs", jobs, 1)):
        Number(least, integer=True).check(name, value)
    check_encoder_options(encoder, revision=revision, device=device, dtype=dtype)
    # A wrong name is refused before any set is read.
    specs = chosen_specs(methods, settings or [], views=True, encoder=encoder is not None)
    if encoder is not None and not any(spec.tunes_text for spec in specs):
        raise ValueError(
            "--encoder is for methods that tune its prompts, and none is compared. Fix: leave it out, or add -m tpt."
        )
    datasets = chosen_datasets(
        features or [], packs, prompt=prompt, normalize=normalize, names_matter=encoder is not None
    )
    views = any(dataset.n_views for dataset in datasets)
    specs = chosen_specs(methods, settings or [], views=views, encoder=encoder is not None)
    behind = load_behind(encoder, revision=revision, device=device, dtype=dtype)
    planned = plan_comparison(datasets, specs, orders=orders, shots=shots, encoder=behind)
    for line in describe_skipped(planned.skipped):
        print_warning(f"left out: {line}")
    if not planned.trials:
        raise ValueError(
            "no method is left to compare. Fix: see the reasons above; --set gives a method what it lacks."
        )
    check_page(out / PAGE)
    check_folder(out, [out / PAGE])
    check_folder(out / RUNS)
    if markdown is not None:
        check_markdown(markdown)

    summary = run_with_progress(planned, Ledger(out / RUNS), jobs=jobs, again=again, quiet=quiet)
    for failed in summary.failed:
        print_warning(f"failed: {failed.job}: {failed.error}")
    if summary.overall:
        write_page(out / PAGE, summary)
        if markdown is not None:
            write_markdown(markdown, summary)
    said = remarks(summary)
    if json:
        print_json({**compare_record(summary), "remarks": said, "out": str(out), "page": str(out / PAGE)})
    elif not quiet and summary.overall:
        screen = console()
        for table in (compare_table(summary), *(set_tables(summary) if by_set else ())):
            screen.print(table)
        screen.print(" ".join(said), style="dim")
        for path in (out / PAGE, *([markdown] if markdown else [])):
            screen.print(f"written: {path}", soft_wrap=True)
    if summary.failed:
        raise typer.Exit(1)

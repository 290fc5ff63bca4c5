"""Tables of what is available: methods, packs, data sets, encoder families, prompt modes and experiments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from zeroshift.methods import MethodInfo
from zeroshift.report.formatting import describe_needs
from zeroshift.report.tables import ReportCell, ReportColumn, ReportTable

if TYPE_CHECKING:
    # Types only: `zeroshift methods` and `zeroshift packs` do not wait for the encoders.
    from zeroshift.data.catalogue.data_sets import DataSetInfo
    from zeroshift.data.catalogue.status import DataSetStatus
    from zeroshift.data.packs import PackInfo
    from zeroshift.encode.prompts import PromptMode
    from zeroshift.encode.registry import FamilyInfo
    from zeroshift.experiments import Experiment

__all__ = [
    "dataset_status_table",
    "datasets_table",
    "encoders_table",
    "experiments_table",
    "method_details_table",
    "methods_markdown",
    "methods_table",
    "packs_table",
    "prompts_table",
]


PROTOCOLS = {
    "online": "one sample after the other",
    "transductive": "a whole set at once",
    "episodic": "each image alone, from views of it",
    "few-shot": "with labelled samples of each class",
}
"""How methods of each protocol get their samples."""


def methods_table(methods: Sequence[MethodInfo]) -> ReportTable:
    """One row per method, grouped by protocol: what it does."""
    columns = (_name_column("name"), ReportColumn("what it does"))
    ordered = _by_protocol(methods)
    shown = dict.fromkeys(method.protocol for method in ordered)
    return ReportTable.from_values(
        columns,
        ((method.name, method.headline) for method in ordered),
        groups=[method.protocol for method in ordered],
        notes=["; ".join(f"{protocol}: {PROTOCOLS[protocol]}" for protocol in shown) + "."],
    )


def method_details_table(methods: Sequence[MethodInfo]) -> ReportTable:
    """One row per method, grouped by protocol: what it needs and costs."""
    columns = (
        _name_column("name"),
        ReportColumn("needs"),
        ReportColumn("state", drop_order=2),
        ReportColumn("cost", drop_order=1),
    )
    ordered = _by_protocol(methods)
    rows = ((method.name, describe_needs(method), method.state_size, method.complexity) for method in ordered)
    return ReportTable.from_values(columns, rows, groups=[method.protocol for method in ordered])


def _by_protocol(methods: Sequence[MethodInfo]) -> list[MethodInfo]:
    return sorted(methods, key=lambda method: list(PROTOCOLS).index(method.protocol))


def methods_markdown(methods: Sequence[MethodInfo]) -> str:
    """One row per method, for docs/methods.md; the last column holds remarks, if there are any.

    >>> from zeroshift.methods import get
    >>> print(methods_markdown([get("zero_shot")]).splitlines()[-1])
    | zero_shot | `ZeroShot` | online | K d, the prototypes | O(K d) per sample |
    """
    titles = ("name", "class", "protocol", "needs", "state", "cost", "")
    columns = [ReportColumn(title, is_code=title == "class") for title in titles]
    rows = (
        (
            method.name,
            method.cls.__name__,
            method.protocol,
            describe_needs(method),
            method.state_size,
            method.complexity,
            _remarks(method),
        )
        for method in methods
    )
    return ReportTable.from_values(columns, rows).markdown()


def _remarks(method: MethodInfo) -> str:
    remarks = ["scored before it learns"] if method.protocol == "online" and method.scored == "before" else []
    return ", ".join([*remarks, *(["reconstructed"] if method.reconstructed else [])])


def packs_table(packs: Sequence[PackInfo]) -> ReportTable:
    sizes = (ReportColumn(title, is_right=True, is_whole=True) for title in ("samples", "classes", "d", "views"))
    columns = (_name_column("name"), *sizes, ReportColumn("what it is"))
    rows = (
        (pack.name, pack.n_samples, pack.n_classes, pack.dimension, pack.n_views or "-", pack.title) for pack in packs
    )
    return ReportTable.from_values(columns, rows)


def datasets_table(datasets: Sequence[DataSetInfo]) -> ReportTable:
    columns = (
        _name_column("id"),
        ReportColumn("title"),
        ReportColumn("classes", is_right=True),
        ReportColumn("test", format=lambda count: f"{count:,}", is_right=True),
        ReportColumn("template"),
    )
    rows = ((info.id, info.title, info.n_classes, info.counts["test"], info.template) for info in datasets)
    return ReportTable.from_values(columns, rows)


def dataset_status_table(statuses: Sequence[DataSetStatus]) -> ReportTable:
    """How many of the expected images of each data set were found."""
    styles = {"complete": "green", "differs": "yellow", "incomplete": "red", "missing": "dim"}
    counts = (ReportColumn(title, format=lambda count: f"{count:,}", is_right=True) for title in ("found", "of"))
    columns = (_name_column("data set"), ReportColumn("state"), *counts, ReportColumn(""))
    rows = (
        (status.id, ReportCell(status.state, style=styles[status.state]), status.found, status.expected, status.unit)
        for status in statuses
    )
    return ReportTable.from_values(columns, rows)


def experiments_table(experiments: Sequence[Experiment]) -> ReportTable:
    columns = (_name_column("name"), ReportColumn("what it is about"), ReportColumn("in the paper"))
    rows = ((experiment.name, experiment.title, experiment.where or "-") for experiment in experiments)
    return ReportTable.from_values(columns, rows)


def encoders_table(families: Sequence[FamilyInfo]) -> ReportTable:
    """An example of each family and whether it can be used on this machine; remarks and what to install below it."""
    columns = (_name_column("family"), ReportColumn("here", is_whole=True), ReportColumn("for example"))
    rows: list[tuple[Any, ...]] = []
    for family in families:
        state = ReportCell("missing", style="yellow") if family.missing else ReportCell("ready", style="green")
        rows.append((family.name, state, family.example))
        remarks = [*([family.note] if family.note else []), *([family.fix] if family.missing else [])]
        rows += [("", "", ReportCell(remark, style="dim")) for remark in remarks]
    return ReportTable.from_values(columns, rows)


def prompts_table(modes: Sequence[PromptMode]) -> ReportTable:
    columns = (_name_column("mode"), ReportColumn("what it says"))
    return ReportTable.from_values(columns, ((mode.name, _describe_mode(mode)) for mode in modes))


def _describe_mode(mode: PromptMode) -> str:
    needs = f"; needs {' and '.join(f'--{need}' for need in mode.needs)}" if mode.needs else ""
    has_other_title = mode.title.lower().replace(" ", "_") != mode.name
    return f"{mode.summary}{needs}{f' (in the paper: {mode.title})' if has_other_title else ''}"


def _name_column(title: str) -> ReportColumn:
    """Names are never broken: half a name cannot be copied into a command."""
    return ReportColumn(title, is_whole=True, style="bold")

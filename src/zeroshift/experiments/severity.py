"""Table 20: accuracy as corruption grows from severity 1 to 5."""

from __future__ import annotations

from collections.abc import Sequence

from zeroshift.data.corruptions import KINDS
from zeroshift.evaluate import Job, Trial
from zeroshift.experiments.parts.contenders import label_of
from zeroshift.experiments.parts.experiment import Answers, Experiment, Options
from zeroshift.experiments.parts.findings import Column, Finding, Lines, Remark, Row, Series, Table, Value
from zeroshift.experiments.parts.marks import with_best
from zeroshift.experiments.parts.paper import paper_table
from zeroshift.experiments.parts.reference import reference
from zeroshift.experiments.parts.slug import slug
from zeroshift.experiments.parts.suite import Member, Suite, together
from zeroshift.experiments.parts.task_table import data_remark
from zeroshift.experiments.parts.trials import mean_of_sets, runs

__all__ = ["EXPERIMENT"]

PRINTED = "corruption_severity"
PAPERS_BACKBONE = "CLIP ViT-B/16"
"""Not printed beside the table; its numbers at severity 5 are the means of Table 3."""

METHODS = {
    "zero_shot": {"method": "CLIP"},
    "tda": {"method": "TDA"},
    "adapt_online": {"method": "ADAPT", "protocol": "online"},
    "adapt_transductive": {"method": "ADAPT", "protocol": "transductive"},
}
"""The rows, and how the paper's table names them."""

NO_SETS = Remark(
    "None of the sets says at which severity it was corrupted. Fix: ImageNet-C below --data ROOT, or feature files "
    "made with `zeroshift extract ... --corruption KIND --severity 1` (to 5)."
)


def _by_severity(suite: Suite) -> dict[int, list[Member]]:
    members = [member for member in suite.of_task("corruption") if member.severity is not None]
    severities = sorted({member.severity for member in members if member.severity is not None})
    return {severity: [m for m in members if m.severity == severity] for severity in severities}


def _trials(method: str, member: Member) -> list[Trial]:
    return runs(member, method)


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    members = [member for found in _by_severity(suite).values() for member in found]
    return [trial for member in members for method in METHODS for trial in _trials(method, member)]


def _find(suite: Suite, options: Options, answers: Answers) -> Sequence[Finding]:
    findings: list[Finding] = []
    parts = [part for part in suite.by_encoder if _by_severity(part)]
    for part in parts:
        (encoder,) = part.encoders
        ending, words = ("", "") if len(parts) == 1 else (f"-{slug(encoder)}", f", {encoder}")
        columns = _by_severity(part)
        table = _table(f"severity{ending}", f"Mean accuracy at each severity{words}", columns, encoder, answers)
        findings.append(table)
        if len(columns) > 1 and _comparable(columns):
            findings.append(_curve(f"severity-curve{ending}", f"Accuracy as corruption grows{words}", table, columns))
        elif len(columns) > 1:
            findings.append(_kinds_differ(columns))
    if not parts:
        return [NO_SETS, reference(PRINTED)]
    remark = data_remark(Suite(tuple(m for part in parts for found in _by_severity(part).values() for m in found)))
    return [*findings, *([] if remark is None or _all_papers(parts) else [remark]), reference(PRINTED)]


def _table(name: str, title: str, columns: dict[int, list[Member]], encoder: str, answers: Answers) -> Table:
    rows = []
    for method in METHODS:
        cells = (
            mean_of_sets(answers, [_trials(method, m) for m in found], paper=_printed(severity, found, encoder, method))
            for severity, found in columns.items()
        )
        rows.append(Row((label_of(method), *cells), strong=method.startswith("adapt")))
    heads = (Column(f"Severity {severity}", "percent", together(found)) for severity, found in columns.items())
    notes = ("The mean over the kinds of corruption, each counting the same; online methods in one random order.",)
    return Table(name, title, (Column("method", "text"), *heads), with_best(rows), notes)


def _printed(severity: int, members: Sequence[Member], encoder: str, method: str) -> float | None:
    if encoder != PAPERS_BACKBONE or not _whole(members):
        return None
    number = paper_table(PRINTED).number_at(f"Severity {severity}", **METHODS[method])
    return None if number is None else number / 100


def _whole(members: Sequence[Member]) -> bool:
    """Whether these are ImageNet-C's fifteen kinds, each once."""
    return all(member.papers for member in members) and sorted(str(m.corruption) for m in members) == sorted(KINDS)


def _all_papers(parts: Sequence[Suite]) -> bool:
    return all(_whole(found) for part in parts for found in _by_severity(part).values())


def _comparable(columns: dict[int, list[Member]]) -> bool:
    kinds = [sorted((member.data_set, str(member.corruption)) for member in found) for found in columns.values()]
    return all(other == kinds[0] for other in kinds)


def _kinds_differ(columns: dict[int, list[Member]]) -> Remark:
    said = "; ".join(together(found) for found in columns.values())
    return Remark(
        f"The columns are of different kinds of corruption ({said}), so their difference is not that of the severity. "
        "Compare within a column."
    )


def _curve(name: str, title: str, table: Table, columns: dict[int, list[Member]]) -> Lines:
    series = []
    for method, row in zip(METHODS, table.rows, strict=True):
        cells = zip(columns, row.cells[1:], strict=True)
        points = [(float(severity), 100 * cell.value) for severity, cell in cells if isinstance(cell, Value)]
        series.append(Series(label_of(method), tuple(x for x, _ in points), tuple(y for _, y in points), method=method))
    return Lines(name, title, "severity", "accuracy (%)", tuple(series), steps=True)


EXPERIMENT = Experiment(
    name="severity",
    title="Severity of corruption",
    question="Does the gain over zero-shot hold from light corruption to heavy?",
    plan=_plan,
    find=_find,
    where="Table 20",
    tables=(PRINTED,),
)

"""Table 20: accuracy for severities 1 to 5."""

from __future__ import annotations

from collections.abc import Sequence

from zeroshift.data.corruptions import KINDS
from zeroshift.evaluate import Job
from zeroshift.experiments._shared.claims import ClaimEvidence, effective_samples, higher, verdict
from zeroshift.experiments._shared.compared_methods import method_label
from zeroshift.experiments._shared.experiment import Experiment, JobResults, Options
from zeroshift.experiments._shared.findings import Column, Finding, Lines, Remark, Row, Series, Table, Value
from zeroshift.experiments._shared.paper import paper_table
from zeroshift.experiments._shared.suite import Member, Suite, describe_sets
from zeroshift.experiments._shared.tables import data_remark, reference, with_best, with_mean_note
from zeroshift.experiments._shared.tasks import CORRUPTION, PAPERS_BACKBONE
from zeroshift.experiments._shared.trials import difference, mean_of_sets, runs

__all__ = ["EXPERIMENT"]

PRINTED = "corruption_severity"

PAPERS_SET = "imagenet_c"

ADAPTED = {"adapt_online": "online", "adapt_transductive": "transductive"}

METHODS = {
    "zero_shot": {"method": "CLIP"},
    "tda": {"method": "TDA"},
    "adapt_online": {"method": "ADAPT", "protocol": "online"},
    "adapt_transductive": {"method": "ADAPT", "protocol": "transductive"},
}
"""The rows, and their names in the paper."""

NO_SETS = Remark(
    "None of the sets says at which severity it was corrupted. Fix: ImageNet-C below --data ROOT, or feature files "
    "made with `zeroshift extract ... --corruption KIND --severity 1` (to 5)."
)


def _by_severity(suite: Suite) -> dict[int, list[Member]]:
    members = [member for member in suite.of_task(CORRUPTION) if member.severity is not None]
    severities = sorted({member.severity for member in members if member.severity is not None})
    return {severity: [m for m in members if m.severity == severity] for severity in severities}


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    members = [member for found in _by_severity(suite).values() for member in found]
    return [trial for member in members for method in METHODS for trial in runs(member, method)]


def _find(suite: Suite, options: Options, results: JobResults) -> Sequence[Finding | None]:
    columns = _by_severity(suite)
    if not columns:
        return [NO_SETS, reference(PRINTED)]
    (encoder,) = suite.encoders
    table = _table(columns, encoder, results)
    findings: list[Finding | None] = [with_mean_note(table), _gains(table)]
    if len(columns) > 1:
        findings.append(_curve(table, columns) if _comparable(columns) else _kinds_differ(columns))
    findings.append(_verdict("ADAPT is above zero-shot at every severity", "zero_shot", table, columns))
    findings.append(_verdict("ADAPT outperforms TDA at all severities", "tda", table, columns))
    shown = Suite(tuple(member for found in columns.values() for member in found))
    whole = all(_whole(found) for found in columns.values())
    findings.append(data_remark(shown, needs=(PAPERS_SET,) if whole else ()))
    return [*findings, reference(PRINTED)]


def _table(columns: dict[int, list[Member]], encoder: str, results: JobResults) -> Table:
    rows = []
    for method in METHODS:
        cells = (
            mean_of_sets(results, [runs(m, method) for m in found], paper=_printed(severity, found, encoder, method))
            for severity, found in columns.items()
        )
        rows.append(Row((method_label(method), *cells), strong=method.startswith("adapt")))
    heads = (Column(f"Severity {severity}", "percent", describe_sets(found)) for severity, found in columns.items())
    notes = ("The mean over the kinds of corruption, each counting the same; online methods in one random order.",)
    title = "Mean accuracy at each severity"
    return Table("severity", title, (Column("method", "text"), *heads), with_best(rows), notes)


def _gains(table: Table) -> Table:
    """The gain of ADAPT over zero-shot at each severity."""
    rows = {method: row.cells for method, row in zip(METHODS, table.rows, strict=True)}
    found = []
    for method in ADAPTED:
        pairs = zip(rows[method][1:], rows["zero_shot"][1:], strict=True)
        found.append(Row((method_label(method), *(difference(ours, base) for ours, base in pairs))))
    columns = (Column("method", "text"), *(Column(c.title, "points", c.detail) for c in table.columns[1:]))
    notes = ("In percentage points over the zero-shot classifier.",)
    return Table("severity-gain", "What ADAPT gains at each severity", columns, tuple(found), notes)


def _verdict(claim: str, rival: str, table: Table, columns: dict[int, list[Member]]) -> Remark | None:
    """A claim of the paper about ADAPT and another method, per severity; without missing cells."""
    rows = {method: row.cells for method, row in zip(METHODS, table.rows, strict=True)}
    evidence = []
    for method, name in ADAPTED.items():
        for severity, found, ours, theirs in zip(
            columns, columns.values(), rows[method][1:], rows[rival][1:], strict=True
        ):
            if isinstance(ours, Value) and isinstance(theirs, Value):
                samples = effective_samples(member.dataset.n_samples for member in found)
                holds = higher(ours.value, theirs.value, samples=samples)
                detail = f"{100 * (ours.value - theirs.value):+.1f} points"
                evidence.append(ClaimEvidence(f"{name}, severity {severity}", holds, detail))
    return verdict(claim, evidence)


def _printed(severity: int, members: Sequence[Member], encoder: str, method: str) -> float | None:
    # The table does not name its encoder, but its numbers at severity 5 are the means of Table 3.
    if encoder != PAPERS_BACKBONE or not _whole(members):
        return None
    number = paper_table(PRINTED).number_at(f"Severity {severity}", **METHODS[method])
    return None if number is None else number / 100


def _whole(members: Sequence[Member]) -> bool:
    """Whether these are the fifteen kinds of ImageNet-C, each once."""
    return all(member.from_paper for member in members) and sorted(str(m.corruption) for m in members) == sorted(KINDS)


def _comparable(columns: dict[int, list[Member]]) -> bool:
    kinds = [sorted((member.data_set, str(member.corruption)) for member in found) for found in columns.values()]
    return all(other == kinds[0] for other in kinds)


def _kinds_differ(columns: dict[int, list[Member]]) -> Remark:
    text = "; ".join(describe_sets(found) for found in columns.values())
    return Remark(
        f"The columns are of different kinds of corruption ({text}), so their difference is not that of the severity. "
        "Compare within a column."
    )


def _curve(table: Table, columns: dict[int, list[Member]]) -> Lines:
    series = []
    for method, row in zip(METHODS, table.rows, strict=True):
        cells = zip(columns, row.cells[1:], strict=True)
        points = [(float(severity), 100 * cell.value) for severity, cell in cells if isinstance(cell, Value)]
        series.append(
            Series(method_label(method), tuple(x for x, _ in points), tuple(y for _, y in points), method=method)
        )
    return Lines(
        "severity-curve", "Accuracy as corruption grows", "severity", "accuracy (%)", tuple(series), steps=True
    )


EXPERIMENT = Experiment(
    name="severity",
    title="Severity of corruption",
    question="Does the gain over zero-shot hold from light corruption to heavy?",
    plan=_plan,
    find=_find,
    where="Table 20",
    tables=(PRINTED,),
)

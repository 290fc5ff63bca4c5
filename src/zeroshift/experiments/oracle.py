"""The oracle row of Table 4, for every task: how far ADAPT is from what the labels of the test set would bring."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from zeroshift.evaluate import Analysis, Job, Trial
from zeroshift.experiments.parts.experiment import Answers, Experiment, Options
from zeroshift.experiments.parts.findings import Bar, Bars, Cell, Column, Finding, Row, Table, Value
from zeroshift.experiments.parts.oracle_adapt import oracle_adapt
from zeroshift.experiments.parts.oracle_claims import Gaps, claim, elsewhere, left_to_oracle, papers_own
from zeroshift.experiments.parts.paper import paper_table
from zeroshift.experiments.parts.printed_means import noted
from zeroshift.experiments.parts.suite import Member, Suite
from zeroshift.experiments.parts.task_table import Variant, data_remark, jobs_of, task_table
from zeroshift.experiments.parts.tasks import PAPERS_BACKBONE, TASKS
from zeroshift.experiments.parts.trials import mean_of_sets, runs

__all__ = ["EXPERIMENT", "variants"]

ADAPTED = {"adapt_online": "online", "adapt_transductive": "transductive"}

NAMES = {"banks": "oracle", "all": "oracle, covariance of all samples"}


def _oracle(member: Member, covariance: str) -> list[Job]:
    entry = member.entry
    return [Analysis(entry.name, entry.digest, entry.prompt, oracle_adapt, {"covariance": covariance})]


def _run(method: str, orders: int) -> Callable[[Member], list[Trial]]:
    return partial(runs, method=method, orders=orders)


def variants(options: Options) -> list[Variant]:
    """The rows of the table."""
    return [
        Variant("zero-shot", _run("zero_shot", 1), "without labels", _printed("CLIP", "online")),
        *(
            Variant(
                f"ADAPT, {name}", _run(method, options.orders), "without labels", _printed("ADAPT", name), strong=True
            )
            for method, name in ADAPTED.items()
        ),
        *(
            Variant(
                f"{name} (uses labels)",
                partial(_oracle, covariance=covariance),
                "with all labels: a bound, not a method",
                _printed("Oracle ADAPT") if covariance == "banks" else {},
            )
            for covariance, name in NAMES.items()
        ),
    ]


def _printed(method: str, protocol: str | None = None) -> dict[str, float | None]:
    """The paper's averages by task; of the oracle only the fine-grained one is printed."""
    wanted = {"method": method} if protocol is None else {"method": method, "protocol": protocol}
    tables = {task.paper: task.tables.get(PAPERS_BACKBONE) for task in TASKS}
    return {task: paper_table(name).number_at("Avg.", **wanted) for task, name in tables.items() if name}


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    return jobs_of(variants(options), suite)


def _find(suite: Suite, options: Options, answers: Answers) -> Sequence[Finding]:
    table = task_table(
        "oracle",
        "ADAPT and its oracle, which is given every label",
        variants(options),
        suite,
        answers,
        label="method",
        notes=(
            "Oracle: Algorithm 2 with the one-hot truth in place of the zero-shot posterior for means, banks and "
            "covariance, over the full test set; samples are scored with their zero-shot posterior as ever. It sees "
            "the labels of the very samples it is scored on: it shows what better pseudo-labels could bring, and is no "
            "method.",
            "Its covariance is that of the banks, as in Algorithm 2; the last row takes it from all samples instead.",
        ),
    )
    gaps = [(task, _gap(suite.of_task(task.id), options, answers)) for task in suite.tasks]
    findings: list[Finding | None] = [noted(table), _gaps(gaps), _bars(suite, options, answers)]
    findings += [claim(suite, gaps), elsewhere(gaps), papers_own(), data_remark(suite)]
    return [finding for finding in findings if finding is not None]


def _gap(members: Sequence[Member], options: Options, answers: Answers) -> dict[str, float]:
    """Mean accuracies of zero-shot, both ADAPTs and the oracle; those that failed are not there."""
    by_name = {
        "zero_shot": mean_of_sets(answers, [runs(m, "zero_shot") for m in members]),
        "oracle": mean_of_sets(answers, [_oracle(m, "banks") for m in members]),
        **{name: mean_of_sets(answers, [runs(m, name, options.orders) for m in members]) for name in ADAPTED},
    }
    return {name: found.value for name, found in by_name.items() if found is not None}


def _closed(means: Mapping[str, float], method: str) -> float | None:
    """(adapted - zero-shot) / (oracle - zero-shot); None where there is no gap to close."""
    if not {"zero_shot", "oracle", method} <= set(means) or means["oracle"] <= means["zero_shot"]:
        return None
    return (means[method] - means["zero_shot"]) / (means["oracle"] - means["zero_shot"])


def _gaps(gaps: Gaps) -> Table:
    rows = []
    for task, means in gaps:
        cells = [left_to_oracle(means, "zero_shot"), *(_closed(means, name) for name in ADAPTED)]
        cells += [left_to_oracle(means, name) for name in ADAPTED]
        values: list[Cell] = [None if value is None else Value(value) for value in cells]
        rows.append(Row((task.title, *values)))
    closed = [Column(f"closed, {name}", "percent", "of the gap") for name in ADAPTED.values()]
    left = [Column(f"left, {name}", "points", "from ADAPT to the oracle") for name in ADAPTED.values()]
    return Table(
        "gap",
        "How much of the gap between zero-shot and the oracle ADAPT closes",
        (Column("task", "text"), Column("gap", "points", "from zero-shot to the oracle"), *closed, *left),
        tuple(rows),
        ("Closed: (ADAPT - zero-shot) / (oracle - zero-shot), of the means over the sets.",),
    )


def _bars(suite: Suite, options: Options, answers: Answers) -> Bars:
    bars = []
    for member in suite.members:
        means = _gap([member], options, answers)
        for method, name in ADAPTED.items():
            share = _closed(means, method)
            if share is not None:
                bars.append(Bar(f"ADAPT, {name}", 100 * share, group=member.name, method=method))
    return Bars("closed", "Share of the gap to the oracle that ADAPT closes", "percent of the gap", tuple(bars))


EXPERIMENT = Experiment(
    name="oracle",
    title="The oracle bound",
    question="How much of what true labels would bring does ADAPT reach without them?",
    plan=_plan,
    find=_find,
    where="Table 4 (oracle row)",
    tables=("fine_grained_vitb16",),
)

"""The shape most of the paper's tables have: a row a variant, a column a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from zeroshift.evaluate import Job
from zeroshift.experiments.parts.experiment import Answers
from zeroshift.experiments.parts.findings import Cell, Column, Remark, Row, Table, Value
from zeroshift.experiments.parts.marks import with_best
from zeroshift.experiments.parts.paper import PaperRow
from zeroshift.experiments.parts.printed_means import noted
from zeroshift.experiments.parts.suite import Member, Suite, Task, together
from zeroshift.experiments.parts.tasks import PAPERS_BACKBONE, TASKS
from zeroshift.experiments.parts.trials import mean_of_sets

__all__ = [
    "PAPERS_PROMPT",
    "Variant",
    "accuracies",
    "data_remark",
    "differs",
    "jobs_of",
    "printed_by_task",
    "task_table",
    "task_title",
]

PAPERS_PROMPT = "descriptions"
"""The prompt mode of the paper's main results: class descriptions written by GPT."""


@dataclass(frozen=True)
class Variant:
    """A row: what is run on each set, and what the paper printed for it."""

    label: str
    trials: Callable[[Member], Sequence[Job]]
    group: str = ""
    paper: Mapping[str, float | None] = field(default_factory=dict)
    """In percent, by what the paper calls the task: "Task 1"."""
    strong: bool = False


def jobs_of(variants: Sequence[Variant], suite: Suite) -> list[Job]:
    """All work the rows need."""
    return [trial for member in suite.members for variant in variants for trial in variant.trials(member)]


def task_table(
    name: str,
    title: str,
    variants: Sequence[Variant],
    suite: Suite,
    answers: Answers,
    *,
    label: str = "",
    field: str = "accuracy",
    notes: Sequence[str] = (),
    best_by_group: bool = False,
) -> Table:
    """Mean accuracy over the sets of each task; the paper's beside it where the sets are the paper's.

    The best of each column is marked: of the whole column or, with `best_by_group`, of each group of rows.
    """
    columns = [Column(label, "text")]
    columns += [Column(task_title(task), "percent", together(suite.of_task(task.id))) for task in suite.tasks]
    rows = [
        Row((variant.label, *(_cell(variant, task, suite, answers, field) for task in suite.tasks)), variant.group,
            variant.strong)
        for variant in variants
    ]  # fmt: skip
    return noted(Table(name, title, tuple(columns), with_best(rows, by_group=best_by_group), tuple(notes)))


def printed_by_task(row: PaperRow | None) -> dict[str, float | None]:
    """What a row of the paper holds in the columns "Task 1" to "Task 3"; nothing where there is no such row."""
    return {} if row is None else {task.paper: row.number(task.paper) for task in TASKS if task.paper}


def accuracies(table: Table, suite: Suite) -> list[tuple[Task, dict[tuple[str, str], float]]]:
    """What a `task_table` holds for each task, by group and label of the row; what failed is left out."""
    return [
        (
            task,
            {
                (row.group, str(row.cells[0])): cell.value
                for row in table.rows
                if isinstance(cell := row.cells[place], Value)
            },
        )
        for place, task in enumerate(suite.tasks, start=1)
    ]


def data_remark(
    suite: Suite, what: str = "The paper's", *, needs: Sequence[str] = (), prompts: bool = True
) -> Remark | None:
    """Says where ours ran on other data than the paper's, or with other prompts; None where all was the same.

    `needs` are the sets, by their ids in the catalogue, that the paper's numbers are of where they are not means over
    all sets of a task. An experiment that compares prompts, and says itself which stand where, gives `prompts=False`.
    """
    texts = []
    other = _other_data(suite)
    if other:
        encoders = " and ".join(suite.encoders)
        texts.append(
            f"Ours ran on other data than the paper's ({encoders} features, {'; '.join(other)}). {what} numbers are "
            "for CLIP on ImageNet, its variants and ten fine-grained sets: compare the pattern, not the numbers."
        )
    missing = _missing(suite, needs)
    if missing:
        texts.append(f"Of the sets the paper's table is of, not here: {', '.join(missing)}.")
    elif _partial(suite, needs):
        texts.append("Some of the paper's sets are not here: our means do not compare with its means.")
    modes = dict.fromkeys(m.entry.prompt for m in suite.members if m.papers and m.entry.prompt != PAPERS_PROMPT)
    if modes and prompts:
        texts.append(
            f"The images are the paper's, the prompts are not: ours are {', '.join(modes)}, its main results are of "
            f"class descriptions written by GPT (mode {PAPERS_PROMPT}). Fix: `zeroshift extract ... --prompts "
            f"{PAPERS_PROMPT} --descriptions FILE`."
        )
    return Remark(" ".join(texts), kind="data") if texts else None


def differs(suite: Suite, needs: Sequence[str] = ()) -> bool:
    """Whether ours ran on other data than the paper's numbers are of; `needs` as in `data_remark`."""
    return bool(_other_data(suite)) or _partial(suite, needs)


def _other_data(suite: Suite) -> list[str]:
    """By task, the sets that are not the paper's."""
    by_task = ((task, [m for m in suite.of_task(task.id) if not m.papers]) for task in suite.tasks)
    return [f"for {task_title(task)}: {together(members)}" for task, members in by_task if members]


def _missing(suite: Suite, needs: Sequence[str]) -> list[str]:
    """Of the sets needed those that are not here, where others of the paper's are."""
    here = {member.data_set for member in suite.members if member.papers}
    return [name for name in needs if name not in here] if here else []


def _partial(suite: Suite, needs: Sequence[str]) -> bool:
    """Whether sets of the paper's are missing from a mean. Means over several encoders are not its means either."""
    if needs:
        return bool(_missing(suite, needs))
    whole = [task for task in suite.tasks if all(member.papers for member in suite.of_task(task.id))]
    return any(part.papers(task) is None for task in whole for part in suite.by_encoder)


def task_title(task: Task) -> str:
    """What a column or a place in a sentence is called.

    >>> task_title(TASKS[0]), task_title(TASKS[-1])
    ('Task 1: natural shift', 'Other sets')
    """
    return f"{task.paper}: {task.title}" if task.paper else task.title.capitalize()


def _cell(variant: Variant, task: Task, suite: Suite, answers: Answers, field: str) -> Cell:
    printed = variant.paper.get(task.paper) if suite.papers(task) == PAPERS_BACKBONE else None
    by_set = [variant.trials(member) for member in suite.of_task(task.id)]
    return mean_of_sets(answers, by_set, field, paper=None if printed is None else printed / 100)

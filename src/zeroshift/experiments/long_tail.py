"""Table 23: classes of very unequal size, without and with wrong pseudo-labels near the start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from zeroshift.evaluate import Analysis, Job
from zeroshift.evaluate.streams.long_tail import FEWEST, GROUPS, IMBALANCE
from zeroshift.evaluate.streams.noise import CONFIDENT, PHASE, SHARE
from zeroshift.experiments.parts.claims import Evidence, higher, samples_behind, verdict
from zeroshift.experiments.parts.experiment import Answers, Experiment, Options
from zeroshift.experiments.parts.findings import Column, Finding, Remark, Row, Table, Value
from zeroshift.experiments.parts.noisy_tail import ALL, long_tail_with_noise
from zeroshift.experiments.parts.reference import reference
from zeroshift.experiments.parts.suite import Member, Suite, together
from zeroshift.experiments.parts.trials import points, spread

__all__ = ["EXPERIMENT"]

Record = Mapping[str, Any]

FEW_CLASSES = 20
"""Sets with fewer are said to have groups of a few classes each."""

MIN_CLASSES = 3
"""With fewer no class is left that is neither the pseudo-class nor the true one."""


ROWS = (
    ("zero-shot", "zero_shot", False),
    ("zero-shot, with noise", "zero_shot", True),
    ("ADAPT", "adapt_online", False),
    ("ADAPT, with noise", "adapt_online", True),
)
"""Label, method and whether some early posteriors are swapped."""


def _jobs(member: Member, options: Options, noisy: bool) -> list[Analysis]:
    entry = member.entry
    return [
        Analysis(entry.name, entry.digest, entry.prompt, long_tail_with_noise, {"seed": seed, "noisy": noisy})
        for seed in range(options.orders)
    ]


def _taken(suite: Suite) -> list[Member]:
    return [member for member in suite.members if member.entry.n_classes >= MIN_CLASSES]


def _plan(suite: Suite, options: Options) -> Sequence[Job]:
    return [job for member in _taken(suite) for noisy in (False, True) for job in _jobs(member, options, noisy)]


Records = Mapping[bool, Sequence[Sequence[Record]]]
"""Without and with noise: of each set, the record of each draw."""


def _find(suite: Suite, options: Options, answers: Answers) -> Sequence[Finding]:
    told, left_out = [], [*_left_out([m for m in suite.members if m not in _taken(suite)], f"{MIN_CLASSES} classes")]
    silent, rare = [], []
    records: dict[bool, list[list[Record]]] = {False: [], True: []}
    for member in _taken(suite):
        jobs = {noisy: _jobs(member, options, noisy) for noisy in records}
        if any(len(answers.all_of(those)) < len(those) for those in jobs.values()):
            silent.append(member)
        elif not all(record["scored"] for those in jobs.values() for record in answers.all_of(those)):
            rare.append(member)
        else:
            told.append(member)
            for noisy, those in jobs.items():
                records[noisy].append(answers.all_of(those))
    left_out += _left_out(rare, f"{FEWEST} samples of some class")
    if silent:
        left_out.append(Remark(f"Left out, because runs failed: {together(silent)}.", kind="warning"))
    beside = Remark(
        f"Ours are long-tailed draws from {together(told)}; the paper's is one from ImageNet, whose rows are not "
        "published: compare the pattern, not the numbers.",
        kind="data",
    )
    found: list[Finding] = [_table(told, records, options), *_claims(records), beside] if told else []
    return [*found, *left_out, reference("long_tail_noise")]


def _left_out(members: Sequence[Member], what: str) -> list[Remark]:
    return [Remark(f"Left out, because of fewer than {what}: {together(members)}.")] if members else []


def _table(members: Sequence[Member], records: Records, options: Options) -> Table:
    rows = []
    for label, method, noisy in ROWS:
        cells = [_mean(records[noisy], method, name) for name in (*GROUPS, ALL)]
        before = _mean(records[False], method, ALL)
        change = Value(points(before.value, cells[-1].value)) if noisy and before and cells[-1] else None
        rows.append(Row((label, *cells, change), strong=method == "adapt_online"))
    every = [record for draws in records[False] for record in draws]
    columns = (
        Column("method", "text"),
        *(Column(name.capitalize(), "percent", _classes([r["classes"][name] for r in every])) for name in GROUPS),
        Column("All samples", "percent"),
        Column("Change by noise", "points", "all samples"),
    )
    notes = _notes(members, records, options)
    return Table("long-tail", "Accuracy on long-tailed streams", columns, tuple(rows), notes)


def _mean(by_set: Sequence[Sequence[Record]], method: str, name: str) -> Value | None:
    """Over the sets, each counting the same, draw by draw; a draw no set has the group in is left out."""
    draws = []
    for draw in zip(*by_set, strict=True):
        values = [record[method][name] for record in draw if record[method][name] is not None]
        draws += [float(np.mean(values))] if values else []
    return spread(draws) if draws else None


def _ends(words: Sequence[str]) -> str:
    """The first and the last of numbers in words, or the one there is."""
    return words[0] if words[0] == words[-1] else f"{words[0]} to {words[-1]}"


def _classes(counts: Sequence[int]) -> str:
    """How many classes a group has: "1 class", "3 to 61 classes"."""
    return f"{_ends([str(count) for count in sorted(counts)])} {'class' if max(counts) == 1 else 'classes'}"


def _notes(members: Sequence[Member], records: Records, options: Options) -> tuple[str, ...]:
    turned = [100 * record["turned"] / record["scored"] for draws in records[True] for record in draws]
    ratios = [record["imbalance"] for draws in records[True] for record in draws]
    share, ratio = _ends([f"{value:.1f}%" for value in sorted(turned)]), _ends([f"{n:.0f}:1" for n in sorted(ratios)])
    notes = [
        f"Sizes of classes fall by equal factors, up to {IMBALANCE:g}:1, in a drawn order, and never more than the "
        f"smallest class has: here {ratio}. The paper calls it a power law, and this gives "
        "its counts exactly. Head: at least 0.8 of the largest; tail: at most 0.2.",
        f"Noise: {SHARE:.0%} of the confident pseudo-labels in the first {PHASE:.0%} of the stream are turned into "
        f"another class that is wrong too, here {share} of all samples; confident is "
        f"the surest {CONFIDENT:.0%}, because the paper does not say what is.",
        f"Draws of each set: {options.orders}. The last accuracy is over all samples. So is the paper's average, not "
        "the mean of its three columns; only CLIP's, printed as 69.33, would by its columns be 69.17.",
    ]
    few = [member for member in members if member.entry.n_classes < FEW_CLASSES]
    if few:
        notes.append(
            f"Few classes ({together(few)}): a group holds a handful, and what it shows is as much which classes "
            "they happen to be."
        )
    return tuple(notes)


def _claims(records: Records) -> list[Remark]:
    def against(noisy: bool) -> list[Evidence]:
        found = []
        for name in (*GROUPS, ALL):
            a, b = (_mean(records[noisy], method, name) for method in ("zero_shot", "adapt_online"))
            sizes = [size for draws in records[noisy] if (size := draws[0]["samples"][name])]
            if a is not None and b is not None and sizes:
                holds = higher(b.value, a.value, samples=samples_behind(sizes))
                where = "all samples" if name == ALL else name
                found.append(Evidence(where, holds, f"{100 * a.value:.1f}% to {100 * b.value:.1f}%"))
        return found

    claims = (
        verdict("on a long tail ADAPT is more accurate than zero-shot in every group", against(False)),
        verdict("with early noise ADAPT is still more accurate than zero-shot, in every group", against(True)),
    )
    return [claim for claim in claims if claim is not None]


EXPERIMENT = Experiment(
    name="long-tail",
    title="Long tail with early noise",
    question="Does online ADAPT hold where most classes are rare, and where early pseudo-labels are wrong?",
    plan=_plan,
    find=_find,
    where="Table 23",
    tables=("long_tail_noise",),
)

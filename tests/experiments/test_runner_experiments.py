"""Several experiments together: equal jobs run once, failures stay separate, encoders are not mixed."""

from __future__ import annotations

import re

import pytest

from experiments.edge_cases import in_two_encoders, scattered
from experiments.reading import found, remarks
from zeroshift.evaluate import Analysis, JobOutcome, Ledger
from zeroshift.experiments import Experiment, Investigation, Member, Options, Suite
from zeroshift.experiments._shared.findings import Column, Remark, Row, Table, Value
from zeroshift.features import FeatureSet


def count(features: FeatureSet, *, prompt: str, twice: bool = False) -> dict[str, int]:
    """Work that takes no time."""
    return {"counted": features.n_samples * (2 if twice else 1)}


def job(member: Member, twice: bool = False) -> Analysis:
    dataset = member.dataset
    return Analysis(dataset.name, dataset.digest, dataset.prompt, count, {"twice": twice})


def plan(suite: Suite, options: Options) -> list[Analysis]:
    return [job(member) for member in suite.members]


def find(suite: Suite, options: Options, results) -> list[Table | Remark]:
    """What was counted on each set."""
    cells = [results.record(job(member)) for member in suite.members]
    rows = tuple(
        Row((member.name, None if record is None else Value(record["counted"])))
        for member, record in zip(suite.members, cells, strict=True)
    )
    return [Table("counts", "Counted", (Column("set", "text"), Column("samples", "count")), rows), Remark("Counted.")]


def experiment(name: str = "counting", **given) -> Experiment:
    return Experiment(
        **{"name": name, "title": "Counting", "question": "How many?", "plan": plan, "find": find, **given}
    )


def done(investigation: Investigation, folder) -> list[JobOutcome]:
    return list(investigation.run(Ledger(folder)))


@pytest.fixture
def suite() -> Suite:
    return Suite.of({"few": scattered(3, 2), "many": scattered(3, 5)})


def test_equal_jobs_of_several_experiments_run_once(suite, tmp_path):
    """The other experiment plans some of the same jobs, in another order, and more."""
    other = experiment("other", plan=lambda suite, options: [*plan(suite, options)[::-1], job(suite.members[0], True)])
    investigation = Investigation.of([experiment(), other], suite)
    assert len(investigation.jobs) == 3
    outcomes = done(investigation, tmp_path)
    assert len(outcomes) == len(list(tmp_path.glob("*.json"))) == 3
    for chapter in investigation.chapters(outcomes):
        assert [row.cells[1].value for row in found(chapter, "counts").rows] == [6, 15]
    assert all(outcome.recorded for outcome in done(investigation, tmp_path))


def test_jobs_are_ordered_by_set(suite):
    two = experiment("two", plan=lambda suite, options: [job(member, True) for member in suite.members])
    order = [planned.features for planned in Investigation.of([experiment(), two], suite).jobs]
    assert order == ["few", "few", "many", "many"]


def test_a_set_is_identified_by_its_content(tmp_path):
    """Two names of one set are one job, with a result under both names."""
    same = Suite.of({"one": scattered(3, 4), "another": scattered(3, 4)})
    investigation = Investigation.of([experiment()], same)
    assert len(investigation.jobs) == 1
    (chapter,) = investigation.chapters(done(investigation, tmp_path))
    assert [(row.cells[0], row.cells[1].value) for row in found(chapter, "counts").rows] == [
        ("one", 12),
        ("another", 12),
    ]


def broken(*_):
    raise ZeroDivisionError("no sets")


@pytest.mark.parametrize(("part", "words"), [("plan", "planned"), ("find", "evaluated"), ("extra_sets", "planned")])
def test_a_failing_plan_or_summary_is_reported_and_does_not_stop_the_others(suite, tmp_path, part, words):
    investigation = Investigation.of([experiment("broken", **{part: broken}), experiment()], suite)
    bad, good = investigation.chapters(done(investigation, tmp_path))
    message = f"could not be {words}: ZeroDivisionError: no sets"
    assert remarks(bad, "warning") == [f"This experiment {message}."]
    assert bad.failed == (f"broken {message}",)
    assert len(bad.findings) == 1
    assert good.failed == ()
    assert found(good, "counts")


def test_work_that_fails_is_named_in_the_chapters_it_belongs_to(suite, tmp_path):
    other = experiment("other", plan=lambda suite, options: [job(suite.members[1], True)])
    investigation = Investigation.of([experiment(), other], suite)
    outcomes = [
        JobOutcome(o.job, None, "ran out of paper", False) if o.job.features == "few" else o
        for o in done(investigation, tmp_path)
    ]
    mine, others = investigation.chapters(outcomes)
    assert mine.failed == ("count twice=False on few, prompts vanilla: ran out of paper",)
    assert [row.cells[1] and row.cells[1].value for row in found(mine, "counts").rows] == [None, 15]
    assert others.failed == ()


def test_sets_made_by_an_experiment_are_used_only_by_it(suite, tmp_path):
    requested = []

    def sets(suite: Suite) -> list[Member]:
        requested.append([member.name for member in suite.members])
        return [Member.of("made", scattered(4, 3))]

    investigation = Investigation.of([experiment("making", extra_sets=sets), experiment()], suite)
    making, plain = investigation.chapters(done(investigation, tmp_path))
    assert requested == [["few", "many"]]
    assert [row.cells[0] for row in found(making, "counts").rows] == ["few", "many", "made"]
    assert found(making, "counts").rows[-1].cells[1].value == 12
    assert [row.cells[0] for row in found(plain, "counts").rows] == ["few", "many"]


def test_encoders_are_analysed_separately_and_their_findings_distinguished(tmp_path):
    both = Suite.of(in_two_encoders())
    investigation = Investigation.of([experiment(), experiment("mixing", mixes_encoders=True)], both)
    apart, mixed = investigation.chapters(done(investigation, tmp_path))
    tables = [finding for finding in apart.findings if isinstance(finding, Table)]
    assert [[row.cells[0] for row in table.rows] for table in tables] == [["clean a"], ["clean b", "fog b"]]
    assert len({table.name for table in tables}) == 2
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", table.name) for table in tables)
    for table, encoder in zip(tables, both.encoders, strict=True):
        assert encoder in table.title
    assert [text.split(":")[0] for text in remarks(apart)] == both.encoders
    assert len(apart.jobs) == 3
    (table,) = [finding for finding in mixed.findings if isinstance(finding, Table)]
    assert (table.name, table.title, len(table.rows)) == ("counts", "Counted", 3)


def test_with_one_encoder_nothing_is_renamed(suite, tmp_path):
    investigation = Investigation.of([experiment()], suite)
    (chapter,) = investigation.chapters(done(investigation, tmp_path))
    assert [finding.name for finding in chapter.findings if isinstance(finding, Table)] == ["counts"]
    assert remarks(chapter) == ["Counted."]

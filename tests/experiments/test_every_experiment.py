"""Checks that every experiment in the registry must pass."""

import dataclasses
import json
import re

import numpy as np
import pytest

from experiments.edge_cases import ODD_SUITES, narrowed, odd_suite, with_failures
from zeroshift.evaluate import Ledger
from zeroshift.experiments import Investigation, Options, Suite, find, get, list_experiments
from zeroshift.experiments._shared.findings import Finding, Remark, Table, Value
from zeroshift.experiments._shared.paper import paper_table
from zeroshift.experiments.registry import NO_EXPERIMENT

NAMES = [experiment.name for experiment in list_experiments()]

ASKED_FOR = {
    "natural-shift", "corruption", "severity", "fine-grained", "ablation", "bank-size", "alpha", "efficiency",
    "mean-init", "closed-form", "input-order", "stability", "encoders", "few-shot", "tda-prompts", "low-confidence",
    "pruning", "long-tail", "covariances", "normality", "homogeneity", "decision-regions", "oracle", "awt",
}  # fmt: skip
"""Every experiment of the paper."""


@pytest.fixture(scope="module")
def tiny_suite() -> Suite:
    """Two sets of two tasks, few rows each."""
    return Suite.of({name: narrowed(name, 60) for name in ("cifar10", "cifar10c_fog_5")})


def test_every_experiment_of_the_paper_is_there_once():
    assert set(NAMES) >= ASKED_FOR
    assert len(NAMES) == len(set(NAMES))


def test_every_table_and_figure_of_the_paper_is_a_name_or_says_why_not():
    for kind, count in (("table", 23), ("figure", 6)):
        for number in range(1, count + 1):
            label = f"{kind}-{number}"
            if label in NO_EXPERIMENT:
                with pytest.raises(
                    ValueError, match=f"no experiment repeats {kind.capitalize()} {number} of the paper"
                ):
                    find(label)
            else:
                assert all(label in experiment.paper_names for experiment in find(label))
        with pytest.raises(
            ValueError, match=rf"the paper has no {kind.capitalize()} {count + 1}\. Fix: .* to {kind}-{count}"
        ):
            find(f"{kind}-{count + 1}")
    assert set(NO_EXPERIMENT) == {"table-1", "table-12", "table-17", "figure-1"}


@pytest.mark.parametrize("name", ["table-9", "Table 9", "table9", "table_9", "TABLE-09"])
def test_the_number_of_a_table_is_read_in_any_spelling(name):
    assert [experiment.name for experiment in find(name)] == ["input-order"]


def test_a_figure_in_two_halves_is_two_experiments():
    assert [experiment.name for experiment in find("fig-2")] == ["bank-size", "alpha"]
    assert [experiment.name for experiment in find("ablation")] == ["ablation"]


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_has_a_question_and_a_place_in_the_paper(name):
    experiment = get(name)
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", experiment.name)
    assert experiment.title[0].isupper()
    assert experiment.question.endswith(("?", "."))
    assert tables_named(experiment.where) == {paper_table(table).number for table in experiment.tables}


def tables_named(where: str) -> set[int]:
    """The numbers in "Tables 2 and 14, Figure of something"."""
    listed = re.findall(r"Tables? (\d+(?:(?:, | and )\d+)*)", where)
    return {int(number) for numbers in listed for number in re.findall(r"\d+", numbers)}


def test_numbers_of_tables_are_read():
    assert tables_named("Tables 14, 15 and 16, Figure of 3 VLMs") == {14, 15, 16}
    assert tables_named("Table 4 (oracle row)") == {4}
    assert tables_named("Figure 2, left") == set()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name == "sensitivity" else []) for name in NAMES]
)
def test_findings_are_well_formed(name, investigated, tiny_suite):
    chapter = investigated(get(name), tiny_suite, orders=1)
    assert not chapter.failed
    check_findings(chapter.findings)


CLAIMS = (
    # Starts of verdicts, which compare the paper's claims with our numbers.
    "The paper finds that",
    # Without runs these would be statements about nothing.
    "Every ", "On every ", "No method", "None of the gains", "Of 0 ",
    # Without values there is no largest.
    "The best", "The worst", "The largest", "The smallest", "The highest", "The lowest",
    # What a method does, it did not do here.
    "ADAPT", "Online ADAPT", "Worse than", "Better than", "Below", "Above", "Calibrated",
)  # fmt: skip
"""How sentences begin that need answers."""

JUDGED = ("confirmed here", "confirmed for", "too close to call")
"""What only a comparison of our numbers can say."""


SELDOM = ("two encoders", "a plane", "views", "none of the tasks, one prompt mode", "one sample per class")
"""Odd in ways the others cover for the most part: left to `make test-all`."""


@pytest.mark.parametrize(
    "odd", [pytest.param(odd, marks=[pytest.mark.slow] if odd in SELDOM else []) for odd in ODD_SUITES]
)
def test_unusual_sets_and_failed_runs_cause_no_error_and_no_claim(odd, tmp_path):
    suite = odd_suite(odd)
    investigation = Investigation.of(list_experiments(), suite, Options(orders=1))
    outcomes = list(investigation.run(Ledger(tmp_path)))
    # What cannot run on such sets states the fix.
    assert [outcome.error for outcome in outcomes if outcome.error and "Fix:" not in outcome.error] == []
    for failed in (lambda place: False, lambda place: place % 2 == 0, lambda place: place % 2 == 1):
        for chapter in investigation.chapters(with_failures(outcomes, failed)):
            check_findings(chapter.findings)
            assert not [line for line in chapter.failed if line.startswith(f"{chapter.experiment.name} could not")]
    for chapter in investigation.chapters([]):
        check_findings(chapter.findings)
        assert not [line for line in chapter.failed if line.startswith(f"{chapter.experiment.name} could not")]
        for finding in chapter.findings:
            check_claims_nothing(finding, suite)


@pytest.mark.parametrize(
    "text",
    [
        "No method ends below zero-shot on any stream.",
        "The paper finds that it helps. Confirmed here: corruption (1.0 to 1.0).",
        "composed: On every set even the worst tenth of the orders ends above zero-shot.",
        "By this reading it is too close to call.",
    ],
    ids=["none", "verdict", "every", "judged"],
)
def test_claims_are_recognised(text, tiny_suite):
    with pytest.raises(AssertionError):
        check_claims_nothing(Remark(text), tiny_suite)
    check_claims_nothing(Remark("Left out, because runs failed: mine."), tiny_suite)


def check_claims_nothing(finding, suite: Suite) -> None:
    if isinstance(finding, Table) and not finding.reference:
        assert not [cell for row in finding.rows for cell in row.cells if isinstance(cell, Value)], finding.name
    if isinstance(finding, Remark) and finding.kind != "data":
        text = finding.text
        for encoder in suite.encoders:
            text = text.removeprefix(f"{encoder}: ")
        assert not text.startswith(CLAIMS)
        assert not [words for words in JUDGED if words in text.lower()], text


def check_findings(findings) -> None:
    assert findings, "a chapter without a finding says nothing"
    named = [finding.name for finding in findings if not isinstance(finding, Remark)]
    assert len(named) == len(set(named))
    for finding in findings:
        assert isinstance(finding, Finding)
        if isinstance(finding, Remark):
            assert finding.text.strip().endswith((".", "?", ".)"))
            continue
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", finding.name), finding.name
        assert finding.title
        if isinstance(finding, Table):
            check_table(finding)
        check_finite(finding)


RATIOS = ("relative", "closed")
"""Words in the titles of columns in percent that are no share of a whole: a distance may be longer than what it is
relative to, and a gap may be closed by less than nothing."""


def check_table(table: Table) -> None:
    assert table.columns[0].unit == "text"
    assert table.rows
    for row in table.rows:
        assert len(row.cells) == len(table.columns)
        for cell, column in zip(row.cells, table.columns, strict=True):
            share = column.unit == "percent" and not any(word in column.title for word in RATIOS)
            if isinstance(cell, Value) and share and not table.reference:
                assert -1e-9 <= cell.value <= 1 + 1e-9, (table.name, column.title, cell)
            if isinstance(cell, Value) and cell.low is not None:
                assert cell.low - 1e-9 <= cell.value <= cell.high + 1e-9
            assert cell is None or isinstance(cell, (str, Value))


def check_finite(finding) -> None:
    """No NaN and no infinity anywhere: they cannot be drawn, nor written as JSON."""
    for field in dataclasses.fields(finding):
        for number in numbers(getattr(finding, field.name)):
            assert np.isfinite(number), (finding.name, field.name)


def numbers(value):
    if isinstance(value, np.ndarray):
        yield from value.ravel().astype(float).tolist()
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from numbers(item)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from numbers(getattr(value, field.name))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield float(value)


@pytest.mark.parametrize("name", NAMES)
def test_equal_questions_have_equal_jobs(name, tiny_suite):
    """Keys are the same in every call, so that runs can be resumed, and they can be recorded."""
    first, second = (get(name).plan(tiny_suite, Options(orders=1)) for _ in range(2))
    assert [job.key for job in first] == [job.key for job in second]
    assert all(json.dumps(job.describe(), allow_nan=False) for job in first)
    more = get(name).plan(tiny_suite, Options(orders=2))
    assert {job.key for job in first} <= {job.key for job in more}

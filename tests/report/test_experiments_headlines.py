"""Titles state the result, and are computed from the numbers."""

import numpy as np
import pytest

from report.chapters import CONFUSION, GAINS, INTERVALS, PRINTED, RELIABILITY, SWEEP, example_chapters, example_suite
from zeroshift.experiments import Chapter
from zeroshift.experiments._shared.claims import ClaimEvidence, verdict
from zeroshift.experiments._shared.findings import (
    Bar,
    Bars,
    Column,
    HeatMap,
    HeatMaps,
    Lines,
    Remark,
    Row,
    Series,
    Table,
    Value,
)
from zeroshift.report.experiments.headlines import chapter_title, count_claims, finding_title, page_title
from zeroshift.report.experiments.page import page_context

EXPERIMENT = example_chapters()[1].experiment


def chapter(*findings, failed=()):
    return Chapter(EXPERIMENT, findings, failed=failed)


def context(*findings, failed=()):
    return page_context([chapter(*findings, failed=failed)], example_suite(), command="c")


def claim(*holds):
    return verdict("it helps", [ClaimEvidence(f"set {i}", one, "1 point") for i, one in enumerate(holds)])


@pytest.mark.parametrize(
    ("values", "text"),
    [((4.0, 1.3), "ADAPT +4.0, TDA +1.3"), ((-2.0, -0.04), "ADAPT -2.0, TDA 0.0"), ((1.0, float("nan")), "ADAPT +1.0")],
)
def test_bars(values, text):
    bars = tuple(Bar(label, value) for label, value in zip(("ADAPT", "TDA"), values, strict=True))
    assert finding_title(Bars("b", "Gain", "percentage points", bars)) == f"Gain: {text}"


def test_many_bars_are_a_range():
    bars = tuple(Bar(f"set {i}", i - 2.0) for i in range(9))
    assert finding_title(Bars("b", "Gain", "points", bars)) == "Gain: -2.0 to +6.0"
    assert finding_title(Bars("b", "Gain", "points", ())) == "Gain"


def test_a_sweep_says_where_each_line_is_highest_and_a_stream_where_it_ends():
    series = (Series("one", (1.0, 2.0, 4.0), (70.0, 75.5, 71.0)), Series("two", (1.0, 2.0, 4.0), (9.0, 8.0, 7.0)))
    sweep = Lines("s", "Accuracy: by size", "size", "accuracy, percent", series, steps=True)
    assert finding_title(sweep) == "Accuracy, by size: one highest at 2 (75.5), two highest at 1 (9.0)"
    stream = Lines("s", "Accuracy", "samples", "accuracy (%)", series)
    assert finding_title(stream) == "Accuracy: one 71.0, two 7.0"


def test_tables():
    columns = (Column("method", "text"), Column("gain", "points"))
    rows = (Row(("zero-shot", Value(0.0))), Row(("TDA", Value(-1.3))), Row(("ADAPT", Value(4.0))))
    assert finding_title(Table("t", "Gains", columns, rows)) == "Gains: gain -1.3 to +4.0 points"
    columns = (Column("method", "text"), Column("a"), Column("b"))
    best = (
        Row(("TDA", Value(0.7, best=True), Value(0.5)), "online"),
        Row(("ADAPT", Value(0.6), Value(0.5)), "online"),
    )
    assert finding_title(Table("t", "All", columns, best)) == "All: best online is TDA"
    plain = (Row(("TDA", Value(0.7), None)), Row(("ADAPT", Value(0.6), None), strong=True))
    assert finding_title(Table("t", "All", columns, plain)) == "All: ADAPT 60.0% (a)"
    assert finding_title(Table("t", "All", columns, plain[:1])) == "All: 70.0% (a)"
    assert finding_title(Table("t", "All", columns, ())) == "All"


def test_the_papers_own_table_keeps_its_title():
    assert finding_title(PRINTED) == PRINTED.title


def test_every_other_finding_states_something():
    for finding in (GAINS, SWEEP, INTERVALS, RELIABILITY, CONFUSION):
        assert finding_title(finding).startswith(finding.title.replace(": ", ", "))
        assert len(finding_title(finding)) > len(finding.title)


def test_heat_maps():
    values = np.array([[0.0, 2.0], [1.0, np.nan]])
    one = HeatMaps("m", "Distance", (HeatMap("", values, ("cat", "dog"), ("cat", "dog")),))
    assert finding_title(one) == "Distance: highest for cat and dog (2)"
    gains = HeatMaps("m", "Gain", (HeatMap("", values - 1, ("cat", "dog")),), unit="points")
    assert finding_title(gains) == "Gain: -1.0 to +1.0 points"


def test_claims_are_counted():
    chapters = [chapter(claim(True, True), claim(True, None), claim(False, True)), chapter(Remark("x")), chapter()]
    assert count_claims(chapters) == {"confirmed": 1, "undecided": 1, "not confirmed": 1}
    assert chapter_title(chapters[0]) == "A short one: 1 of 3 claims of the paper confirmed, 1 not, 1 undecided"
    expected = "3 experiments on 2 sets: 1 of 3 claims of the paper confirmed, 1 not, 1 undecided"
    assert page_title(chapters, 2) == expected
    assert chapter_title(chapters[1]) == "A short one"
    assert page_title(chapters[:1], 2) == chapter_title(chapters[0])


def test_the_page_and_its_parts_have_these_titles():
    found = context(Bars("b", "Gain", "percentage points", (Bar("ADAPT", -4.0), Bar("TDA", 1.3))), claim(False))
    assert found["title"] == "A short one: 0 of 1 claim of the paper confirmed, 1 not"
    assert found["chapters"][0]["blocks"][0]["figures"][0]["title"] == "Gain: ADAPT \N{MINUS SIGN}4.0, TDA +1.3"


def test_a_failed_run_is_a_warning():
    assert context(claim(True))["warnings"] == []
    (warning,) = context(claim(True), failed=("tda on x: boom",))["warnings"]
    assert warning["text"] == "1 run failed."
    assert len(context(claim(False), failed=("a", "b"))["warnings"]) == 2


def test_an_empty_column_is_not_shown_but_stays_in_the_csv():
    columns = (Column("method", "text"), Column("a"), Column("b"))
    table = Table("t", "All", columns, (Row(("TDA", None, Value(0.5))),))
    (block,) = context(table)["chapters"][0]["blocks"]
    assert [column.title for column in block["table"].columns] == ["method", "b"]
    assert len(block["units"]) == 2

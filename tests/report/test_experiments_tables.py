"""Formatted tables of findings, formats of numbers, text on one line, and alt text."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from report.chapters import CONTROL, GAINS, INTERVALS, MAPS, PRINTED, RELIABILITY, SWEEP, example_chapters
from zeroshift.experiments._shared.findings import Bar, Bars, Column, Confusion, HeatMap, HeatMaps, Row, Table, Value
from zeroshift.report.experiments.alt_text import alt_text
from zeroshift.report.experiments.tables import formatted_table
from zeroshift.report.formatting import format_number, one_line

FINITE = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e12, max_value=1e12)
UNITS = ("percent", "points", "number", "count", "seconds", "bytes")


def test_published_numbers_follow_ours_with_the_same_decimals():
    made = formatted_table(GAINS)
    assert [column.title for column in made.columns][:4] == ["method", "accuracy", "paper", "gain"]
    assert [column.is_reference for column in made.columns][:4] == [False, False, True, False]
    assert [str(cell) for cell in made.rows[0].cells][:3] == ["zero-shot", "50.00", "68.73"]
    assert [str(cell) for cell in made.rows[1].cells][:4] == [
        "online ADAPT",
        "78.51 (77.93 to 79.05)",
        "70.91",
        "+28.5 (+27.9 to +29.0)",
    ]
    assert made.rows[2].cells[2].text == ""


def test_the_papers_own_table_keeps_its_two_decimals():
    assert [str(cell) for cell in formatted_table(PRINTED).rows[1].cells] == ["all", "65.04", "28.56"]


def test_groups_begin_where_they_change_and_flags_are_kept():
    made = formatted_table(GAINS)
    assert [row.starts_group for row in made.rows] == [False, True, False, True]
    assert [row.is_strong for row in made.rows] == [False, True, False, False]
    assert [cell.is_best for cell in made.rows[1].cells][:5] == [False, True, False, True, False]
    assert made.has_ranges
    assert not formatted_table(PRINTED).has_ranges


def test_a_group_that_ends_without_another_begins_a_nameless_one():
    rows = (Row(("a",), "one"), Row(("b",)), Row(("c",)))
    formatted = formatted_table(Table("t", "T", (Column("x", "text"),), rows))
    assert [row.starts_group for row in formatted.rows] == [True, True, False]


def test_an_interval_open_on_one_side_says_which():
    cells = (Row(("a", Value(0.5, low=0.4))), Row(("b", Value(0.5, high=0.6))))
    made = formatted_table(Table("t", "T", (Column("x", "text"), Column("y")), cells))
    assert [str(row.cells[1]) for row in made.rows] == ["50.0 (from 40.0)", "50.0 (up to 60.0)"]


def test_a_row_with_a_cell_too_few_is_refused():
    with pytest.raises(ValueError, match=r"'t'.*has 1 cells; the table has 2 columns.*Fix"):
        formatted_table(Table("t", "T", (Column("x", "text"), Column("y")), (Row(("a",)),)))


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (-0.0004, "percent", "0.0"),
        (1.0, "percent", "100.0"),
        (-3.25, "number", "-3.25"),
        (0.0, "seconds", "0 s"),
        (0.5, "seconds", "500 ms"),
        (150.0, "seconds", "2.5 min"),
        (7200.0, "seconds", "2.0 h"),
        (0, "bytes", "0.0 MB"),
        (12.5, "count", "12.5"),
        (2e15, "number", "2e15"),
        (math.inf, "percent", "inf"),
        (-math.inf, "number", "-inf"),
        (math.nan, "seconds", "n/a"),
    ],
)
def test_numbers_at_the_edges(value, unit, text):
    assert format_number(value, unit) == text


@given(value=FINITE, unit=st.sampled_from(UNITS))
def test_a_number_and_its_negative_differ_by_the_sign_alone(value, unit):
    one, other = format_number(value, unit), format_number(-value, unit)
    assert one.lstrip("+-") == other.lstrip("+-")
    if any(digit in "123456789" for digit in one.split("e")[0]):
        assert (one.startswith("-"), other.startswith("-")) == (value < 0, value > 0)
        assert (unit == "points" and value > 0) == one.startswith("+")
    else:
        assert one == other, "what rounds to nothing has no sign"


@given(value=st.floats(min_value=-1, max_value=1), decimals=st.sampled_from([1, 2]))
def test_percentages_are_right_to_their_last_decimal(value, decimals):
    assert float(format_number(value, "percent", decimals)) == pytest.approx(
        100 * value, abs=0.5 * 10**-decimals + 1e-9
    )


@given(text=st.text(st.characters()))
def test_names_are_one_line_that_any_file_can_hold(text):
    made = one_line(text)
    assert len(made.splitlines()) <= 1
    assert made.encode("utf-8").decode("utf-8") == made
    assert one_line(made) == made


def test_names_cannot_steer_a_terminal():
    assert one_line(CONTROL) == r"red\x1b[31m\nrow\u202e"
    assert one_line("naïve 猫 \N{GRINNING FACE}") == "naïve 猫 \N{GRINNING FACE}"


def test_every_finding_has_alt_text():
    for chapter in example_chapters():
        for finding in chapter.findings:
            text = alt_text(finding)
            assert text == one_line(text)
            assert len(text) > 10


def test_alt_text_has_the_main_numbers():
    assert "70.5 at 1, 75 at 16, highest 76.2 at 4" in alt_text(SWEEP)
    assert "cifar10 4.9 (3.8 to 6.1)" in alt_text(INTERVALS)
    assert "cat (2 by 2, 0.25 to 1)" in alt_text(MAPS)
    assert "zero-shot is 67.5% sure and 77.5% right on average, calibration error 10.0%" in alt_text(RELIABILITY)


def test_of_many_bars_the_ends_are_named():
    text = alt_text(Bars("b", "Gain", "points", tuple(Bar(f"set {i}", i - 2.0) for i in range(9))))
    assert text == "Gain, points: 9 bars, from set 0 -2 to set 8 6; 2 bars below zero."


def test_classes_without_samples_are_not_counted_as_confused(recwarn):
    import numpy as np

    before = np.array([[0.5, 0.5], [np.nan, np.nan]])
    text = alt_text(Confusion("c", "C", ("cat", "dog"), before, np.full((2, 2), np.nan)))
    assert "zero-shot gets 50.0% of a class right, most often takes cat for dog (50.0%)" in text
    assert "adapted, nothing is confused" in text
    assert "nothing (2 by 2)" in alt_text(HeatMaps("h", "H", (HeatMap("nothing", np.full((2, 2), np.nan)),)))
    assert not recwarn.list

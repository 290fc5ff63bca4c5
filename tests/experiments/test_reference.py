"""The paper's own tables as findings: nothing left out, nothing changed."""

import pytest

from zeroshift.experiments._shared.findings import Value
from zeroshift.experiments._shared.paper import paper_table, paper_tables
from zeroshift.experiments._shared.tables import reference

NAMES = sorted(paper_tables())


@pytest.mark.parametrize("name", NAMES)
def test_every_printed_row_and_column_is_there(name):
    printed, table = paper_table(name), reference(name)
    assert table.reference
    assert [column.title for column in table.columns[1:]] == list(printed.columns)
    assert len(table.rows) == len(printed.rows)
    for row, source in zip(table.rows, printed.rows, strict=True):
        for cell, column in zip(row.cells[1:], table.columns[1:], strict=True):
            given = source.values.get(column.title)
            if isinstance(cell, Value):
                assert cell.value == pytest.approx(given / (100 if column.unit == "percent" else 1))
            else:
                assert cell == given


@pytest.mark.parametrize("name", NAMES)
def test_no_two_rows_have_the_same_name(name):
    rows = [(row.group, row.cells[0]) for row in reference(name).rows]
    assert len(rows) == len(set(rows))


def test_names_and_titles_differ():
    tables = [reference(name) for name in NAMES]
    assert len({table.name for table in tables}) == len({table.title for table in tables}) == len(NAMES)


def test_the_best_of_each_protocol_is_marked():
    rows = reference("natural_shift_vitb16").rows
    best = [(row.group, row.cells[0]) for row in rows if row.cells[-1].best]
    assert best == [("online", "ADAPT"), ("transductive", "ADAPT")]


def test_a_single_row_in_a_group_is_not_marked_best():
    (oracle,) = [row for row in reference("fine_grained_vitb16").rows if row.cells[0] == "Oracle ADAPT"]
    assert not any(cell.best for cell in oracle.cells[1:])


def test_a_subset_of_methods_is_marked_within_itself():
    table = reference("natural_shift_vitb16", ("CLIP", "TPT"))
    assert [row.cells[0] for row in table.rows] == ["CLIP", "TPT"]
    assert [row.cells[-1].best for row in table.rows] == [False, True]
    assert any("left out" in note for note in table.notes)


def test_standard_deviations_are_ranges():
    cell = reference("stability_task1").rows[0].cells[1]
    assert (cell.low, cell.value, cell.high) == pytest.approx((0.7062, 0.7072, 0.7082))


def test_units_are_those_of_the_columns():
    units = {column.title: column.unit for column in reference("efficiency_imagenet").columns}
    assert units["Acc (%)"] == "percent"
    assert units["Gain (%)"] == "points"
    assert units["Time"] == "text"


@pytest.mark.parametrize("name", ["corruption_vitb16", "corruption_severity", "tda_prompts"])
def test_a_printed_mean_that_is_not_one_is_reported(name):
    assert any("30.29" in note and "30.43" in note for note in reference(name).notes)


@pytest.mark.parametrize("name", ["natural_shift_rn50", "natural_shift_vitb16", "mean_init"])
def test_other_numbers_get_no_remark(name):
    """The first holds the same number by chance, of a single set."""
    assert not any("30.43" in note for note in reference(name).notes)

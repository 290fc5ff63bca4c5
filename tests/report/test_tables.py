"""Tables in every format: the terminal at any width, Markdown, LaTeX, CSV and JSON."""

import csv
import dataclasses
import io

import pytest
from rich.console import Console

from zeroshift.report.comparisons import comparison_table
from zeroshift.report.tables import ReportCell, ReportColumn, ReportTable, summary_table, write_csv_lines


def shown(table, width):
    out = Console(file=io.StringIO(), width=width)
    out.print(table)
    return out.file.getvalue()


def test_a_comparison_fits_80_columns_with_a_long_name(comparisons):
    long = [dataclasses.replace(c, name=f"cifar10c_jpeg_compression_{k}") for k, c in enumerate(comparisons)]
    text = shown(comparison_table(long), 80)
    assert "…" not in text
    assert text.count("Zero-shot") == text.count("calibration error") == 2  # two tables, each with the baseline
    for comparison in long:
        assert f" {comparison.name} " in text
        for result in comparison.results[1:]:
            assert f"{100 * result.accuracy:.1f} ({comparison.gain(result):+.1f})" in text


def test_where_there_is_room_all_methods_are_in_one_table(comparisons):
    text = shown(comparison_table(comparisons), 160)
    assert text.count("Zero-shot") == 1
    for result in comparisons[0].results:
        mean = sum(comparison.result(result.method).calibration_error for comparison in comparisons) / len(comparisons)
        assert f"{100 * mean:.1f}" in text.splitlines()[-2]
    assert "…" not in text


def test_a_name_stays_whole_where_the_terminal_is_narrow(comparisons):
    long = [dataclasses.replace(c, name=f"cifar10c_jpeg_compression_{k}") for k, c in enumerate(comparisons)]
    text = shown(comparison_table(long), 50)
    assert all(comparison.name in text for comparison in long)


def test_a_summary_folds_its_values_and_not_its_names():
    text = shown(summary_table({"predictions": "p" * 100}), 40)
    assert "predictions " in text
    assert text.count("p") == 101


def percent(value):
    return f"{100 * value:.1f}"


@pytest.fixture
def table():
    """A name, a number with a range, a number that may be hidden first, and one that may be hidden second."""
    columns = (
        ReportColumn("method", is_whole=True),
        ReportColumn("accuracy", name="accuracy", format=percent, is_right=True),
        ReportColumn("gain", is_right=True, is_whole=True, is_signed=True, drop_order=2),
        ReportColumn("remark", drop_order=1),
    )
    ranged = ReportCell("78.5", 0.785, 0.779, 0.79, "77.9 to 79.0", is_number=True, is_best=True)
    rows = [("zero_shot", 0.5, None, "the baseline"), ("tda | views", ranged, "+28.5", "a_b and _c_")]
    return ReportTable.from_values(columns, rows, groups=["online", "episodic"], title="T", notes=("A note.",))


def test_a_wide_terminal_shows_everything(table):
    text = shown(table, 100)
    assert "78.5 (77.9 to 79.0)" in text
    assert "A note." in text
    assert "No room" not in text
    assert [line.strip() for line in text.splitlines()].index("online") < text.splitlines().index("A note.")


@pytest.mark.parametrize(
    ("width", "hidden"),
    [(48, ""), (38, "No room for remark: widen the terminal."), (26, "No room for gain, remark: widen the terminal.")],
)
def test_a_narrow_terminal_hides_ranges_then_columns_and_names_them(table, width, hidden):
    text = shown(table, width)
    assert "77.9" not in text
    assert "Ranges are shown in a wider terminal." in " ".join(text.split())
    assert hidden in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= width


def test_the_narrowest_terminal_gets_a_list(table):
    text = shown(table, 16)
    assert "method: tda | \nviews\n" in text
    assert "gain: +28.5\n" in text


def test_columns_that_may_not_be_hidden_are_spread_over_several_tables(table):
    columns = tuple(dataclasses.replace(column, drop_order=0) for column in table.columns)
    text = shown(dataclasses.replace(table, columns=columns), 28)
    headings = [line.split() for line in text.splitlines() if line.strip().startswith("method")]
    assert headings == [["method", "accuracy"], ["method", "gain"], ["method", "remark"]]


def test_markdown_aligns_numbers_and_escapes_names(table):
    assert table.markdown().splitlines() == [
        "| method | accuracy | gain | remark |",
        "| --- | ---: | ---: | --- |",
        "| *online* | | | |",
        "| zero_shot | 50.0 | | the baseline |",
        "| *episodic* | | | |",
        "| tda \\| views | **78.5** (77.9 to 79.0) | +28.5 | a_b and \\_c\\_ |",
    ]


def test_latex_has_the_rows_the_groups_and_the_notes(table):
    text = table.latex("mine")
    assert r"\label{tab:mine}" in text
    assert r"\multicolumn{4}{l}{\textit{episodic}} \\" in text
    assert r"tda \textbar{} views & \textbf{78.5} {\scriptsize (77.9 to 79.0)} & +28.5 & a\_b and \_c\_ \\" in text
    assert r"{\footnotesize A note.\par}" in text


def test_csv_and_json_have_full_values(table, tmp_path):
    assert table.records()[1] == {"method": "tda | views", "accuracy": 0.785, "gain": "+28.5", "remark": "a_b and _c_"}
    write_csv_lines(tmp_path / "t.csv", table.csv_lines(with_group=True))
    with open(tmp_path / "t.csv", newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert list(rows[0]) == ["group", "method", "accuracy", "accuracy low", "accuracy high", "gain", "remark"]
    assert rows[1]["accuracy low"] == "0.779"
    assert rows[0]["accuracy low"] == ""


def test_a_column_without_any_entry_is_not_shown_but_is_in_csv_and_json():
    columns = (ReportColumn("method"), ReportColumn("range"), ReportColumn("gain"))
    table = ReportTable.from_values(columns, [("tda", None, "+1.3"), ("zero_shot", "", "0.0")])
    assert "range" not in table.markdown()
    assert "range" not in table.latex("t")
    assert [column.title for column in table.filled.columns] == ["method", "gain"]
    assert table.csv_lines()[0] == ["method", "range", "gain"]
    assert "range" in table.records()[0]
    assert table.filled.filled == table.filled
    assert ReportTable.from_values(columns, []).filled.columns == columns
    kept = (columns[0], ReportColumn("range", is_kept=True), columns[2])
    assert "range" in ReportTable.from_values(kept, [("tda", None, "+1.3")]).markdown()

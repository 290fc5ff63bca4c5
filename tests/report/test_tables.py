"""Tables keep names and numbers whole in a terminal of the usual width."""

import dataclasses
import io

from rich.console import Console

from zeroshift.report.comparisons import comparison_table
from zeroshift.report.tables import summary_table


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

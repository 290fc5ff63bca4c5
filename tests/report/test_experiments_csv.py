"""CSV read back: every number at full precision, names as they are."""

import csv

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from report.chapters import (
    CLASSES,
    CONFUSION,
    GAINS,
    INTERVALS,
    MAPS,
    ODD,
    REGIONS,
    RELIABILITY,
    SWEEP,
    example_chapters,
)
from zeroshift.experiments import Chapter
from zeroshift.experiments._shared.findings import Column, HeatMap, HeatMaps, Row, Table, Value
from zeroshift.report.experiments.tables import write_csv
from zeroshift.report.formatting import one_line
from zeroshift.report.tables import csv_text


def read(path):
    with open(path, encoding="utf-8", newline="") as handle:
        return list(csv.reader(handle))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("csv")
    return {path.name.removeprefix("every-kind-"): read(path) for path in write_csv(folder, example_chapters())}


def written_alone(folder, *findings):
    return write_csv(folder, [Chapter(example_chapters()[0].experiment, findings)])


def numbers(lines, *, skip=1):
    return [[float(field) for field in line[skip:]] for line in lines]


def test_a_file_for_everything_but_remarks(files):
    assert list(files) == [
        "gains.csv",
        "printed.csv",
        "sweep.csv",
        "intervals.csv",
        "covariances-1.csv",
        "covariances-2.csv",
        "reliability.csv",
        "confusion-before.csv",
        "confusion-after.csv",
        "regions-points.csv",
        "regions-anchors.csv",
        "regions-1.csv",
        "regions-2.csv",
    ]
    for lines in files.values():
        assert len({len(line) for line in lines}) == 1


def test_nothing_of_a_table_is_lost(files):
    heading, *lines = files["gains.csv"]
    assert len(set(heading)) == len(heading)
    for row, line in zip(GAINS.rows, lines, strict=True):
        named = dict(zip(heading, line, strict=True))
        assert named.pop("group") == row.group
        left = [text for text in named.values() if text]
        for cell in row.cells:
            parts = [cell.value, cell.low, cell.high, cell.paper] if isinstance(cell, Value) else [cell]
            for part in parts:
                if part is not None:
                    text = left.pop(0)
                    assert text == one_line(part) if isinstance(part, str) else float(text) == part
        assert not left


def test_columns_say_their_units(files):
    heading = files["gains.csv"][0]
    assert heading[:6] == [
        "group",
        "method",
        "accuracy (fraction)",
        "accuracy (fraction) low",
        "accuracy (fraction) high",
        "accuracy (fraction) paper",
    ]
    assert {"gain (points)", "time (seconds)", "memory (bytes)", "samples", "alpha"} <= set(heading)
    assert "time (seconds) low" not in heading


def test_columns_of_the_same_title_are_numbered(tmp_path):
    table = Table(
        "t", "T", (Column("x", "text"), Column("y"), Column("y"), Column("y")), (Row(("a", None, None, "b")),)
    )
    (path,) = written_alone(tmp_path, table)
    heading = read(path)[0]
    assert heading == ["group", "x", "y (fraction)", "y (fraction) 2", "y (fraction) 3"]


def test_lines_bars_and_reliability_as_long_tables(files):
    assert files["sweep.csv"][0] == ["series", "method", "samples per class", "accuracy (%)", "low", "high"]
    assert files["sweep.csv"][2] == ["online ADAPT", "adapt_online", "4", "76.25", "75.0", "77.0"]
    assert files["sweep.csv"][4] == [ODD, "", "1", "60.0", "", ""]
    assert len(files["sweep.csv"]) == 1 + sum(len(series.x) for series in SWEEP.series)
    assert files["intervals.csv"][2] == ["corruption", ODD, "", "-1.25", "-2.5", "0.5"]
    assert len(files["intervals.csv"]) == 1 + len(INTERVALS.bars)
    assert files["reliability.csv"][1] == ["zero-shot", "zero_shot", "0.3", "0.5", "0.25", "0.1"]
    assert len(files["reliability.csv"]) == 1 + sum(len(panel.share) for panel in RELIABILITY.panels)


def test_matrices_as_matrices(files):
    for number, heat_map in enumerate(MAPS.maps, start=1):
        heading, *lines = files[f"covariances-{number}.csv"]
        assert heading == [heat_map.title, "1", "2"]
        np.testing.assert_array_equal(numbers(lines), heat_map.values)
    for side in ("before", "after"):
        heading, *lines = files[f"confusion-{side}.csv"]
        assert heading == [getattr(CONFUSION, f"{side}_label"), *CLASSES]
        assert [line[0] for line in lines] == list(CLASSES)
        np.testing.assert_array_equal(numbers(lines), getattr(CONFUSION, side))


def test_planes_and_the_points_in_them(files):
    for number, region in enumerate(REGIONS.regions, start=1):
        heading, *lines = files[f"regions-{number}.csv"]
        assert heading == [region.label, "-0.666667", "0", "0.666667"]
        np.testing.assert_array_equal(numbers(lines), region.classes)
    _, *points = files["regions-points.csv"]
    np.testing.assert_array_equal([[float(x), float(y)] for x, y, _ in points], REGIONS.points)
    assert [name for *_, name in points] == [CLASSES[label] for label in REGIONS.labels]
    _, *anchors = files["regions-anchors.csv"]
    assert [name for *_, name in anchors] == list(CLASSES)


@given(name=st.text(st.characters(), max_size=30), value=st.floats(allow_nan=False))
def test_names_and_numbers_come_back_the_same(tmp_path_factory, name, value):
    table = Table("t", "T", (Column(f"x{name}", "text"), Column("y", "number")), (Row((name, Value(value)), name),))
    (path,) = written_alone(tmp_path_factory.mktemp("any"), table)
    heading, (group, label, number) = read(path)
    assert heading[1] == csv_text(one_line(f"x{name}"))
    assert group == csv_text(one_line(name))
    assert label == csv_text(name)
    assert float(number) == value


def test_files_that_would_overwrite_each_other_are_refused(tmp_path):
    maps = HeatMaps("m", "M", (HeatMap("one", np.eye(2)),))
    with pytest.raises(ValueError, match=r"every-kind-m-1\.csv.*Fix"):
        written_alone(tmp_path, maps, Table("m-1", "T", (Column("x", "text"),), ()))
    assert not list(tmp_path.iterdir())

"""The JSON record: all findings and their sets."""

import json
from dataclasses import fields, is_dataclass

import numpy as np

from report.chapters import CONTROL, GAINS, ODD, example_chapters, example_suite
from zeroshift.experiments import Chapter
from zeroshift.experiments._shared.findings import Column, HeatMap, HeatMaps, Row, Table, Value
from zeroshift.report.experiments.tables import chapters_record


def same(value, record):
    """Whether a record holds all that a finding does."""
    if is_dataclass(value):
        return all(same(getattr(value, field.name), record[field.name]) for field in fields(value))
    if isinstance(value, (tuple, list, np.ndarray)):
        return len(value) == len(record) and all(map(same, value, record))
    return value == record


def through_json(chapters):
    return json.loads(json.dumps(chapters_record(chapters, example_suite()), allow_nan=False))


def test_every_finding_is_complete():
    record = through_json(example_chapters())
    for chapter, chapter_record in zip(example_chapters(), record["experiments"], strict=True):
        for finding, found in zip(chapter.findings, chapter_record["findings"], strict=True):
            assert same(finding, found), finding
    types = [found["type"] for found in record["experiments"][0]["findings"]]
    figures = ["lines", "bars", "heat_maps", "reliability", "confusion", "regions"]
    assert types == ["table", "table", *figures, "remark", "remark", "remark"]
    kinds = [found["kind"] for found in record["experiments"][0]["findings"] if found["type"] == "remark"]
    assert kinds == ["note", "data", "warning"]


def test_names_and_numbers_are_not_touched():
    rows = through_json(example_chapters())["experiments"][0]["findings"][0]["rows"]
    assert rows[3]["cells"][0] == CONTROL
    assert rows[1]["cells"][1] == {"value": 0.78512, "low": 0.77934, "high": 0.79046, "paper": 0.7091, "best": True}
    assert len(rows) == len(GAINS.rows)


def test_what_an_experiment_is_and_what_failed():
    first, second = through_json(example_chapters())["experiments"]
    assert first["name"] == "every-kind"
    assert first["where"] == "Table 5"
    assert first["seconds"] == 75.0
    assert first["failed"] == list(example_chapters()[0].failed)
    assert second["failed"] == []


def test_the_sets_it_was_found_on():
    record, suite = through_json(example_chapters()), example_suite()
    assert [member["name"] for member in record["sets"]] == ["cifar10", ODD]
    first = record["sets"][0]
    assert (first["task"], first["encoder"], first["n_samples"], first["n_classes"]) == ("natural", "composed", 6, 3)
    assert first["title"] == "Six of cifar10"
    assert first["papers"] is False
    assert [one["digest"] for one in record["sets"]] == [member.dataset.digest for member in suite.members]


def test_what_json_cannot_hold_becomes_null_and_numpy_plain():
    table = Table(
        "t", "T", (Column("x", "text"), Column("y")), (Row(("a", Value(np.float64("nan"), np.float32(0.5)))),)
    )
    maps = HeatMaps("m", "M", (HeatMap("one", np.array([[np.nan, np.inf], [1.0, 2.0]])),))
    chapter = Chapter(example_chapters()[0].experiment, (table, maps))
    (record,) = through_json([chapter])["experiments"]
    value = record["findings"][0]["rows"][0]["cells"][1]
    assert (value["value"], value["low"]) == (None, 0.5)
    assert record["findings"][1]["maps"][0]["values"] == [[None, None], [1.0, 2.0]]

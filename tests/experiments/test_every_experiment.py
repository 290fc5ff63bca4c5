"""What every experiment must satisfy, whatever it asks: the same checks over the whole registry."""

import dataclasses
import json
import re

import numpy as np
import pytest

from zeroshift.data import packs
from zeroshift.experiments import Options, Suite, get, list_experiments
from zeroshift.experiments.parts.findings import Finding, Remark, Table, Value
from zeroshift.experiments.parts.paper import paper_table

NAMES = [experiment.name for experiment in list_experiments()]

ASKED_FOR = {
    "natural-shift", "corruption", "severity", "fine-grained", "ablation", "bank-size", "alpha", "efficiency",
    "mean-init", "closed-form", "input-order", "stability", "encoders", "few-shot", "tda-prompts", "low-confidence",
    "pruning", "long-tail", "covariances", "normality", "homogeneity", "decision-regions", "oracle",
}  # fmt: skip
"""Every experiment of the paper."""


@pytest.fixture(scope="module")
def tiny_suite() -> Suite:
    """Two sets of two tasks, few rows each."""
    return Suite.of({name: packs.load(name).subset(slice(0, 120)) for name in ("cifar10", "cifar10c_fog_5")})


def test_every_experiment_of_the_paper_is_there_once():
    assert set(NAMES) >= ASKED_FOR
    assert len(NAMES) == len(set(NAMES))


@pytest.mark.parametrize("name", NAMES)
def test_it_says_what_it_asks_and_where_the_paper_does(name):
    experiment = get(name)
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", experiment.name)
    assert experiment.title[0].isupper()
    assert experiment.question.endswith(("?", "."))
    for table in experiment.tables:
        assert f"Table {paper_table(table).number}" in experiment.where or "Table" in experiment.where


@pytest.mark.parametrize("name", NAMES)
def test_findings_are_well_formed(name, investigated, tiny_suite):
    chapter = investigated(get(name), tiny_suite, orders=1)
    assert chapter.findings, "a chapter without a finding says nothing"
    assert not chapter.failed
    named = [finding.name for finding in chapter.findings if not isinstance(finding, Remark)]
    assert len(named) == len(set(named))
    for finding in chapter.findings:
        assert isinstance(finding, Finding)
        if isinstance(finding, Remark):
            assert finding.text.strip().endswith((".", "?"))
            continue
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", finding.name), finding.name
        assert finding.title
        if isinstance(finding, Table):
            check_table(finding)
        check_finite(finding)


def check_table(table: Table) -> None:
    assert table.columns[0].unit == "text"
    assert table.rows
    for row in table.rows:
        assert len(row.cells) == len(table.columns)
        for cell, column in zip(row.cells, table.columns, strict=True):
            if isinstance(cell, Value) and column.unit == "percent" and not table.reference:
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
def test_the_same_question_is_the_same_work(name, tiny_suite):
    """Keys do not change from one call to the next, or nothing could ever be gone on with; and they can be recorded."""
    first, second = (get(name).plan(tiny_suite, Options(orders=1)) for _ in range(2))
    assert [job.key for job in first] == [job.key for job in second]
    assert all(json.dumps(job.what(), allow_nan=False) for job in first)
    more = get(name).plan(tiny_suite, Options(orders=2))
    assert {job.key for job in first} <= {job.key for job in more}

"""Sensitivity: each parameter of the anchored mixture varied alone, the runs and the remarks."""

import inspect
import re

import pytest

from experiments.edge_cases import narrowed
from experiments.fake_results import chapter_with, nothing
from experiments.reading import found, remarks
from zeroshift import methods
from zeroshift.evaluate import MethodSpec
from zeroshift.experiments import Options, Suite
from zeroshift.experiments._shared.findings import Lines
from zeroshift.experiments.sensitivity import CONSTANTS, EXPERIMENT, METHODS, PLATEAU, constants_of

UNSTUDIED = {
    "prototypes", "logit_scale", "support", "view_ratio", "memory_budget", "chunk_size", "order", "lag", "half_life",
    "precision",
}  # fmt: skip
"""What is given with the data, chosen for a use, or changes no answer."""

BY_ORDER_OR_COUNT = {"first_samples"}
"""Makes no difference to a whole set."""


@pytest.fixture(scope="module")
def suite() -> Suite:
    return Suite.of({name: narrowed(name, 40, 12) for name in ("cifar10", "cifar10c_fog_5")})


def made_up(change):
    """Records in which every run is 60% right, and `change(parameters, set)` more."""

    def record(job):
        return {
            "accuracy": 0.6 + change(job.spec.parameters, job.features) / 100,
            "calibration_error": 0.1,
            "zero_shot_accuracy": 0.5,
        }

    return record


def cells(table, group: str, value: str):
    (row,) = [row for row in table.rows if row.group.startswith(group) and row.cells[0] == value]
    return row.cells


@pytest.mark.parametrize("protocol", METHODS)
def test_no_number_of_the_method_is_skipped(protocol):
    takes = set(inspect.signature(methods.get(METHODS[protocol]).cls).parameters)
    without = BY_ORDER_OR_COUNT if protocol == "transductive" else set()
    assert {constant.name for constant in constants_of(protocol)} == takes - UNSTUDIED - without


@pytest.mark.parametrize("constant", CONSTANTS, ids=lambda constant: constant.label)
def test_values_are_on_both_sides_of_the_default(constant):
    for protocol in constant.protocols:
        default = constant.default(protocol)
        assert default not in constant.values
        assert len(set(constant.values)) == len(constant.values) >= 4
        assert min(constant.values) < default
        assert max(constant.values) > default
        for value in constant.values:
            given = constant.parameters(protocol, value)
            assert MethodSpec(METHODS[protocol], given).settings != MethodSpec(METHODS[protocol]).settings


def test_an_end_of_a_pair_is_varied_alone():
    (least,) = [constant for constant in CONSTANTS if constant.label == "spread_range, least"]
    (greatest,) = [constant for constant in CONSTANTS if constant.label == "spread_range, greatest"]
    assert least.parameters("online", 0.9) == {"spread_range": (0.9, greatest.default("online"))}
    assert greatest.parameters("online", 1.0) == {"spread_range": (least.default("online"), 1.0)}


def test_every_value_is_run_once_per_set_however_many_orders_are_requested(suite):
    values = sum(len(constant.values) * len(constant.protocols) for constant in CONSTANTS)
    jobs = EXPERIMENT.plan(suite, Options(orders=3))
    assert len(jobs) == len({job.key for job in jobs}) == 2 * (values + len(METHODS))


def test_a_tiny_run_measures_what_it_says(investigated, suite, monkeypatch):
    few = tuple(constant for constant in CONSTANTS if constant.name in ("weight", "balance"))
    monkeypatch.setattr("zeroshift.experiments.sensitivity.CONSTANTS", few)  # the whole is run for every experiment
    chapter = investigated(EXPERIMENT, suite)
    assert not chapter.failed
    table = found(chapter, "sensitivity-online")
    default, tried = cells(table, "all at", "default"), cells(table, "weight", "4")
    changes = {}
    for member in suite.members:
        some = member.dataset.load()
        accuracies = []
        for parameters in ({}, {"weight": 4.0}):
            (trial,) = [
                job
                for job in chapter.jobs
                if (job.features, job.slug, job.spec.parameters) == (member.name, "anchored_mixture_online", parameters)
            ]
            accuracies.append(trial.run(some)["accuracy"])
        changes[member.name] = 100 * (accuracies[1] - accuracies[0])
    assert tried[2].value == pytest.approx(sum(changes.values()) / 2)
    assert tried[1].value - default[1].value == pytest.approx(tried[2].value / 100)
    assert tried[3].value == pytest.approx(min(changes.values()))
    assert changes[tried[4]] == pytest.approx(min(changes.values()))


def test_a_value_above_the_default_is_reported_and_the_worst_set_is_named(suite):
    def change(parameters, name):
        if parameters == {"weight": 2.0}:
            return 3.0 if name == "cifar10" else -1.0
        return -2.0 if "calm" in parameters else 0.0

    chapter = chapter_with(EXPERIMENT, suite, made_up(change))
    outcome_text = cells(found(chapter, "sensitivity-transductive"), "weight", "2")
    assert (outcome_text[2].value, outcome_text[3].value, outcome_text[4]) == (
        pytest.approx(1.0),
        pytest.approx(-1.0),
        "cifar10c_fog_5",
    )
    message = remarks(chapter, "warning")
    assert [text.split(":")[0] for text in message] == ["online", "transductive"]
    for text in message:
        plateau, rest = text.split(" Not on such a plateau: ")
        beaten, falls = rest.split(" It falls ")
        assert beaten == "weight (+1.0 at 2)."
        assert "weight" not in re.split("[ ,.]+", plateau)
        assert ("balance" in plateau) == text.startswith("online")
        assert "calm" in plateau
        assert falls.startswith("by as much or more for calm (-2.0 at ")


@pytest.mark.parametrize(("gain", "on"), [(PLATEAU - 0.01, True), (PLATEAU + 0.01, False)])
def test_the_plateau_ends_where_it_says(suite, gain, on):
    chapter = chapter_with(EXPERIMENT, suite, made_up(lambda given, name: gain if "shrinkage" in given else 0.0))
    assert (remarks(chapter, "warning") == []) is on
    assert all(("Not on such a plateau: shrinkage" in text) is not on for text in remarks(chapter))


def test_curves_go_through_the_default(suite):
    chapter = chapter_with(EXPERIMENT, suite, made_up(lambda given, name: given.get("anchor_count", 0.0)))
    drawn = [finding for finding in chapter.findings if isinstance(finding, Lines)]
    curves = [series for figure in drawn for series in figure.series]
    assert len(curves) == sum(len(constant.protocols) for constant in CONSTANTS)
    assert all(dict(zip(curve.x, curve.y, strict=True))[1.0] == 0.0 for curve in curves)
    anchors = next(curve for curve in curves if curve.label == "anchor_count")
    assert anchors.x == (0.25, 0.5, 1.0, 2.0, 4.0)
    assert anchors.y == pytest.approx((0.25, 0.5, 0.0, 2.0, 4.0))


def test_nothing_is_concluded_from_a_constant_some_run_of_which_failed(suite):
    record = made_up(lambda given, name: 5.0 if "calm" in given else 0.0)
    chapter = chapter_with(
        EXPERIMENT, suite, lambda job: None if job.spec.parameters == {"calm": 0.25} else record(job)
    )
    warnings = remarks(chapter, "warning")
    assert [text for text in warnings if text.endswith("there is no result for calm.")] == warnings
    assert all("calm" not in text for text in remarks(chapter, "note"))
    assert cells(found(chapter, "sensitivity-online"), "calm", "0.25")[1:] == (None,) * 5
    gone = remarks(chapter_with(EXPERIMENT, suite, nothing))
    assert gone
    assert all("some run failed" in text for text in gone)

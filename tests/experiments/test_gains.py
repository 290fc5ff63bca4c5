"""Gains: equal to the records, inside their intervals, and the same in figures and tables."""

import numpy as np
import pytest

from experiments.edge_cases import in_two_encoders
from experiments.fake_results import chapter_with
from experiments.reading import found, remarks
from zeroshift.data import packs
from zeroshift.experiments import Suite
from zeroshift.experiments.gains import EXPERIMENT, METHODS, SETTLED, SetGain, _losses, running

ONLINE, WHOLE = "ADAPT (online)", "ADAPT (transductive)"


def rows_of(table, group):
    return {row.cells[0]: row.cells[1:] for row in table.rows if row.group == group}


@pytest.fixture(scope="module")
def chapter(investigated):
    return investigated(EXPERIMENT, orders=2)


def test_adapt_gains_on_the_mean_and_the_gain_is_the_difference_of_accuracies(chapter, small_suite):
    table = found(chapter, "at-a-glance")
    for group in [*(member.title for member in small_suite.members), "Mean of the sets"]:
        rows = rows_of(table, group)
        for label in (ONLINE, WHOLE):
            accuracy, _, gain, top5 = rows[label]
            assert gain.value == pytest.approx(100 * (accuracy.value - rows["zero-shot"][0].value))
            assert top5.value >= accuracy.value
        assert rows["zero-shot"][2] is None
    means = rows_of(table, "Mean of the sets")
    assert means[ONLINE][2].value > 0
    assert means[WHOLE][2].value > 0


def test_intervals_are_of_the_300_samples_however_many_orders(chapter, small_suite):
    bars = found(chapter, "gains").bars
    assert [(bar.group, bar.method) for bar in bars] == [
        (member.title, method) for member in small_suite.members for method in ("adapt_online", "adapt_transductive")
    ]
    for bar in bars:
        assert bar.low < bar.value < bar.high
        # At most 300 / 300 samples change sides; at the least those net of each other.
        share = abs(bar.value) / 100
        least = 100 * np.sqrt(max(share - share**2, 0) / 300)
        assert 0.8 * 2 * 1.96 * least < bar.high - bar.low < 2.2 * 196 / np.sqrt(300)


def test_two_orders_added_up_are_as_wide_as_one():
    record = {"paired": [150, 30, 12, 108], "scored": 300}
    one, two = SetGain.of([record]), SetGain.of([record, record])
    assert one == two
    assert one.value == pytest.approx(6.0)


def test_the_running_accuracy_ends_at_the_accuracy_of_the_first_order(chapter, investigated, small_suite):
    first = found(investigated(EXPERIMENT, orders=1), "at-a-glance")
    for member in small_suite.members:
        lines = found(chapter, f"running-{member.name.replace('_', '-')}")
        rows = rows_of(first, member.title)
        ends = {series.label: series.y[-1] for series in lines.series}
        assert ends == pytest.approx({label: 100 * rows[label][0].value for label in ("zero-shot", ONLINE, WHOLE)})
        assert all(series.x[-1] == 300 for series in lines.series)


def test_the_confusion_matrix_is_the_per_class_accuracy(chapter, investigated, small_suite):
    first = rows_of(found(investigated(EXPERIMENT, orders=1), "at-a-glance"), small_suite.members[0].title)
    confusion = found(chapter, "confusion")
    assert confusion.class_names == packs.load("cifar10").class_names
    np.testing.assert_allclose(confusion.before.sum(axis=1), 1)
    assert np.diag(confusion.before).mean() == pytest.approx(first["zero-shot"][1].value)
    assert np.diag(confusion.after).mean() == pytest.approx(first[ONLINE][1].value)


def test_at_most_six_sets_are_drawn_and_each_has_its_own_figure(investigated):
    rows = packs.load("cifar10").subset(slice(0, 60))
    suite = Suite.of({f"part {i}": rows.subset(slice(10 * i, 60)) for i in range(5)} | {"a": rows, "b": rows})
    chapter = investigated(EXPERIMENT, suite, orders=1)
    names = [finding.name for finding in chapter.findings if getattr(finding, "name", "").startswith("running-")]
    assert names == [*(f"running-part-{i}" for i in range(5)), "running-a"]
    alike = investigated(EXPERIMENT, Suite.of({"a b": rows, "a_b": rows.subset(slice(0, 50))}), orders=1)
    names = [finding.name for finding in alike.findings if getattr(finding, "name", "").startswith("running-")]
    assert names == ["running-a-b-1", "running-a-b-2"]


@pytest.mark.parametrize(
    ("gain", "kind", "words"),
    [
        (SetGain(-4.0, -6.0, -2.0), "warning", "Worse than zero-shot: ADAPT (online) on fog."),
        (SetGain(0.5, -1.0, 2.0), "note", "covers zero"),
        (SetGain(4.0, 2.0, 6.0), "note", "The interval of every gain is above zero"),
    ],
    ids=["lost", "open", "gained"],
)
def test_what_is_reported_where_it_does_not_help(gain, kind, words):
    remark = _losses(["fog"], {(0, "adapt_online"): gain, (0, "adapt_transductive"): SetGain(4.0, 2.0, 6.0)})
    assert remark.kind == kind
    assert words in remark.text


def test_runs_that_failed_are_no_gains():
    remark = _losses(["fog"], {(0, "adapt_online"): SetGain(4.0, 2.0, 6.0)})
    assert remark.kind == "warning"
    assert "All runs failed: ADAPT (transductive) on fog." in remark.text
    assert "Every" not in remark.text


def test_of_several_encoders_each_has_its_own_mean():
    """One gain for each: a mean over both would be in between."""
    paired = {"clean a": [10, 0, 0, 10], "clean b": [10, 2, 0, 8], "fog b": [10, 4, 0, 6]}
    curve = {"rows": [10, 20], "accuracy": [0.5, 0.5], "zero_shot": [0.5, 0.5]}
    matrix = np.eye(4).tolist()

    def record(job):
        counts = paired[job.features]
        return {
            "accuracy": sum(counts[:2]) / 20, "class_mean_accuracy": 0.5, "top5_accuracy": 1.0, "paired": counts,
            "scored": 20, "detail": {"curve": curve, "confusion": matrix, "zero_shot_confusion": matrix},
        }  # fmt: skip

    chapter = chapter_with(EXPERIMENT, Suite.of(in_two_encoders()), record, orders=1)
    table = found(chapter, "at-a-glance")
    groups = list(dict.fromkeys(row.group for row in table.rows))
    assert groups[:3] == ["clean a, CLIP RN50", "clean b, CLIP ViT-B/16", "fog b, CLIP ViT-B/16"]
    assert groups[3:] == ["Mean of the sets, CLIP ViT-B/16"]
    assert rows_of(table, groups[3])[ONLINE][2].value == pytest.approx(15.0)


def test_running_accuracy_begins_where_it_has_settled():
    rows = list(range(10, 1010, 10))
    curve = {"rows": rows, "accuracy": [row / 1000 for row in rows], "zero_shot": [0.5] * 100}
    lines = running("running-x", "x", {"detail": {"curve": curve}}, None, METHODS)
    assert [series.x[0] for series in lines.series] == [SETTLED, SETTLED]
    assert lines.series[1].y[0] == pytest.approx(100 * SETTLED / 1000)
    short = {key: values[:4] for key, values in curve.items()}
    lines = running("running-x", "x", {"detail": {"curve": short}}, None, METHODS)
    assert lines.series[0].x == (10.0, 20.0, 30.0, 40.0)
    assert "horizontal line" not in lines.caption


def test_something_is_reported_about_every_set_together(chapter):
    assert any("above zero" in text or "covers zero" in text or "Worse" in text for text in remarks(chapter))

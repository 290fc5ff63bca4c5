"""Table 6: timed runs on one set, gains and ratios."""

from dataclasses import replace

import pytest

from experiments.fake_results import chapter_with, record
from experiments.reading import found, remarks
from zeroshift.experiments import Suite
from zeroshift.experiments._shared.paper import paper_table
from zeroshift.experiments.efficiency import EXPERIMENT, METHODS


def test_all_is_timed_alone_on_one_set(investigated):
    chapter = investigated(EXPERIMENT)
    assert all(job.timed for job in chapter.jobs)
    assert {job.every for job in chapter.jobs} == {64}  # as from a live stream; other experiments use one call
    assert len({job.digest for job in chapter.jobs}) == 1
    assert [job.spec.method for job in chapter.jobs] == [method for method, *_ in METHODS]


def test_gains_and_ratios_are_to_zero_shot(investigated):
    table = found(investigated(EXPERIMENT), "efficiency")
    zero_shot, *others = table.rows
    assert zero_shot.cells[2].value == 0
    assert zero_shot.cells[4].value == 1
    for row in others:
        assert row.cells[2].value == pytest.approx(100 * (row.cells[1].value - zero_shot.cells[1].value))
        assert row.cells[4].value == pytest.approx(row.cells[3].value / zero_shot.cells[3].value)
    assert [row.group for row in table.rows if row.strong] == ["online", "transductive"]


def test_the_paper_prints_a_row_for_every_method_but_frolic():
    printed = paper_table("efficiency_imagenet")
    missing = [label for _, label, name, protocol in METHODS if printed.row(method=name, protocol=protocol) is None]
    assert missing == ["Frolic"]
    assert printed.number_at("Gain (%)", method="ADAPT", protocol="transductive") == 4.82


def test_the_papers_accuracies_are_next_to_ours_on_its_own_set(investigated, small_suite):
    papers = replace(small_suite.members[0], from_paper=True, data_set="imagenet", encoder="CLIP ViT-B/16")
    table = found(investigated(EXPERIMENT, Suite((papers,))), "efficiency")
    adapt = [row.cells for row in table.rows if row.strong]
    assert [(cells[1].paper, cells[2].paper) for cells in adapt] == [(0.7091, 4.17), (0.7156, 4.82)]
    assert all(cell.paper is None for cells in adapt for cell in cells[3:] if cell is not None)


@pytest.mark.parametrize(
    ("tda", "message", "kind"),
    [
        (0.50, "Confirmed here", "note"),
        (0.70, "Too close to call here", "note"),
        (0.9, "Not confirmed here", "warning"),
    ],
    ids=["lower", "equal", "higher"],
)
def test_the_most_accurate_is_reported_of_the_methods_named(small_suite, tda, message, kind):
    accuracies = {"adapt_online": 0.70, "tda": tda}
    chapter = chapter_with(EXPERIMENT, small_suite, lambda job: record(accuracies.get(job.spec.method, 0.5)))
    (online, _) = [f for f in chapter.findings if "most accurate" in getattr(f, "text", "")]
    assert f"methods it is timed with (here zero-shot, TDA). {message}: " in online.text
    assert online.kind == kind


def test_where_a_rival_failed_nothing_is_called_the_most_accurate(small_suite):
    chapter = chapter_with(EXPERIMENT, small_suite, lambda job: None if job.spec.method == "tda" else record(0.5))
    assert "Which online method is the most accurate is not known: TDA failed." in remarks(chapter, "warning")
    assert not any("the online methods" in text for text in remarks(chapter))


def test_the_papers_times_are_not_compared(small_suite):
    notes = " ".join(found(chapter_with(EXPERIMENT, small_suite, lambda job: record(0.5)), "efficiency").notes)
    assert "does not say whether" in notes
    assert "CLIP by itself takes 8m" in notes
    assert "ADAPT takes 0.73m" in notes

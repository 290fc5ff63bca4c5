"""Table 20: each column holds just the sets of its severity."""

import pytest

from experiments.stand_ins import first_rows, imagenet_c, made_up, pretend, shrink_catalogue
from experiments.tables import column, found, remarks
from zeroshift.experiments import Suite
from zeroshift.experiments.parts.findings import Lines
from zeroshift.experiments.severity import EXPERIMENT

NAMES = ("cifar10c_fog_5", "cifar10c_gaussian_noise_3", "cifar10c_jpeg_compression_5")


@pytest.fixture(scope="module")
def corrupted() -> Suite:
    return first_rows(NAMES, 200)


def test_columns_are_the_means_of_their_own_sets(investigated, corrupted):
    table = found(investigated(EXPERIMENT, corrupted), "severity")
    sets = {member.name: member.entry.load().zero_shot_accuracy() for member in corrupted.members}
    assert column(table, "Severity 3")["CLIP (zero-shot)"].value == pytest.approx(sets[NAMES[1]])
    assert column(table, "Severity 5")["CLIP (zero-shot)"].value == pytest.approx((sets[NAMES[0]] + sets[NAMES[2]]) / 2)
    assert [col.title for col in table.columns[1:]] == ["Severity 3", "Severity 5"]


def test_transductive_adapt_gains_at_both(investigated, corrupted):
    table = found(investigated(EXPERIMENT, corrupted), "severity")
    for title in ("Severity 3", "Severity 5"):
        cells = column(table, title)
        assert cells["ADAPT (transductive)"].value > cells["CLIP (zero-shot)"].value


def test_other_kinds_in_other_columns_are_remarked_and_no_line_is_drawn(investigated, corrupted):
    chapter = investigated(EXPERIMENT, corrupted)
    assert any("different kinds of corruption" in text for text in remarks(chapter))
    assert not any(isinstance(finding, Lines) for finding in chapter.findings)


def test_imagenet_c_gets_the_papers_numbers_and_a_line(monkeypatch):
    shrink_catalogue(monkeypatch)
    chapter = pretend(EXPERIMENT, Suite.of(imagenet_c((1, 3))), lambda job: 0.5)
    table = found(chapter, "severity")
    assert column(table, "Severity 1")["TDA"].paper == pytest.approx(0.6042)
    assert column(table, "Severity 3")["ADAPT (transductive)"].paper == pytest.approx(0.4968)
    assert found(chapter, "severity-curve").series[0].x == (1.0, 3.0)
    assert not remarks(chapter)


def test_some_kinds_are_not_the_papers_mean(monkeypatch):
    shrink_catalogue(monkeypatch)
    chapter = pretend(EXPERIMENT, Suite.of(imagenet_c((5,), kinds=("fog", "snow"))), lambda job: 0.5)
    assert all(cell.paper is None for cell in column(found(chapter, "severity"), "Severity 5").values())
    assert remarks(chapter, "data")


def test_without_corrupted_sets_it_says_what_to_give():
    chapter = pretend(EXPERIMENT, Suite.of({"mine": made_up()}), lambda job: 0.5)
    assert not chapter.jobs
    assert any("--severity" in text for text in remarks(chapter))

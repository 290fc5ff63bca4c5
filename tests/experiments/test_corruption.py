"""Table 3: one column per kind, in the paper's order, at severity 5 if available."""

import pytest

from experiments.fake_results import chapter_with_accuracies
from experiments.paper_sets import first_rows, imagenet_c, made_up, papers_set, shrink_catalogue
from experiments.reading import column, found
from zeroshift.data import packs
from zeroshift.data.corruptions import KINDS
from zeroshift.experiments import Suite
from zeroshift.experiments._shared.paper import paper_table
from zeroshift.experiments.corruption import EXPERIMENT, GROUPS


def half(job) -> float:
    return 0.5


def test_transductive_adapt_gains_under_fog(investigated):
    chapter = investigated(EXPERIMENT, first_rows(("cifar10", "cifar10c_fog_5"), 120), orders=1)
    cells = column(found(chapter, "accuracy"), "Fog")
    assert cells["ADAPT (transductive)"].value > cells["zero-shot"].value
    assert {job.features for job in chapter.jobs} == {"cifar10c_fog_5"}


def test_all_fifteen_kinds_are_in_the_papers_order(monkeypatch):
    shrink_catalogue(monkeypatch)
    table = found(chapter_with_accuracies(EXPERIMENT, Suite.of(imagenet_c()), half), "accuracy")
    assert [col.title for col in table.columns[1:]] == list(paper_table("corruption_vitb16").columns)
    assert [col.detail for col in table.columns[1:5]] == ["blur"] * 4
    assert column(table, "Fog")["ADAPT (online)"].paper is not None
    assert column(table, "Avg.")["ADAPT (online)"].paper == pytest.approx(0.2856)


def test_every_kind_is_in_one_group():
    assert sorted(kind for kinds in GROUPS.values() for kind in kinds) == sorted(KINDS)


def test_a_lighter_severity_is_named_and_gets_no_number_of_the_paper(monkeypatch):
    shrink_catalogue(monkeypatch)
    sets = {**imagenet_c(kinds=("fog",)), **imagenet_c((3,), kinds=("snow",))}
    table = found(chapter_with_accuracies(EXPERIMENT, Suite.of(sets), half), "accuracy")
    assert [col.title for col in table.columns[1:]] == ["Snow (severity 3)", "Fog", "Avg."]
    assert column(table, "Snow")["ADAPT (online)"].paper is None
    assert column(table, "Fog")["ADAPT (online)"].paper is not None


def test_only_the_highest_severity_is_run(monkeypatch):
    shrink_catalogue(monkeypatch)
    chapter = chapter_with_accuracies(EXPERIMENT, Suite.of(imagenet_c((1, 5, 3), kinds=("fog", "snow"))), half)
    assert {job.features for job in chapter.jobs} == {"fog_5", "snow_5"}


def test_the_same_kind_of_two_data_sets_stays_apart(monkeypatch):
    shrink_catalogue(monkeypatch)
    ours = packs.load("cifar10c_fog_5").subset(slice(0, 50))
    message = {"encoder": ours.provenance["encoder"], "corruption": "fog", "severity": 5}
    suite = Suite.of({"cifar": ours, "elsewhere": made_up(message)})
    titles = [col.title for col in found(chapter_with_accuracies(EXPERIMENT, suite, half), "accuracy").columns]
    assert titles == ["method", "Fog, CIFAR-10", "Fog, elsewhere", "Avg."]


def test_a_set_that_is_not_the_whole_kind_has_no_number(monkeypatch):
    shrink_catalogue(monkeypatch)
    suite = Suite.of({"fog": papers_set("imagenet_c", rows=12, corruption="fog", severity=5)})
    assert (
        column(found(chapter_with_accuracies(EXPERIMENT, suite, half), "accuracy"), "Fog")["ADAPT (online)"].paper
        is None
    )


def test_a_printed_mean_that_is_wrong_is_reported_in_place(monkeypatch):
    shrink_catalogue(monkeypatch)
    chapter = chapter_with_accuracies(EXPERIMENT, Suite.of(imagenet_c()), half)
    for table in (found(chapter, "accuracy"), found(chapter, "paper-corruption-vitb16")):
        assert any("30.29" in note and "30.43" in note for note in table.notes)
    two = chapter_with_accuracies(EXPERIMENT, Suite.of(imagenet_c(kinds=("fog", "snow"))), half)
    assert not any("30.29" in note for note in found(two, "accuracy").notes), "the mean is not shown"

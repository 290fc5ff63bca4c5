"""Table 2: transductive ADAPT gains on photographs; the mean without ImageNet is the mean without ImageNet."""

import pytest

from experiments.fake_results import chapter_with_accuracies
from experiments.paper_sets import first_rows, made_up, papers_set, shrink_catalogue
from experiments.reading import column, found, remarks
from zeroshift.experiments import Suite
from zeroshift.experiments._shared.tasks import get_task
from zeroshift.experiments.natural_shift import EXPERIMENT

FIVE = get_task("natural").papers_sets


def test_transductive_adapt_gains_and_all_others_ran(investigated):
    chapter = investigated(EXPERIMENT, first_rows(("cifar10", "fmnist"), 120), orders=1)
    cells = column(found(chapter, "accuracy"), "CIFAR-10")
    assert cells["ADAPT (transductive)"].value > cells["zero-shot"].value
    assert all(cell is not None for cell in cells.values())
    assert {job.features for job in chapter.jobs} == {"cifar10"}
    assert any("other data than the paper's" in text for text in remarks(chapter, "data"))


def test_the_mean_of_shifted_sets_leaves_imagenet_out(monkeypatch):
    shrink_catalogue(monkeypatch)
    suite = Suite.of({name: papers_set(name) for name in FIVE})
    table = found(
        chapter_with_accuracies(EXPERIMENT, suite, lambda job: 0.9 if job.features == "imagenet" else 0.5), "accuracy"
    )
    assert [col.title for col in table.columns][-2:] == ["OOD Avg.", "Avg."]
    ood, mean = column(table, "OOD Avg.")["ADAPT (online)"], column(table, "Avg.")["ADAPT (online)"]
    assert (ood.value, mean.value) == pytest.approx((0.5, 0.58))
    assert (ood.paper, mean.paper) == pytest.approx((0.6544, 0.6653))


def test_without_imagenet_there_is_one_mean(small_suite):
    table = found(chapter_with_accuracies(EXPERIMENT, small_suite, lambda job: 0.5), "accuracy")
    assert [col.title for col in table.columns] == ["method", "CIFAR-10", "Avg."]


def test_a_users_own_set_is_next_to_them_and_has_no_paper_mean(monkeypatch):
    shrink_catalogue(monkeypatch)
    suite = Suite.of({**{name: papers_set(name) for name in FIVE}, "birds": made_up({"encoder": "CLIP ViT-B/16"})})
    table = found(chapter_with_accuracies(EXPERIMENT, suite, lambda job: 0.5), "accuracy")
    assert "birds" in [col.title for col in table.columns]
    assert column(table, "Avg.")["ADAPT (online)"].paper is None
    assert column(table, "ImageNet-A")["ADAPT (online)"].paper == pytest.approx(0.6332)

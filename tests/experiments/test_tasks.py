"""The task of a set follows from its whole name."""

import pytest

from zeroshift.experiments._shared.tasks import OTHER_BACKBONE, PAPERS_BACKBONE, TASKS, task_of


@pytest.mark.parametrize(
    ("data_set", "task"),
    [
        ("CIFAR-10", "natural"),
        ("cifar10", "natural"),
        ("Fashion-MNIST", "fine_grained"),
        ("pacs", "natural"),
        ("pacs_art_painting", "natural"),
        ("PACS-sketch", "natural"),
        ("imagenet_r", "natural"),
        ("CIFAR-100", "other"),
        ("pacs-mine", "other"),
        ("fashion-mnist-of-mine", "other"),
        ("cifar-10.1", "other"),
    ],
)
def test_only_whole_names_are_known(data_set, task):
    assert task_of(data_set, None) == task
    assert task_of(data_set, "fog") == "corruption"


def test_every_main_table_is_of_one_of_two_encoders():
    assert all(list(task.tables) == [PAPERS_BACKBONE, OTHER_BACKBONE] for task in TASKS if task.paper)

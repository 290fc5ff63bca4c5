"""The three tasks of the paper, the sets it uses for them, and the task of any other set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = [
    "CORRUPTION",
    "FINE_GRAINED",
    "NATURAL",
    "OTHER",
    "OTHER_BACKBONE",
    "PAPERS_BACKBONE",
    "PAPER_COLUMNS",
    "TASKS",
    "Task",
    "get_task",
    "task_of",
]

PAPERS_BACKBONE = "CLIP ViT-B/16"
"""Backbone of all tables of the paper except 14 to 16."""

OTHER_BACKBONE = "CLIP RN50"
"""Backbone of Tables 14 to 16."""

NATURAL, CORRUPTION, FINE_GRAINED, OTHER = "natural", "corruption", "fine_grained", "other"
"""Ids of the tasks."""


@dataclass(frozen=True)
class Task:
    """One of the three tasks of the paper, or all other sets."""

    id: str
    paper: str
    """Name in the paper's tables."""
    title: str
    tables: Mapping[str, str]
    """Id of the paper's main table, by backbone."""
    papers_sets: tuple[str, ...]
    """Catalogue ids of the paper's sets; of ImageNet-C, every kind at severity 5."""


TASKS = (
    Task(
        NATURAL,
        "Task 1",
        "natural shift",
        {PAPERS_BACKBONE: "natural_shift_vitb16", OTHER_BACKBONE: "natural_shift_rn50"},
        ("imagenet", "imagenet_a", "imagenetv2", "imagenet_r", "imagenet_sketch"),
    ),
    Task(
        CORRUPTION,
        "Task 2",
        "corruption",
        {PAPERS_BACKBONE: "corruption_vitb16", OTHER_BACKBONE: "corruption_rn50"},
        ("imagenet_c",),
    ),
    Task(
        FINE_GRAINED,
        "Task 3",
        "fine-grained",
        {PAPERS_BACKBONE: "fine_grained_vitb16", OTHER_BACKBONE: "fine_grained_rn50"},
        (
            "fgvc_aircraft", "caltech101", "stanford_cars", "dtd", "eurosat", "oxford_flowers", "food101",
            "oxford_pets", "sun397", "ucf101",
        ),
    ),
    Task(OTHER, "", "other sets", {}, ()),
)  # fmt: skip

PAPER_COLUMNS = {
    "imagenet": "ImageNet",
    "imagenet_a": "ImageNet-A",
    "imagenetv2": "ImageNet-V",
    "imagenet_r": "ImageNet-R",
    "imagenet_sketch": "ImageNet-Sketch",
    "fgvc_aircraft": "Aircraft",
    "caltech101": "Caltech101",
    "stanford_cars": "Cars",
    "dtd": "DTD",
    "eurosat": "EuroSAT",
    "oxford_flowers": "Flower102",
    "food101": "Food101",
    "oxford_pets": "Pets",
    "sun397": "SUN397",
    "ucf101": "UCF101",
}
"""The paper's column names of the sets in the catalogue."""

STAND_INS = {
    "cifar10": NATURAL,
    "fashionmnist": FINE_GRAINED,
    "pacs": NATURAL,
    "pacsartpainting": NATURAL,
    "pacscartoon": NATURAL,
    "pacsphoto": NATURAL,
    "pacssketch": NATURAL,
}
"""Sets that stand in for a task of the paper: photographs of common objects, images of one category, one category drawn
in several styles. Full names without hyphens, so that CIFAR-100 is not one of them."""


def get_task(name: str) -> Task:
    """The task with this id."""
    return next(task for task in TASKS if task.id == name)


def task_of(data_set: str, corruption: str | None) -> str:
    """Id of the task a set belongs to.

    >>> task_of("imagenet_a", None), task_of("CIFAR-10", "fog"), task_of("Fashion-MNIST", None), task_of("mine", None)
    ('natural', 'corruption', 'fine_grained', 'other')
    >>> task_of("pacs_sketch", None), task_of("CIFAR-100", None)
    ('natural', 'other')
    """
    if corruption:
        return CORRUPTION
    named = data_set.lower()
    for task in TASKS:
        if named in task.papers_sets:
            return task.id
    return STAND_INS.get(named.replace("-", "").replace("_", ""), OTHER)

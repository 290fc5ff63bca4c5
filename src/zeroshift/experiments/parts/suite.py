"""The sets an experiment runs on: which of the paper's three tasks each belongs to, and whether it is the paper's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zeroshift.data import catalogue
from zeroshift.evaluate import Entry
from zeroshift.features import FeatureSet

__all__ = ["BACKBONES", "TASKS", "Member", "Suite", "Task", "together"]


@dataclass(frozen=True)
class Task:
    """One of the paper's three, or whatever is none of them."""

    id: str
    paper: str
    """What the paper's tables call it."""
    title: str
    tables: Mapping[str, str]
    """Id of the paper's main table, by backbone."""
    papers_sets: tuple[str, ...]
    """Ids, in the catalogue, of the sets the paper measured it on; of ImageNet-C, every kind at severity 5."""


TASKS = (
    Task(
        "natural",
        "Task 1",
        "natural shift",
        {"CLIP ViT-B/16": "natural_shift_vitb16", "CLIP RN50": "natural_shift_rn50"},
        ("imagenet", "imagenet_a", "imagenetv2", "imagenet_r", "imagenet_sketch"),
    ),
    Task(
        "corruption",
        "Task 2",
        "corruption",
        {"CLIP ViT-B/16": "corruption_vitb16", "CLIP RN50": "corruption_rn50"},
        ("imagenet_c",),
    ),
    Task(
        "fine_grained",
        "Task 3",
        "fine-grained",
        {"CLIP ViT-B/16": "fine_grained_vitb16", "CLIP RN50": "fine_grained_rn50"},
        (
            "fgvc_aircraft", "caltech101", "stanford_cars", "dtd", "eurosat", "oxford_flowers", "food101",
            "oxford_pets", "sun397", "ucf101",
        ),
    ),
    Task("other", "", "other sets", {}, ()),
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
"""What the paper's columns call the sets of the catalogue."""

STAND_INS = {"cifar-10": "natural", "fashion-mnist": "fine_grained", "pacs": "natural"}
"""Sets that are not the paper's, and the task they stand in for: photographs of common things, pictures of one kind of
thing, one kind of thing drawn in several ways."""

BACKBONES = {
    "openai/clip-vit-base-patch16": "CLIP ViT-B/16",
    "openai/clip-vit-base-patch32": "CLIP ViT-B/32",
    "openai/clip-vit-large-patch14": "CLIP ViT-L/14",
    "rn50": "CLIP RN50",
}
"""What the paper, or the field, calls a model, by the name it is loaded under."""


@dataclass(frozen=True)
class Member:
    """A set as an experiment knows it."""

    entry: Entry
    task: str
    data_set: str
    """Id in the catalogue, or what the set calls the data it was made from, or its own name."""
    encoder: str
    """"CLIP ViT-B/16", "composed", or whatever the set says."""
    corruption: str | None
    """One of the fifteen kinds, as the catalogue writes them: "defocus_blur"."""
    severity: int | None
    prompts: tuple[str, ...]
    papers: bool
    """Whether these are the paper's own images, all of them, seen by one of its backbones."""

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def title(self) -> str:
        return self.entry.title

    @property
    def paper_column(self) -> str | None:
        """What the column of this set is called in the paper's tables; None where the paper has none for it."""
        if not self.papers:
            return None
        if self.data_set == "imagenet_c":
            kind = str(self.corruption).replace("_", " ").capitalize().replace("Jpeg", "JPEG")
            return kind if self.severity == 5 else None
        return PAPER_COLUMNS[self.data_set]

    @classmethod
    def of(
        cls, name: str, features: FeatureSet, load: Callable[[], FeatureSet] | None = None, prompt: str | None = None
    ) -> Member:
        """From a labelled set; what it is, is read from its provenance.

        >>> from zeroshift.data import packs
        >>> fog = Member.of("fog", packs.load("cifar10c_fog_5"))
        >>> fog.task, fog.corruption, fog.severity, fog.encoder, fog.papers
        ('corruption', 'fog', 5, 'composed', False)
        """
        said = features.provenance
        images = said.get("images", {})
        data_set = _data_set(images, said, name)
        corruption, severity = _corruption(images, said)
        encoder = _encoder(said.get("encoder"))
        return cls(
            entry=Entry.of(name, features, prompt, load),
            task=_task(data_set, corruption),
            data_set=data_set,
            encoder=encoder,
            corruption=corruption,
            severity=severity,
            prompts=features.prompts,
            papers=_is_papers(images, encoder, features.n_samples),
        )


@dataclass(frozen=True)
class Suite:
    """All sets of an experiment, in the order given."""

    members: tuple[Member, ...]

    @classmethod
    def of(cls, sets: Mapping[str, FeatureSet]) -> Suite:
        """From sets in memory, by name.

        >>> from zeroshift.data import packs
        >>> suite = Suite.of({name: packs.load(name) for name in ("cifar10", "cifar10c_fog_5")})
        >>> [member.task for member in suite.members], [task.paper for task in suite.tasks]
        (['natural', 'corruption'], ['Task 1', 'Task 2'])
        """
        return cls(tuple(Member.of(name, features) for name, features in sets.items()))

    @property
    def tasks(self) -> list[Task]:
        """The tasks there are sets for, in the paper's order."""
        return [task for task in TASKS if self.of_task(task.id)]

    @property
    def encoders(self) -> list[str]:
        return list(dict.fromkeys(member.encoder for member in self.members))

    def of_task(self, task: str) -> list[Member]:
        return [member for member in self.members if member.task == task]

    def of_encoder(self, encoder: str) -> Suite:
        return Suite(tuple(member for member in self.members if member.encoder == encoder))

    def papers(self, task: Task) -> str | None:
        """The backbone, where the sets of a task are just the paper's: only then do their means compare with its."""
        members = self.of_task(task.id)
        backbones = {member.encoder for member in members}
        if len(backbones) != 1 or not all(member.papers for member in members):
            return None
        (backbone,) = backbones
        have = sorted(f"{member.data_set} {member.corruption or ''}{member.severity or ''}" for member in members)
        if task.id == "corruption":
            kinds = {member.corruption for member in members if member.severity == 5}
            return backbone if len(kinds) == len(have) == 15 else None
        return backbone if [text.strip() for text in have] == sorted(task.papers_sets) else None

    def __len__(self) -> int:
        return len(self.members)


def _data_set(images: Mapping[str, Any], said: Mapping[str, Any], name: str) -> str:
    if "data_set" in images:
        return str(images["data_set"])
    made_from = said.get("data_set", said.get("dataset", name))
    return str(made_from["name"] if isinstance(made_from, Mapping) else made_from)


def _corruption(images: Mapping[str, Any], said: Mapping[str, Any]) -> tuple[str | None, int | None]:
    # A catalogue set is corrupted on the disk; any other may have been as it was encoded.
    told = said.get("corruption") or images.get("corruption")
    severity = said.get("severity") or images.get("severity")
    if isinstance(told, Mapping):
        told, severity = told["kind"], told["severity"]
    if not told:
        return None, None
    return str(told).lower().replace(" ", "_"), None if severity is None else int(severity)


def _encoder(said: Any) -> str:
    if isinstance(said, Mapping):
        if str(said.get("statement", "")).startswith("a composed") or said.get("family") == "composed":
            return "composed"
        source = str(said.get("source", "unknown encoder"))
        return BACKBONES.get(source.lower(), source)
    text = str(said or "unknown encoder")
    return "composed" if text.startswith("EfficientNet-Lite2") else text


def _task(data_set: str, corruption: str | None) -> str:
    if corruption:
        return "corruption"
    named = data_set.lower()
    for task in TASKS:
        if named in task.papers_sets:
            return task.id
    return next((task for word, task in STAND_INS.items() if named.replace("_", "-").startswith(word)), "other")


def _is_papers(images: Mapping[str, Any], encoder: str, n_samples: int) -> bool:
    if images.get("source") != "catalogue" or images.get("split") != "test":
        return False
    whole = catalogue.get(str(images["data_set"])).counts["test"] == n_samples
    return whole and encoder in TASKS[0].tables


def together(members: Sequence[Member]) -> str:
    """Names in a sentence."""
    return ", ".join(member.title for member in members)

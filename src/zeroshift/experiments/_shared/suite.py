"""The sets of an experiment: what their provenance says, which task of the paper they belong to, and which to use."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zeroshift.data import catalogue
from zeroshift.data.corruptions import KINDS
from zeroshift.evaluate import DatasetRef
from zeroshift.experiments._shared.tasks import OTHER_BACKBONE, PAPER_COLUMNS, PAPERS_BACKBONE, TASKS, Task, task_of
from zeroshift.features import FeatureSet

__all__ = [
    "BACKBONES",
    "NO_ORDER",
    "PAPERS_SET",
    "PAPERS_SEVERITY",
    "TASKS",
    "Member",
    "Suite",
    "Task",
    "clean_and_corrupted",
    "corruption_of",
    "data_set_of",
    "describe_sets",
    "encoder_of",
    "is_paper_imagenet",
    "is_papers",
    "largest_per_task",
    "largest_per_task_note",
    "main_set",
]

BACKBONES = {
    "openai/clip-vit-base-patch16": PAPERS_BACKBONE,
    "open_clip:vit-b-16/openai": PAPERS_BACKBONE,
    "open_clip:vit-b-16-quickgelu/openai": PAPERS_BACKBONE,
    "openai/clip-vit-base-patch32": "CLIP ViT-B/32",
    "openai/clip-vit-large-patch14": "CLIP ViT-L/14",
    "open_clip:rn50/openai": OTHER_BACKBONE,
    "open_clip:rn50-quickgelu/openai": OTHER_BACKBONE,
    "rn50": OTHER_BACKBONE,
}
"""Names of models in the paper or in the literature, by the name they are loaded under, in lower case."""


def data_set_of(provenance: Mapping[str, Any], name: str) -> str:
    """Catalogue id, or the data set named in the provenance, or the name of the set."""
    images = provenance.get("images", {})
    if "data_set" in images:
        return str(images["data_set"])
    made_from = provenance.get("data_set", provenance.get("dataset", name))
    return str(made_from["name"] if isinstance(made_from, Mapping) else made_from)


def corruption_of(provenance: Mapping[str, Any]) -> tuple[str | None, int | None]:
    """Kind and severity of the corruption; None if there is none.

    >>> corruption_of({"corruption": "JPEG compression", "severity": 5})
    ('jpeg_compression', 5)
    >>> corruption_of({"images": {"corruption": "fog", "severity": 3}}), corruption_of({"corruption": None})
    (('fog', 3), (None, None))
    """
    # Catalogue sets are corrupted on disk; others may have been corrupted while encoding.
    images = provenance.get("images", {})
    kind = provenance.get("corruption") or images.get("corruption")
    severity = provenance.get("severity") or images.get("severity")
    if isinstance(kind, Mapping):
        kind, severity = kind["kind"], kind["severity"]
    if not kind:
        return None, None
    return str(kind).lower().replace(" ", "_"), None if severity is None else int(severity)


def encoder_of(provenance: Mapping[str, Any]) -> str:
    """Name of the backbone in the paper, "composed", or the encoder named in the provenance.

    >>> encoder_of({"encoder": {"source": "openai/clip-vit-base-patch16"}}), encoder_of({"encoder": "CLIP RN50"})
    ('CLIP ViT-B/16', 'CLIP RN50')
    """
    encoder = provenance.get("encoder")
    if isinstance(encoder, Mapping):
        if str(encoder.get("statement", "")).startswith("a composed") or encoder.get("family") == "composed":
            return "composed"
        source = str(encoder.get("source", "unknown encoder"))
        return BACKBONES.get(source.lower(), source)
    text = str(encoder or "unknown encoder")
    return "composed" if text.startswith("EfficientNet-Lite2") else text


def is_papers(provenance: Mapping[str, Any], n_samples: int) -> bool:
    """Whether the set holds exactly the images of the paper, without further corruption, encoded by one of its
    backbones."""
    images = provenance.get("images", {})
    if images.get("source") != "catalogue" or images.get("split") != "test":
        return False
    # Images corrupted while encoding are not the published ones.
    if provenance.get("corruption"):
        return False
    whole = catalogue.get(str(images["data_set"])).counts["test"] == n_samples
    return whole and encoder_of(provenance) in TASKS[0].tables


PAPERS_SEVERITY = 5
"""Severity of ImageNet-C in all tables of the paper except the one on severities."""


@dataclass(frozen=True)
class Member:
    """A set of a suite, with facts from its provenance."""

    dataset: DatasetRef
    task: str
    data_set: str
    """Catalogue id, or the data set named in the provenance, or the name of the set."""
    encoder: str
    """"CLIP ViT-B/16", "composed", or the encoder named in the provenance."""
    corruption: str | None
    """One of the fifteen kinds, named as in the catalogue: "defocus_blur"."""
    severity: int | None
    prompts: tuple[str, ...]
    from_paper: bool
    """Whether the set holds exactly the images of the paper, encoded by one of its backbones."""
    samples: str
    """Identifies the samples independently of the encoder: the data set, or else a digest of labels and class names."""

    @property
    def name(self) -> str:
        return self.dataset.name

    @property
    def title(self) -> str:
        return self.dataset.title

    @property
    def kind(self) -> str:
        """The kind of corruption as in the paper's columns; empty without corruption.

        >>> from zeroshift.data import packs
        >>> Member.of("jpeg", packs.load("cifar10c_jpeg_compression_5")).kind
        'JPEG compression'
        """
        return (self.corruption or "").replace("_", " ").capitalize().replace("Jpeg", "JPEG")

    @property
    def subject(self) -> tuple[str, str | None, int | None]:
        """Samples, kind and severity of corruption, independently of the encoder."""
        return (self.samples, self.corruption, self.severity)

    @property
    def paper_column(self) -> str | None:
        """Name of the column of this set in the paper's tables; None if there is none."""
        if not self.from_paper:
            return None
        if self.data_set == "imagenet_c":
            return self.kind if self.severity == PAPERS_SEVERITY else None
        return PAPER_COLUMNS[self.data_set]

    @classmethod
    def of(
        cls, name: str, features: FeatureSet, load: Callable[[], FeatureSet] | None = None, prompt: str | None = None
    ) -> Member:
        """From a labelled set and its provenance.

        >>> from zeroshift.data import packs
        >>> fog = Member.of("fog", packs.load("cifar10c_fog_5"))
        >>> fog.task, fog.corruption, fog.severity, fog.encoder, fog.from_paper
        ('corruption', 'fog', 5, 'composed', False)
        """
        if not isinstance(name, str) or not name:
            raise ValueError(
                f"the name of a set must be text, and not empty; got {name!r}. Fix: 'photos', for example."
            )
        if not isinstance(features, FeatureSet):
            raise TypeError(
                f"{name} must be a FeatureSet; got {type(features).__name__}. "
                "Fix: FeatureSet(features, prototypes=..., labels=...)."
            )
        provenance = features.provenance
        data_set = data_set_of(provenance, name)
        corruption, severity = corruption_of(provenance)
        return cls(
            dataset=DatasetRef.of(name, features, prompt, load),
            task=task_of(data_set, corruption),
            data_set=data_set,
            encoder=encoder_of(provenance),
            corruption=corruption,
            severity=severity,
            prompts=features.prompts,
            from_paper=is_papers(provenance, features.n_samples),
            samples=data_set_of(provenance, _digest(features)),
        )


@dataclass(frozen=True)
class Suite:
    """The sets of an experiment, in order."""

    members: tuple[Member, ...]

    def __post_init__(self) -> None:
        count = Counter(member.name for member in self.members)
        if twice := [name for name, times in count.items() if times > 1]:
            raise ValueError(
                f"every set needs a unique name; {count[twice[0]]} are called {twice[0]!r}. "
                "Fix: give each another name, such as Member.of('photos/pets', features)."
            )

    @classmethod
    def of(cls, sets: Mapping[str, FeatureSet]) -> Suite:
        """From sets in memory, by name.

        >>> from zeroshift.data import packs
        >>> suite = Suite.of({name: packs.load(name) for name in ("cifar10", "cifar10c_fog_5")})
        >>> [member.task for member in suite.members], [task.paper for task in suite.tasks]
        (['natural', 'corruption'], ['Task 1', 'Task 2'])
        """
        if not isinstance(sets, Mapping):
            raise TypeError(
                f"sets must be a mapping from names to feature sets; got {type(sets).__name__}. "
                "Fix: Suite.of({'photos': features})."
            )
        if not sets:
            raise ValueError("sets is empty; there is nothing to do experiments on. Fix: give at least one set.")
        return cls(tuple(Member.of(name, features) for name, features in sets.items()))

    @property
    def tasks(self) -> list[Task]:
        """The tasks that have sets, in the paper's order."""
        return [task for task in TASKS if self.of_task(task.id)]

    @property
    def encoders(self) -> list[str]:
        return list(dict.fromkeys(member.encoder for member in self.members))

    def of_task(self, task: str) -> list[Member]:
        return [member for member in self.members if member.task == task]

    def of_encoder(self, encoder: str) -> Suite:
        return Suite(tuple(member for member in self.members if member.encoder == encoder))

    @property
    def by_encoder(self) -> list[Suite]:
        """One suite per encoder."""
        return [self.of_encoder(encoder) for encoder in self.encoders]

    def paper_backbone(self, task: Task) -> str | None:
        """The backbone, if the sets of a task are exactly the paper's; None otherwise, because means do not compare
        then."""
        members = self.of_task(task.id)
        backbones = {member.encoder for member in members}
        if len(backbones) != 1 or not all(member.from_paper for member in members):
            return None
        (backbone,) = backbones
        if task.id == "corruption":
            kinds = {member.corruption for member in members if member.severity == PAPERS_SEVERITY}
            return backbone if len(kinds) == len(members) == len(KINDS) else None
        return backbone if sorted(member.data_set for member in members) == sorted(task.papers_sets) else None

    def __len__(self) -> int:
        return len(self.members)


def describe_sets(members: Sequence[Member]) -> str:
    """A list of sets for a sentence; corrupted sets by the data they are made from.

    >>> from zeroshift.data import packs
    >>> names = ("cifar10", "cifar10c_fog_5", "cifar10c_gaussian_noise_3")
    >>> describe_sets(Suite.of({name: packs.load(name) for name in names}).members)
    'CIFAR-10; CIFAR-10 under fog of severity 5; CIFAR-10 under Gaussian noise of severity 3'
    """
    plain = dict.fromkeys(member.title for member in members if not member.corruption)
    kinds: dict[tuple[str, int | None], dict[str, None]] = {}
    for member in members:
        if member.corruption:
            words = member.kind if member.kind.startswith(("Gaussian", "JPEG")) else member.kind.lower()
            kinds.setdefault((member.data_set, member.severity), {})[words] = None
    texts = [", ".join(plain)] if plain else []
    for (data_set, severity), found in kinds.items():
        ending = f" of severity {severity}" if severity else ""
        texts.append(f"{data_set} under {_listed(list(found))}{ending}")
    return "; ".join(texts)


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def _digest(features: FeatureSet) -> str:
    labels = b"" if features.labels is None else features.labels.astype("<i8").tobytes()
    return hashlib.blake2b(labels + "\n".join(features.class_names).encode(), digest_size=8).hexdigest()


PAPERS_SET = "imagenet"
"""The set on which the paper measures time and memory."""

NO_ORDER = "Zero-shot and transductive methods do not depend on the order."


def is_paper_imagenet(member: Member) -> bool:
    """Whether the set is the paper's ImageNet, encoded by the backbone of most of its tables."""
    return member.from_paper and member.data_set == PAPERS_SET and member.encoder == PAPERS_BACKBONE


def main_set(suite: Suite) -> Member:
    """The paper's ImageNet if present, otherwise the first of the largest sets."""
    papers = [member for member in suite.members if member.from_paper and member.data_set == PAPERS_SET]
    return max(papers or suite.members, key=lambda member: member.dataset.n_samples)


def largest_per_task(suite: Suite) -> Suite:
    """The first of the largest sets of each task. A task with exactly the paper's sets keeps all of them, because the
    paper's number is their mean.

    >>> from zeroshift.data import packs
    >>> names = ("cifar10", "cifar10c_fog_5", "cifar10c_defocus_blur_5")
    >>> suite = largest_per_task(Suite.of({name: packs.load(name) for name in names}))
    >>> [member.name for member in suite.members]
    ['cifar10', 'cifar10c_fog_5']
    """
    taken: set[str] = set()
    for task in suite.tasks:
        members = suite.of_task(task.id)
        whole = suite.paper_backbone(task) is not None
        kept = members if whole else [max(members, key=lambda member: member.dataset.n_samples)]
        taken |= {member.dataset.digest for member in kept}
    return Suite(tuple(member for member in suite.members if member.dataset.digest in taken))


def largest_per_task_note(suite: Suite) -> str:
    """A note about the order, and about omitted sets if there are any; `suite` holds all sets."""
    kept = largest_per_task(suite)
    why = "because the slow rows recompute everything for every sample"
    if len(kept) == len(suite):
        return f"Online: one random order, {why}. {NO_ORDER}"
    return f"Online: one random order; and one set per task ({describe_sets(kept.members)}), {why}. {NO_ORDER}"


PICTURED_SETS = 2


def clean_and_corrupted(suite: Suite, most: int = PICTURED_SETS) -> list[Member]:
    """The first clean and the first corrupted set, in the order of the suite; other sets if there is no such pair.

    >>> from zeroshift.data import packs
    >>> names = ("cifar10", "fmnist", "cifar10c_fog_5")
    >>> [member.name for member in clean_and_corrupted(Suite.of({name: packs.load(name) for name in names}))]
    ['cifar10', 'cifar10c_fog_5']
    """
    clean = [member for member in suite.members if member.corruption is None]
    corrupted = [member for member in suite.members if member.corruption is not None]
    chosen = [*clean[:1], *corrupted[:1], *clean[1:], *corrupted[1:]][:most]
    return [member for member in suite.members if member in chosen]

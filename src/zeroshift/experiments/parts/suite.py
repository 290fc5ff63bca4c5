"""The sets an experiment runs on: which of the paper's three tasks each belongs to, and whether it is the paper's."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from zeroshift.data.corruptions import KINDS
from zeroshift.evaluate import Entry
from zeroshift.experiments.parts.provenance import BACKBONES, corruption_of, data_set_of, encoder_of, is_papers
from zeroshift.experiments.parts.tasks import PAPER_COLUMNS, TASKS, Task, task_of
from zeroshift.features import FeatureSet

__all__ = ["BACKBONES", "PAPERS_SEVERITY", "TASKS", "Member", "Suite", "Task", "together"]

PAPERS_SEVERITY = 5
"""Of ImageNet-C, in all tables of the paper but the one of severities."""


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
    samples: str
    """Which samples they are, whichever encoder saw them: the data set, or where the set does not say, a digest of its
    labels and class names."""

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def title(self) -> str:
        return self.entry.title

    @property
    def kind(self) -> str:
        """The kind of corruption in words, as the paper's columns have it; empty where there is none.

        >>> from zeroshift.data import packs
        >>> Member.of("jpeg", packs.load("cifar10c_jpeg_compression_5")).kind
        'JPEG compression'
        """
        return (self.corruption or "").replace("_", " ").capitalize().replace("Jpeg", "JPEG")

    @property
    def subject(self) -> tuple[str, str | None, int | None]:
        """What was looked at, whichever encoder did: which samples, kind and severity of corruption."""
        return (self.samples, self.corruption, self.severity)

    @property
    def paper_column(self) -> str | None:
        """What the column of this set is called in the paper's tables; None where the paper has none for it."""
        if not self.papers:
            return None
        if self.data_set == "imagenet_c":
            return self.kind if self.severity == PAPERS_SEVERITY else None
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
        if not isinstance(name, str) or not name:
            raise ValueError(
                f"the name of a set must be text, and not empty; got {name!r}. Fix: 'photos', for example."
            )
        if not isinstance(features, FeatureSet):
            raise TypeError(
                f"{name} must be a FeatureSet; got {type(features).__name__}. "
                "Fix: FeatureSet(features, prototypes=..., labels=...)."
            )
        said = features.provenance
        data_set = data_set_of(said, name)
        corruption, severity = corruption_of(said)
        return cls(
            entry=Entry.of(name, features, prompt, load),
            task=task_of(data_set, corruption),
            data_set=data_set,
            encoder=encoder_of(said),
            corruption=corruption,
            severity=severity,
            prompts=features.prompts,
            papers=is_papers(said, features.n_samples),
            samples=data_set_of(said, _digest(features)),
        )


@dataclass(frozen=True)
class Suite:
    """All sets of an experiment, in the order given."""

    members: tuple[Member, ...]

    def __post_init__(self) -> None:
        count = Counter(member.name for member in self.members)
        if twice := [name for name, times in count.items() if times > 1]:
            raise ValueError(
                f"every set needs a name of its own; {count[twice[0]]} are called {twice[0]!r}. "
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
        """The tasks there are sets for, in the paper's order."""
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
        """The sets of each encoder apart: their means do not mix."""
        return [self.of_encoder(encoder) for encoder in self.encoders]

    def papers(self, task: Task) -> str | None:
        """The backbone, where the sets of a task are just the paper's: only then do their means compare with its."""
        members = self.of_task(task.id)
        backbones = {member.encoder for member in members}
        if len(backbones) != 1 or not all(member.papers for member in members):
            return None
        (backbone,) = backbones
        if task.id == "corruption":
            kinds = {member.corruption for member in members if member.severity == PAPERS_SEVERITY}
            return backbone if len(kinds) == len(members) == len(KINDS) else None
        return backbone if sorted(member.data_set for member in members) == sorted(task.papers_sets) else None

    def __len__(self) -> int:
        return len(self.members)


def together(members: Sequence[Member]) -> str:
    """Sets in a sentence: corrupted ones by what they are made from.

    >>> from zeroshift.data import packs
    >>> names = ("cifar10", "cifar10c_fog_5", "cifar10c_gaussian_noise_3")
    >>> together(Suite.of({name: packs.load(name) for name in names}).members)
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

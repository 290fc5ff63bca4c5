"""A feature set as it takes part in a comparison: known by what it holds, loaded where and when it is needed."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from zeroshift.evaluate.encoder_ref import EncoderRef, check_fit
from zeroshift.evaluate.keys import features_digest
from zeroshift.evaluate.ledger import Ledger
from zeroshift.evaluate.method_spec import MethodSpec
from zeroshift.evaluate.runner import JobOutcome, run_jobs
from zeroshift.evaluate.trial import Trial
from zeroshift.features import FeatureSet
from zeroshift.methods._shared.prompt_tuned import PromptTuned
from zeroshift.methods.inputs import TEXT, VIEWS
from zeroshift.parameters import Number

__all__ = ["DatasetRef", "Plan", "Skipped", "describe_skipped", "plan_comparison", "run_plan"]


@dataclass(frozen=True)
class DatasetRef:
    """A labelled set under a name of its own."""

    name: str
    digest: str
    load: Callable[[], FeatureSet]
    """Picklable, because other processes load it too."""
    prompt: str
    """The prompt mode whose prototypes every method starts from."""
    n_samples: int
    n_classes: int
    dimension: int
    n_prompts: int
    """Prompt modes: as many prompts of each class can be given to methods that weigh several."""
    n_views: int
    """Views of each image, the image itself included; 0 where the set has none."""
    spare: int
    """Samples the largest class can give away and keep as many: 0 where no class has two."""
    fewest: int
    """Samples of the smallest class, of those that have any."""
    title: str
    encoder: str
    """What the set says about the encoder it comes from; empty where it says nothing."""
    hints: tuple[str, ...]
    """See `FeatureSet.hints`."""
    class_names: tuple[str, ...]
    """By class index: records hold indices alone."""

    @classmethod
    def of(
        cls, name: str, features: FeatureSet, prompt: str | None = None, load: Callable[[], FeatureSet] | None = None
    ) -> DatasetRef:
        """From a set; with `load`, a function that gets it again, the set itself is only looked at and not kept.

        >>> pets = FeatureSet(np.eye(2), prototypes=np.eye(2), labels=[0, 1])
        >>> DatasetRef.of("pets", pets).n_classes
        2
        """
        if features.labels is None:
            raise ValueError(
                f"{name} has no labels: there is nothing to compare methods by. "
                "Fix: give labels when the set is made; `zeroshift adapt` needs none."
            )
        try:
            features.prototypes_for(prompt)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        counts = np.bincount(features.labels)
        return cls(
            name=name,
            digest=features_digest(features),
            load=partial(_itself, features) if load is None else load,
            prompt=features.default_prompt if prompt is None else prompt,
            n_samples=features.n_samples,
            n_classes=features.n_classes,
            dimension=features.dimension,
            n_prompts=len(features.prompts),
            n_views=features.n_views,
            spare=int(counts.max()) // 2,
            fewest=int(counts[counts > 0].min()),
            title=str(features.provenance.get("title", name)),
            encoder=_statement(features.provenance.get("encoder")),
            hints=tuple(features.hints(prompt)),
            class_names=tuple(features.class_names),
        )


def _statement(encoder: object) -> str:
    return str(encoder.get("statement", "")) if isinstance(encoder, Mapping) else ""


def _itself(features: FeatureSet) -> FeatureSet:
    return features


# Many methods on many sets: which runs there are, and a loop that does those that are not recorded yet.


@dataclass(frozen=True)
class Skipped:
    """A contestant that cannot be run, and why; on one set, or on any."""

    spec: MethodSpec
    reason: str
    dataset: DatasetRef | None = None

    def __str__(self) -> str:
        where = "" if self.dataset is None else f" on {self.dataset.name}"
        return f"{self.spec.label}{where}: {self.reason}"


def describe_skipped(skipped: Sequence[Skipped]) -> list[str]:
    """A line for each contestant and reason, with all the sets it is the reason on."""
    lines: dict[tuple[str, str], list[str]] = {}
    for left in skipped:
        sets = lines.setdefault((left.spec.label, left.reason), [])
        sets += [] if left.dataset is None else [left.dataset.name]
    return [f"{label}{' on ' if sets else ''}{', '.join(sets)}: {reason}" for (label, reason), sets in lines.items()]


@dataclass(frozen=True)
class Plan:
    """All runs of a comparison, set by set, and who cannot take part."""

    datasets: tuple[DatasetRef, ...]
    specs: tuple[MethodSpec, ...]
    """Those with at least one run."""
    trials: tuple[Trial, ...]
    skipped: tuple[Skipped, ...]
    orders: int
    shots: int
    encoder: EncoderRef | None = None


def plan_comparison(
    datasets: Sequence[DatasetRef],
    specs: Sequence[MethodSpec],
    *,
    orders: int = 3,
    shots: int = 4,
    encoder: EncoderRef | None = None,
) -> Plan:
    """Every contestant on every set.

    Methods whose answer depends on the order of the stream, and those for which rows are drawn beforehand, run `orders`
    times, with the seeds 0, 1, ...; all others once, in the stored order. `shots` labelled samples of each class, never
    more than half of it, go to methods that take support, and are not scored. Methods that tune prompts do it with
    `encoder`, which must be the one every set comes from.
    """
    orders = int(Number(1, integer=True).check("orders", orders))
    shots = int(Number(1, integer=True).check("shots", shots))
    trials: list[Trial] = []
    held = [VIEWS] if any(dataset.n_views for dataset in datasets) else []
    held += [] if encoder is None else [TEXT]
    reasons = [(spec, spec.missing_input(*held)) for spec in specs]
    skipped = [Skipped(spec, reason) for spec, reason in reasons if reason is not None]
    able = [spec for spec, reason in reasons if reason is None]
    for dataset in datasets:
        for spec in able:
            if reason := _lacks(dataset, spec, shots):
                skipped.append(Skipped(spec, reason, dataset))
                continue
            seeds = range(orders) if spec.streamed or spec.drawn else (None,)
            taken = shots if "support" in spec.given else None
            trial = partial(Trial, dataset.name, dataset.digest, dataset.prompt, spec, shots=taken)
            if spec.tunes_text:
                trial = partial(trial, encoder=encoder, class_names=dataset.class_names)
            trials += [trial(seed=seed) for seed in seeds]
    if encoder is not None:
        _check_encoder(encoder, datasets, trials)
    running = {id(trial.spec) for trial in trials}
    return Plan(
        datasets=tuple(datasets),
        specs=tuple(spec for spec in able if id(spec) in running),
        trials=tuple(trials),
        skipped=tuple(skipped),
        orders=orders,
        shots=shots,
        encoder=encoder,
    )


def _check_encoder(encoder: EncoderRef, datasets: Sequence[DatasetRef], trials: Sequence[Trial]) -> None:
    """Before anything is run: tuned with another encoder's text, every number would be of nothing."""
    for dataset in datasets:
        tuned = [trial.spec for trial in trials if trial.features == dataset.name and trial.encoder is not None]
        if tuned:
            words = [spec.prompt_words if spec.starts_from_prompt else PromptTuned.words for spec in tuned]
            check_fit(dataset.name, dataset.load(), encoder, dict.fromkeys(words))


def _lacks(dataset: DatasetRef, spec: MethodSpec, shots: int) -> str | None:
    if "support" in spec.given and dataset.spare == 0:
        return "no class has two samples, one to learn from and one to be scored on"
    if "validation" in spec.given and min(dataset.spare, shots) < 2:
        return "no class has two labelled samples, one to learn from and one to choose by"
    if VIEWS in spec.given and not dataset.n_views:
        return spec.missing_input(TEXT)
    if "unlabelled" in spec.given and dataset.n_samples < 2:
        return "one sample cannot be halved"
    return None


def run_plan(
    planned: Plan, ledger: Ledger, *, jobs: int = 0, again: bool = False, notes: Mapping[str, Any] | None = None
) -> Generator[JobOutcome[Trial], None, None]:
    """Do the runs that `ledger` has no record of (all of them with `again`), recording each as it is done: see
    `zeroshift.evaluate.runner.run_jobs`."""
    loaders = {dataset.digest: dataset.load for dataset in planned.datasets}
    processes = int(Number(0, integer=True).check("jobs", jobs))
    return run_jobs(planned.trials, loaders, ledger, processes=processes, again=again, notes=notes)

"""Planning a comparison: which runs of which methods on which sets, and running those without a record."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from zeroshift.distributed import Executor
from zeroshift.evaluate.encoder_ref import EncoderRef, check_fit
from zeroshift.evaluate.keys import features_digest
from zeroshift.evaluate.ledger import Ledger
from zeroshift.evaluate.method_spec import MethodSpec
from zeroshift.evaluate.protocols import Protocol
from zeroshift.evaluate.runner import JobOutcome, run_jobs
from zeroshift.evaluate.streams import StreamSpec
from zeroshift.evaluate.trial import Trial
from zeroshift.features import FeatureSet
from zeroshift.methods._shared.prompt_tuned import PromptTuned
from zeroshift.methods.inputs import SECOND, TEXT, VIEWS
from zeroshift.parameters import Number

__all__ = ["DatasetRef", "Plan", "Skipped", "describe_skipped", "plan_comparison", "run_plan"]


@dataclass(frozen=True)
class DatasetRef:
    """A labelled feature set that is loaded on demand, and facts about it."""

    name: str
    digest: str
    load: Callable[[], FeatureSet]
    """Loads the set; picklable, because other processes call it."""
    prompt: str
    """Prompt mode of the prototypes that methods start from."""
    n_samples: int
    n_classes: int
    dimension: int
    n_prompts: int
    """Number of prompt modes: prompts per class for methods that weight several."""
    n_views: int
    """Views per image, including the image itself; 0 where the set has none."""
    extra: tuple[str, ...]
    """Names of the extra features; methods that take a second encoder get the first of them."""
    spare: int
    """Half the size of the largest class: the number of samples that can be drawn from it; 0 where no class has two."""
    fewest: int
    """Size of the smallest class that has samples."""
    title: str
    encoder: str
    """The statement about the encoder in the provenance, or empty."""
    hints: tuple[str, ...]
    """See `FeatureSet.hints`."""
    class_names: tuple[str, ...]
    """Names by class index; records hold only indices."""

    @classmethod
    def of(
        cls, name: str, features: FeatureSet, prompt: str | None = None, load: Callable[[], FeatureSet] | None = None
    ) -> DatasetRef:
        """From a set. With `load`, a function that loads it again, the set itself is not kept.

        >>> pets = FeatureSet(np.eye(2), prototypes=np.eye(2), labels=[0, 1])
        >>> DatasetRef.of("pets", pets).n_classes
        2
        """
        if features.labels is None:
            raise ValueError(
                f"{name} has no labels, so there is no accuracy to compare. "
                "Fix: give labels when the set is created; `zeroshift adapt` needs none."
            )
        try:
            features.prototypes_for(prompt)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        counts = np.bincount(features.labels)
        return cls(
            name=name,
            digest=features_digest(features),
            load=partial(_return_features, features) if load is None else load,
            prompt=features.default_prompt if prompt is None else prompt,
            n_samples=features.n_samples,
            n_classes=features.n_classes,
            dimension=features.dimension,
            n_prompts=len(features.prompts),
            n_views=features.n_views,
            extra=tuple(features.extra),
            spare=int(counts.max()) // 2,
            fewest=int(counts[counts > 0].min()),
            title=str(features.provenance.get("title", name)),
            encoder=_statement(features.provenance.get("encoder")),
            hints=tuple(features.hints(prompt)),
            class_names=tuple(features.class_names),
        )


def _statement(encoder: object) -> str:
    return str(encoder.get("statement", "")) if isinstance(encoder, Mapping) else ""


def _return_features(features: FeatureSet) -> FeatureSet:
    return features


@dataclass(frozen=True)
class Skipped:
    """A method that cannot run on one set, or on any, and why."""

    spec: MethodSpec
    reason: str
    dataset: DatasetRef | None = None

    def __str__(self) -> str:
        where = "" if self.dataset is None else f" on {self.dataset.name}"
        return f"{self.spec.label}{where}: {self.reason}"


def describe_skipped(skipped: Sequence[Skipped]) -> list[str]:
    """One line per method and reason, with all sets it applies to."""
    lines: dict[tuple[str, str], list[str]] = {}
    for left in skipped:
        sets = lines.setdefault((left.spec.label, left.reason), [])
        sets += [] if left.dataset is None else [left.dataset.name]
    return [f"{label}{' on ' if sets else ''}{', '.join(sets)}: {reason}" for (label, reason), sets in lines.items()]


@dataclass(frozen=True)
class Plan:
    """All runs of a comparison, and the methods that are skipped."""

    datasets: tuple[DatasetRef, ...]
    specs: tuple[MethodSpec, ...]
    """Methods with at least one run."""
    trials: tuple[Trial, ...]
    skipped: tuple[Skipped, ...]
    orders: int
    shots: int
    encoder: EncoderRef | None = None
    protocol: Protocol | None = None


def plan_comparison(
    datasets: Sequence[DatasetRef],
    specs: Sequence[MethodSpec],
    *,
    orders: int = 3,
    shots: int = 4,
    encoder: EncoderRef | None = None,
    protocol: Protocol | None = None,
) -> Plan:
    """Plan every method on every set.

    Methods whose predictions depend on the order of the stream or on drawn rows run `orders` times, with seeds 0, 1,
    ...; all others run once, in stored order. Methods that take support get `shots` labelled samples per class, at most
    half of each class, which are not scored. Methods that tune prompts use `encoder`, which must be the encoder of all
    sets. With `protocol`, methods that depend on the order run on each of its streams.
    """
    orders = int(Number(1, integer=True).check("orders", orders))
    shots = int(Number(1, integer=True).check("shots", shots))
    trials: list[Trial] = []
    held = [VIEWS] if any(dataset.n_views for dataset in datasets) else []
    held += [SECOND] if any(dataset.extra for dataset in datasets) else []
    held += [] if encoder is None else [TEXT]
    reasons = [(spec, spec.missing_input(*held)) for spec in specs]
    skipped = [Skipped(spec, reason) for spec, reason in reasons if reason is not None]
    able = [spec for spec, reason in reasons if reason is None]
    for dataset in datasets:
        for spec in able:
            if reason := _missing_in_set(dataset, spec, shots):
                skipped.append(Skipped(spec, reason, dataset))
                continue
            seeds = range(orders) if spec.streamed or spec.drawn else (None,)
            taken = shots if "support" in spec.given else None
            trial = partial(Trial, dataset.name, dataset.digest, dataset.prompt, spec, shots=taken)
            if spec.tunes_text:
                trial = partial(trial, encoder=encoder, class_names=dataset.class_names)
            if protocol is not None:
                trial = partial(trial, every=protocol.every, bins=protocol.bins)
            for stream_spec in _streams(spec, protocol):
                trials += [trial(seed=seed, stream_spec=stream_spec) for seed in seeds]
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
        protocol=protocol,
    )


def _streams(spec: MethodSpec, protocol: Protocol | None) -> list[StreamSpec | None]:
    """The streams of a method. A random order is what a run without a stream has: it needs none."""
    if protocol is None or not spec.streamed:
        return [None]
    return [None if stream.kind == "random" else stream for stream in protocol.streams.values()]


def _check_encoder(encoder: EncoderRef, datasets: Sequence[DatasetRef], trials: Sequence[Trial]) -> None:
    """Check the encoder of prompt-tuning methods before anything runs."""
    for dataset in datasets:
        tuned = [trial.spec for trial in trials if trial.features == dataset.name and trial.encoder is not None]
        if tuned:
            words = [spec.prompt_words if spec.starts_from_prompt else PromptTuned.context_words for spec in tuned]
            check_fit(dataset.name, dataset.load(), encoder, dict.fromkeys(words))


def _missing_in_set(dataset: DatasetRef, spec: MethodSpec, shots: int) -> str | None:
    if "support" in spec.given and dataset.spare == 0:
        return "no class has two samples, one to learn from and one to score"
    if "validation" in spec.given and min(dataset.spare, shots) < 2:
        return "no class has two labelled samples, one to learn from and one for validation"
    if VIEWS in spec.given and not dataset.n_views:
        return spec.missing_input(TEXT, SECOND)
    if SECOND in spec.given and not dataset.extra:
        return spec.missing_input(TEXT, VIEWS)
    if "unlabelled" in spec.given and dataset.n_samples < 2:
        return "a single sample cannot be split into halves"
    return None


def run_plan(
    planned: Plan,
    ledger: Ledger,
    *,
    jobs: int = 0,
    again: bool = False,
    notes: Mapping[str, Any] | None = None,
    on: str | Executor | None = None,
) -> Generator[JobOutcome[Trial], None, None]:
    """Run the trials that `ledger` has no record of (with `again`, all of them): see `run_jobs`."""
    loaders = {dataset.digest: dataset.load for dataset in planned.datasets}
    processes = int(Number(0, integer=True).check("jobs", jobs))
    return run_jobs(planned.trials, loaders, ledger, processes=processes, again=again, notes=notes, on=on)

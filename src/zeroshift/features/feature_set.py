"""`FeatureSet`: the object that packages exchange. It is validated once, when it is made."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zeroshift.arrays import Array, check_labels
from zeroshift.features.checks import (
    blocks,
    check_same_images,
    check_view_zero,
    normalize_fields,
    read_only,
    same_values,
    validate_class_names,
    validate_extra,
    validate_extra_name,
    validate_features,
    validate_indices,
    validate_prototypes,
    validate_provenance,
    validate_sample_names,
    validate_views,
)
from zeroshift.features.files import FEATURES_SCHEMA, read_feature_file, write_feature_file
from zeroshift.files import FileFormatError, checked_path
from zeroshift.parameters import Number
from zeroshift.suggest import did_you_mean
from zeroshift.zero_shot import logits, pseudo_class

__all__ = ["FEATURES_SCHEMA", "FeatureSet"]

DEFAULT_LOGIT_SCALE = 100.0
"""That of CLIP, for every size of the model."""


@dataclass(frozen=True, init=False, eq=False, repr=False)
class FeatureSet:
    """Image features with everything a zero-shot classifier needs: prototypes, class names, logit scale.

    Arrays are stored as read-only NumPy arrays. Prototypes and labels are copied. Features, extra features and views,
    which can be larger than memory, are not copied: do not write to the array (or memory-mapped file) afterwards.

    Parameters
    ----------
    features : (N, d) NumPy array or torch tensor of float16, float32 or float64, rows of unit length. May be omitted
        where `views` is given; it is then view 0 of each image.
    prototypes : (K, d) array of unit rows, or a mapping from prompt mode ("ensemble", ...) to one. A bare array is the
        mode "default".
    labels : (N,) class indices, or None where they are not known.
    class_names : K different names, in the order of the prototypes; by default "class 0", "class 1", ...
    logit_scale : the encoder's logit scale (inverse temperature), s in softmax(s t_k.x).
    default_prompt : the mode used where none is named; by default "ensemble", or else the first mode by name.
    views : (N, V, d) features of V augmented views of each image, where view 0 is the unchanged image.
    sample_names : what the N samples are called, such as the files they come from; None where they have no names.
    extra : features of the same images from other encoders by name, {"dinov2": (N, d2)}, rows of unit length in the
        order of `features`. Methods that take a second encoder are given one of them; see `with_extra`.
    provenance : where the set comes from, a JSON-serialisable mapping.

    Examples
    --------
    >>> import numpy as np
    >>> features = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    >>> pets = FeatureSet(features, prototypes=np.eye(2), labels=[0, 0, 1], class_names=["cat", "dog"])
    >>> pets
    FeatureSet(3 samples, 2 classes, d=2, float64, labelled, prompts: default, logit_scale=100)
    >>> round(pets.zero_shot_accuracy(), 3)
    0.667
    >>> pets.subset([0, 2]).labels.tolist()
    [0, 1]
    """

    features: np.ndarray
    labels: np.ndarray | None
    prototypes: dict[str, np.ndarray]
    default_prompt: str
    class_names: tuple[str, ...]
    logit_scale: float
    views: np.ndarray | None
    sample_names: tuple[str, ...] | None
    extra: dict[str, np.ndarray]
    provenance: dict[str, Any]

    def __init__(
        self,
        features: Array | None = None,
        *,
        prototypes: Array | Mapping[str, Array],
        labels: Array | Sequence[int] | None = None,
        class_names: Sequence[str] | None = None,
        logit_scale: float = DEFAULT_LOGIT_SCALE,
        default_prompt: str | None = None,
        views: Array | None = None,
        sample_names: Sequence[str] | None = None,
        extra: Mapping[str, Array] | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        by_mode = validate_prototypes(prototypes)
        n_classes, dimension = next(iter(by_mode.values())).shape
        if views is not None:
            views = validate_views(views, dimension)
        if features is not None:
            features = validate_features(features, n_classes, dimension)
            if views is not None:
                check_view_zero(features, views)
        elif views is not None:
            features = views[:, 0]
        else:
            raise ValueError("features and views are both None; one is needed. Fix: pass features=, an (N, d) array.")
        if labels is not None:
            labels = check_labels("labels", labels, rows=len(features), classes=n_classes)
            labels.flags.writeable = False
        self._store(
            features=features,
            labels=labels,
            prototypes=by_mode,
            class_names=validate_class_names(class_names, n_classes),
            logit_scale=Number(0, above=True).check("logit_scale", logit_scale),
            views=views,
            sample_names=validate_sample_names(sample_names, len(features)),
            extra=validate_extra({} if extra is None else extra, len(features)),
            provenance=validate_provenance({} if provenance is None else provenance),
        )
        if default_prompt is None:
            default_prompt = "ensemble" if "ensemble" in by_mode else next(iter(by_mode))
        self._store(default_prompt=self._known_prompt("default_prompt", default_prompt))

    def _store(self, **fields: Any) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)  # the dataclass is frozen for everyone else

    @property
    def n_samples(self) -> int:
        return int(self.features.shape[0])

    @property
    def n_classes(self) -> int:
        return len(self.class_names)

    @property
    def dimension(self) -> int:
        return int(self.features.shape[1])

    @property
    def n_views(self) -> int:
        """Views per image, including the unchanged image; 0 where the set has none."""
        return 0 if self.views is None else int(self.views.shape[1])

    @property
    def prompts(self) -> tuple[str, ...]:
        """The prompt modes, sorted by name."""
        return tuple(self.prototypes)

    def prototypes_for(self, prompt: str | None = None) -> np.ndarray:
        """The (K, d) prototypes of a prompt mode, by default `default_prompt`."""
        return self.prototypes[self.default_prompt if prompt is None else self._known_prompt("prompt", prompt)]

    def prompts_of_each_class(self) -> np.ndarray:
        """The prototypes of all P prompt modes, (K, P, d), for methods that weight several prompts of a class."""
        return np.stack(list(self.prototypes.values()), axis=1)

    def _known_prompt(self, argument: str, prompt: str) -> str:
        if isinstance(prompt, str) and prompt in self.prototypes:
            return prompt
        modes = ", ".join(repr(mode) for mode in self.prototypes)
        if not isinstance(prompt, str):
            raise TypeError(
                f"{argument} must be the name of one of the set's prompt modes, {modes}; got {type(prompt).__name__}. "
                f"Fix: {argument}={next(iter(self.prototypes))!r}."
            )
        guess = did_you_mean(prompt, self.prototypes)
        raise ValueError(f"{argument} must be one of the set's prompt modes, {modes}; got {prompt!r}. {guess}".rstrip())

    def zero_shot_accuracy(self, prompt: str | None = None) -> float:
        """Fraction of samples that the zero-shot classifier gets right: the baseline of every method on this set."""
        prototypes = self.prototypes_for(prompt)
        if self.labels is None:
            raise ValueError(
                "zero_shot_accuracy needs labels, and this set has none. Fix: pass labels= when making it."
            )
        right = 0
        for rows in blocks(self.n_samples, max(self.n_classes, self.dimension)):
            predicted = pseudo_class(logits(np.asarray(self.features[rows]), prototypes, self.logit_scale))
            right += int(np.count_nonzero(predicted == self.labels[rows]))
        return right / self.n_samples

    def hints(self, prompt: str | None = None) -> list[str]:
        """Sentences about likely mistakes in a well-formed set, judged with the prototypes of a prompt mode."""
        # With 3 classes or fewer, three times chance is 100% or more: there would always be a hint.
        if self.labels is None or self.n_classes <= 3:
            return []
        chance = 1 / self.n_classes
        # With few classes, good classifiers may not reach three times chance.
        threshold, description = min(
            (3 / self.n_classes, "three times chance"), (chance + 0.2, "twenty points above chance")
        )
        accuracy = self.zero_shot_accuracy(prompt)
        if accuracy >= threshold:
            return []
        return [
            f"zero-shot accuracy {accuracy:.1%} is below {description} "
            f"({threshold:.1%} for {self.n_classes} classes): check the label order"
        ]

    def subset(self, indices: Array | Sequence[int] | slice) -> FeatureSet:
        """The samples at `indices` (integers in any order, a boolean mask or a slice); all other fields are unchanged.

        A slice shares memory with this set; integers and masks copy the rows they choose.
        """
        rows = indices if isinstance(indices, slice) else validate_indices(indices, self.n_samples)
        chosen = copy.copy(self)  # rows of a validated set need no second validation
        chosen._store(
            features=read_only(self.features[rows]),
            labels=None if self.labels is None else read_only(self.labels[rows]),
            views=None if self.views is None else read_only(self.views[rows]),
            sample_names=self._names_at(rows),
            extra={name: read_only(array[rows]) for name, array in self.extra.items()},
        )
        if chosen.n_samples == 0:
            raise ValueError(f"indices chooses none of the {self.n_samples} samples; a set needs at least one.")
        return chosen

    def _names_at(self, rows: slice | np.ndarray) -> tuple[str, ...] | None:
        if self.sample_names is None:
            return None
        return self.sample_names[rows] if isinstance(rows, slice) else tuple(self.sample_names[i] for i in rows)

    def with_extra(
        self, name: str, features: Array | FeatureSet, provenance: Mapping[str, Any] | None = None
    ) -> FeatureSet:
        """This set with features of the same images from another encoder, called `name`; this set is not changed.

        Parameters
        ----------
        features : (N, d2) unit rows in the order of this set; or another `FeatureSet` of the same images in the same
            order, whose features are taken. It must have as many samples, and the same labels and names of samples
            where both sets have them.
        provenance : where the features come from; by default the provenance of the other set. Stored under
            `provenance["extra"][name]`.

        Examples
        --------
        >>> pets = FeatureSet(np.eye(2), prototypes=np.eye(2), labels=[0, 1])
        >>> both = pets.with_extra("second", np.eye(2, 3))
        >>> both.extra["second"].shape, both.summary()["extra"], pets.extra
        ((2, 3), {'second': 3}, {})
        """
        validate_extra_name(name)
        if name in self.extra:
            raise ValueError(
                f"the set already has extra features called {name!r}. Fix: another name, such as {name + '-2'!r}."
            )
        if isinstance(features, FeatureSet):
            check_same_images(self, features, name)
            provenance = features.provenance if provenance is None else provenance
            features = features.features
        combined = copy.copy(self)
        combined._store(extra=dict(sorted({**self.extra, **validate_extra({name: features}, self.n_samples)}.items())))
        if provenance:
            described = {**self.provenance.get("extra", {}), name: dict(validate_provenance(provenance))}
            combined._store(provenance={**self.provenance, "extra": described})
        return combined

    def summary(self) -> dict[str, Any]:
        """A JSON-serialisable description of the set, with its zero-shot accuracy (None without labels)."""
        return {
            "n_samples": self.n_samples,
            "n_classes": self.n_classes,
            "dimension": self.dimension,
            "n_views": self.n_views,
            "extra": {name: int(rows.shape[1]) for name, rows in self.extra.items()},
            "dtype": str(self.features.dtype),
            "labelled": self.labels is not None,
            "class_names": list(self.class_names),
            "prompts": list(self.prompts),
            "default_prompt": self.default_prompt,
            "logit_scale": self.logit_scale,
            "zero_shot_accuracy": None if self.labels is None else self.zero_shot_accuracy(),
            "provenance": copy.deepcopy(self.provenance),
        }

    def __repr__(self) -> str:
        prompts = ", ".join(
            f"{mode} (default)" if mode == self.default_prompt and len(self.prompts) > 1 else mode
            for mode in self.prompts
        )
        parts = [
            f"{self.n_samples} samples",
            f"{self.n_classes} classes",
            f"d={self.dimension}",
            str(self.features.dtype),
            *([f"{self.n_views} views"] if self.n_views else []),
            *([f"extra: {', '.join(self.extra)}"] if self.extra else []),
            "unlabelled" if self.labels is None else "labelled",
            f"prompts: {prompts}",
            f"logit_scale={self.logit_scale:g}",
        ]
        return f"FeatureSet({', '.join(parts)})"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the set as one .safetensors file: atomically, and with the same bytes for the same content."""
        # Features that equal view 0 are not stored twice; `load` takes them from the views.
        repeated = self.views is not None and same_values(self.features, self.views[:, 0])
        write_feature_file(
            path,
            features=None if repeated else self.features,
            views=self.views,
            labels=self.labels,
            sample_names=self.sample_names,
            prototypes=self.prototypes,
            extra=self.extra,
            class_names=self.class_names,
            logit_scale=self.logit_scale,
            default_prompt=self.default_prompt,
            provenance=self.provenance,
        )

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        prototypes: str | os.PathLike[str] | None = None,
        labels: str | os.PathLike[str] | None = None,
        class_names: str | os.PathLike[str] | Sequence[str] | None = None,
        logit_scale: float | None = None,
        extra: Mapping[str, str | os.PathLike[str]] | None = None,
        features_key: str | None = None,
        prototypes_key: str | None = None,
        labels_key: str | None = None,
        normalize: bool = False,
        check: bool = True,
    ) -> FeatureSet:
        """Read a set from one of four kinds of file, distinguished by the suffix.

        - `.safetensors`: what `save` wrote.
        - `.npz`: `features` (N, d) or `view_features` (N, V, d); `prototypes` or one `prototypes_<mode>` per prompt
          mode; where known, `labels`, `class_names`, `logit_scale`, one `extra_features_<name>` (N, d2) per other
          encoder, and `meta` (the provenance, a JSON object).
        - `.npy`: only the features, memory-mapped.
        - `.pt`, `.pth`: a tensor, which is the features, or a dictionary as in an .npz file, written by `torch.save`.
          Needs torch 2.10 or newer.

        What a file does not contain is passed as an argument: `prototypes` and `labels` as paths of .npy or .pt files,
        `class_names` as a list or the path of a text file with one name per line, `logit_scale` as a number, `extra` as
        paths of .npy or .pt files by name.

        If the arrays of an .npz or .pt file have other names, `features_key`, `prototypes_key` and `labels_key` say
        which they are. With these, safetensors files of other programs are read, too. A key of what another file
        contains (`prototypes`, `labels`) is the name of an array in that file.

        With `normalize`, the rows of features, prototypes, views and extra features are scaled to unit length; float64
        stays float64, narrower types become float32. The scaled rows are a copy in memory, also for a
        memory-mapped .npy file.

        With `check`, each of `hints()` becomes a warning. Object arrays and pickled objects are refused: reading one
        can execute code.

        >>> import tempfile
        >>> pets = FeatureSet(np.eye(2), prototypes=np.eye(2), class_names=["cat", "dog"])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     pets.save(f"{folder}/pets.safetensors")
        ...     FeatureSet.load(f"{folder}/pets.safetensors").class_names
        ('cat', 'dog')
        """
        path = checked_path(path)
        fields = read_feature_file(
            path,
            prototypes=prototypes,
            labels=labels,
            class_names=class_names,
            logit_scale=logit_scale,
            extra=extra,
            features_key=features_key,
            prototypes_key=prototypes_key,
            labels_key=labels_key,
        )
        try:
            loaded = cls(**(normalize_fields(fields) if normalize else fields))
        except (TypeError, ValueError) as error:
            raise FileFormatError(f"{path}: {error}") from error
        for hint in loaded.hints() if check else ():
            warnings.warn(f"{path}: {hint}", UserWarning, stacklevel=2)
        return loaded

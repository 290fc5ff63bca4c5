"""What `zeroshift classify` says of each image, as a file: its label, and what zero-shot alone would have said."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from zeroshift.arrays import Array, to_numpy
from zeroshift.evaluate import Comparison
from zeroshift.files import atomic_path
from zeroshift.report.columns import TABLE_WRITERS, ByName, Column, check_suffix

__all__ = ["check_classifications_format", "checked_files", "checked_reject", "write_classifications"]


def check_classifications_format(path: str | os.PathLike[str]) -> None:
    """Refuse a file name `write_classifications` could not write to, before anything has been computed.

    >>> check_classifications_format("predictions.csv")
    """
    check_suffix(path, list(TABLE_WRITERS))


def write_classifications(path: str | os.PathLike[str], comparison: Comparison, reject: Array) -> None:
    """Write a row for each image as .csv or .parquet, by the suffix of `path`; whole or not at all.

    The columns are `file`, `label`, `probability`, `zero_shot_label`, `zero_shot_probability`, `reject_score` and,
    where known, `true_label`. CSV holds six significant digits, parquet all.

    Parameters
    ----------
    path : where to; a file of that name is replaced.
    comparison : zero-shot first and the method last, on a set with `sample_names`.
    reject : (N,) scores, the higher the less an image is like any of the classes.

    Examples
    --------
    >>> import tempfile
    >>> from zeroshift import FeatureSet, OnlineADAPT, ZeroShot
    >>> from zeroshift.evaluate import compare
    >>> pets = FeatureSet(np.eye(2), prototypes=np.eye(2), class_names=["cat", "dog"], sample_names=["a.jpg", "b.jpg"])
    >>> comparison = compare(pets, [ZeroShot(np.eye(2)), OnlineADAPT(np.eye(2))])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_classifications(Path(folder) / "p.csv", comparison, np.array([0.25, 0.5]))
    ...     print((Path(folder) / "p.csv").read_text())
    file,label,probability,zero_shot_label,zero_shot_probability,reject_score
    a.jpg,cat,1,cat,1,0.25
    b.jpg,dog,1,dog,1,0.5
    """
    check_classifications_format(path)
    columns = _columns(comparison, reject)
    with atomic_path(path) as temporary:
        TABLE_WRITERS[Path(path).suffix](temporary, columns)


def _columns(comparison: Comparison, reject: Array) -> dict[str, Column]:
    adapted, zero_shot = comparison.results[-1], comparison.baseline
    names, labels = comparison.features.class_names, comparison.features.labels
    columns: dict[str, Column] = {
        "file": checked_files(comparison),
        "label": ByName(adapted.predictions, names),
        "probability": adapted.run.probabilities.max(axis=1),
        "zero_shot_label": ByName(zero_shot.predictions, names),
        "zero_shot_probability": zero_shot.run.probabilities.max(axis=1),
        "reject_score": checked_reject(comparison, reject),
    }
    if labels is not None:
        columns["true_label"] = ByName(labels, names)
    return columns


def checked_files(comparison: Comparison) -> tuple[str, ...]:
    """The names of the images; refused where the set has none."""
    names = comparison.features.sample_names
    if names is None:
        raise ValueError(
            "comparison must be of a set whose images have names, and its sample_names is None. "
            "Fix: FeatureSet(..., sample_names=[one name an image])."
        )
    return names


def checked_reject(comparison: Comparison, reject: Array) -> np.ndarray:
    """The reject scores as an array; refused where they are not one finite number an image."""
    scores, n_samples = to_numpy(reject), comparison.features.n_samples
    if scores.shape != (n_samples,) or scores.dtype.kind != "f":
        raise ValueError(
            f"reject must be a vector of {n_samples} floating-point scores, one for each image; "
            f"got shape {scores.shape} of {scores.dtype}. Fix: score every image of the set, in its order."
        )
    faulty = ~np.isfinite(scores)
    if faulty.any():
        at = int(np.argmax(faulty))
        raise ValueError(f"reject must be finite; got {scores[at]} for image {at}. Fix: look at that image's feature.")
    return scores

"""Images in one .npy file, labels in another or in memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from zeroshift.data.image_set import ImageSet
from zeroshift.data.images import ImageArrays

__all__ = ["read_array"]


def read_array(
    path: str | os.PathLike[str],
    labels: str | os.PathLike[str] | Sequence[int] | np.ndarray | None = None,
    classes: Sequence[str] | None = None,
) -> ImageSet:
    """The images of an .npy file of type uint8: (N, H, W, 3), (N, H, W, 1) or (N, H, W).

    Parameters
    ----------
    path : the file. It is mapped, not loaded.
    labels : class indices, or an .npy file with them; `classes` says what they mean.
    classes : names of the classes.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as top:
    ...     np.save(os.path.join(top, "digits.npy"), np.zeros((3, 8, 8), np.uint8))
    ...     digits = read_array(os.path.join(top, "digits.npy"), labels=[1, 0, 1], classes=("zero", "one"))
    >>> digits
    ImageSet('digits', 3 images, 2 classes, labelled)
    """
    images = ImageArrays(Path(path))
    if len(images) == 0:
        raise ValueError(f"{path} holds no images (0 rows). Fix: write the file again.")
    if isinstance(labels, (str, os.PathLike)):
        labels = _loaded(Path(labels))
    return ImageSet(
        name=images.file.stem,
        images=images,
        class_names=None if classes is None else tuple(classes),
        labels=None if labels is None else np.asarray(labels),
        provenance={"source": "array", "images": len(images)},
    )


def _loaded(path: Path) -> np.ndarray:
    try:
        loaded = np.load(path, allow_pickle=False)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"no file of labels at {path}. Fix: check the path.") from error
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(
            f"{path} is not a readable .npy file of labels ({error}). Fix: np.save(path, labels), class indices."
        ) from error
    if not isinstance(loaded, np.ndarray):
        raise ValueError(f"{path} is an .npz archive, not one array. Fix: np.save(path, labels), class indices.")
    return loaded

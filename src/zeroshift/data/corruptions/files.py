"""Corrupted copies of image files in the layout of ImageNet-C: <out>/<kind>/<severity>/<path of the image>.png.

Copies are PNG, which is lossless, and are written atomically: the same call resumes an interrupted run.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from zeroshift._version import __version__
from zeroshift.data.corruptions.corruption import Corruption
from zeroshift.data.images import ImageError, ImageFiles
from zeroshift.data.readers import read_folder
from zeroshift.files import atomic_path
from zeroshift.parsers import read_json
from zeroshift.workers import Workers

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["RECORD_FILE", "CorruptedCopies", "SkippedImage", "corrupt_files", "prepare_folder"]


RECORD_FILE = "corruption.json"
"""File next to the copies with `Corruption.describe()` and the version of zeroshift, so that copies never mix."""

FIX = "Fix: write to another folder, or replace the copies with --force (force=True)."


def prepare_folder(folder: Path, corruption: Corruption, names: Sequence[str], *, force: bool) -> None:
    """Create `folder` for copies called `names`; refuse it if it contains copies of another corruption.

    With `force`, existing copies are deleted and their record is replaced.
    """
    record = folder / RECORD_FILE
    if force:
        # Before the new record is written: it must never describe copies made with another seed.
        for name in names:
            if os.path.lexists(folder / name):
                (folder / name).unlink()
    elif record.exists():
        if not _matches_record(record, corruption):
            raise FileExistsError(f"{folder} contains copies made with another seed or other constants. {FIX}")
        return
    elif folder.exists():
        present = next((folder / name for name in names if os.path.exists(folder / name)), None)
        if present is not None:
            raise FileExistsError(f"{present} exists, and no {RECORD_FILE} describes it. {FIX}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(
            f"the folder {folder} cannot be created ({error.strerror or error}). Fix: write to another folder."
        ) from error
    with atomic_path(record) as temporary:
        content = {"zeroshift": __version__, **corruption.describe()}
        temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _matches_record(path: Path, corruption: Corruption) -> bool:
    try:
        record = read_json(path)
    except ValueError:
        return False
    # The version of zeroshift does not matter.
    return (
        isinstance(record, dict) and {key: record[key] for key in record if key != "zeroshift"} == corruption.describe()
    )


Advance = Callable[[int, str], None]
"""Called with the number of images done since the last call, and the name of the last image."""


class SkippedImage(NamedTuple):
    """An image that could not be used."""

    name: str
    reason: str
    """A sentence that begins with the name."""


class _CopyResult(NamedTuple):
    """Result for one image: copies written now, copies that existed, and why it was skipped."""

    name: str
    written: int = 0
    present: int = 0
    reason: str | None = None


@dataclass(frozen=True)
class CorruptedCopies:
    """Result of `corrupt_files`."""

    n_images: int
    written: int
    """Copies written now."""
    present: int
    """Copies that existed before."""
    failures: tuple[SkippedImage, ...]
    folders: tuple[Path, ...]
    """One per corruption."""


def corrupt_files(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    corruptions: Sequence[Corruption],
    *,
    workers: int = 0,
    force: bool = False,
    strict: bool = False,
    progress: Callable[[int], AbstractContextManager[Advance]] = lambda total: nullcontext(lambda images, name: None),
) -> CorruptedCopies:
    """Write a corrupted copy of every image, for each of `corruptions`.

    Images keep their size and are rotated as their EXIF orientation says. The constants are for images with side
    `Corruption.made_for`: to reproduce ImageNet-C, first resize images to 256 and crop them to 224; to reproduce
    CIFAR-10-C, use CIFAR-10's images and `made_for=32`. Existing copies are kept, even if an image has changed since.

    Parameters
    ----------
    source
        A folder of images, or one image.
    out
        A folder outside `source`; created if missing.
    workers
        Worker processes; 0 runs in this process.
    force
        Delete existing copies and write all again.
    strict
        Raise for the first image that cannot be used, instead of skipping it.
    progress
        Called with the number of images; returns a context manager for an `Advance`.

    Next to the copies of each corruption, `corruption.json` describes it.
    """
    source, out = Path(source), Path(out)
    images = _open_source(source)
    names = _copy_names(images)
    folders = [out / corruption.kind / str(corruption.severity) for corruption in corruptions]
    _check_separate(source, out, folders)
    for corruption, folder in zip(corruptions, folders, strict=True):
        prepare_folder(folder, corruption, names, force=force)
    copier = _Copier(tuple(corruptions), tuple(folders), strict)
    tasks = [(images.take([i]), name) for i, name in enumerate(names)]
    results = []
    with progress(len(tasks)) as advance, Workers(copier, workers, doing="corrupts images") as corrupters:
        for result in corrupters.map(tasks):
            results.append(result)
            advance(1, result.name)
    return CorruptedCopies(
        n_images=len(images),
        written=sum(result.written for result in results),
        present=sum(result.present for result in results),
        failures=tuple(SkippedImage(result.name, result.reason) for result in results if result.reason is not None),
        folders=tuple(folders),
    )


@dataclass(frozen=True)
class _Copier:
    """Writes all copies of one image, decoding it once. Runs in worker processes."""

    corruptions: tuple[Corruption, ...]
    folders: tuple[Path, ...]
    strict: bool

    def __call__(self, task: tuple[ImageFiles, str]) -> _CopyResult:
        images, copy_name = task
        name = images.name(0)
        missing = [
            (corruption, folder / copy_name)
            for corruption, folder in zip(self.corruptions, self.folders, strict=True)
            if not os.path.exists(folder / copy_name)
        ]
        present = len(self.folders) - len(missing)
        if not missing:
            return _CopyResult(name, present=present)
        written = 0
        try:
            image = images.open(0).image
            for corruption, target in missing:
                _write_copy(target, corruption(image))
                written += 1
        except (
            ValueError,
            _NameTooLongError,
        ) as error:  # unreadable (the message has the name) or too small (it has not)
            reason = str(error) if isinstance(error, ImageError) else f"{name}: {error}"
            if self.strict:
                raise ValueError(reason) from error
            return _CopyResult(name, written, present, reason)
        return _CopyResult(name, written, present)


class _NameTooLongError(OSError):
    """The name of one copy is too long; other copies can be written."""


def _write_copy(target: Path, image: Image) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(target) as temporary:
            image.save(temporary, "PNG")
    except OSError as error:
        cause = error.__cause__ if error.errno is None and isinstance(error.__cause__, OSError) else error
        if cause.errno == errno.ENAMETOOLONG:
            raise _NameTooLongError(
                f"its copy {target} cannot be written ({cause.strerror}). Fix: shorten its name, or that of out."
            ) from error
        raise OSError(
            f"{target} cannot be written ({cause.strerror or cause}). Fix: check the folder's permissions and the "
            "space left on the disk; written copies are kept, and the same call resumes."
        ) from error


def _open_source(source: Path) -> ImageFiles:
    if source.is_file():
        return ImageFiles(source.parent, (source.name,), upright=True, transparency="white")
    if not source.exists():
        raise FileNotFoundError(f"no such file or folder: {source}. Fix: pass a folder of images, or one image.")
    images = read_folder(source, labelled=False).images
    assert isinstance(images, ImageFiles)
    return images


def _copy_names(images: ImageFiles) -> list[str]:
    """The path of each copy relative to its folder; raises if two images would share one."""
    taken: dict[str, str] = {}
    for name in images.names:
        copy_name = str(PurePosixPath(name).with_suffix(".png"))
        if copy_name in taken:
            raise ValueError(
                f"{taken[copy_name]} and {name} would both be written as {copy_name}. Fix: rename one of them."
            )
        taken[copy_name] = name
    return list(taken)


def _check_separate(source: Path, out: Path, folders: Sequence[Path]) -> None:
    """Refuse to write copies among the images: the next run would corrupt them again, or replace an image."""
    images = Path(os.path.realpath(source))
    if source.is_dir() and Path(os.path.realpath(out)).is_relative_to(images):
        raise ValueError(f"out must be outside the images, {source}; got {out}. Fix: pass a folder next to them.")
    for folder in folders:
        if images.is_relative_to(os.path.realpath(folder)):
            raise ValueError(f"{source} is in {folder}, where copies are written. Fix: pass another folder as out.")

"""Corrupted copies of image files, laid out as ImageNet-C is: <out>/<kind>/<severity>/<path of the image>.png.

PNG, because it loses nothing. A copy is whole or not there, so a run that was stopped is gone on with by the same call.
"""

from __future__ import annotations

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
from zeroshift.workers import Workers

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["RECORD", "Copies", "Failure", "begin", "corrupt_files"]


# A record beside corrupted copies that says what was done to them, so that copies of two kinds never mix.


RECORD = "corruption.json"
"""Holds what `Corruption.describe` says, and the version of zeroshift."""

FIX = "Fix: name another folder to write to, or replace the copies with --force (force=True)."


def begin(folder: Path, corruption: Corruption, names: Sequence[str], *, force: bool) -> None:
    """Make `folder` ready for copies called `names`; refuse it where it holds copies that are not of this corruption.

    With `force` the copies that are there are deleted, and their record replaced.
    """
    record = folder / RECORD
    if force:
        # Before the new record is written: copies made with another seed must never lie beside it.
        for name in names:
            (folder / name).unlink(missing_ok=True)
    elif record.exists():
        if not _says(record, corruption):
            raise FileExistsError(f"{folder} holds copies made with another seed or other constants. {FIX}")
        return
    elif folder.exists():
        present = next((folder / name for name in names if (folder / name).exists()), None)
        if present is not None:
            raise FileExistsError(f"{present} exists, and no {RECORD} says what it is. {FIX}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(
            f"the folder {folder} cannot be made ({error.strerror or error}). Fix: name another folder to write to."
        ) from error
    with atomic_path(record) as temporary:
        said = {"zeroshift": __version__, **corruption.describe()}
        temporary.write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")


def _says(record: Path, corruption: Corruption) -> bool:
    try:
        said = json.loads(record.read_text(encoding="utf-8"))
    except ValueError:
        return False
    # Whichever version wrote it.
    return isinstance(said, dict) and {key: said[key] for key in said if key != "zeroshift"} == corruption.describe()


Advance = Callable[[int, str], None]
"""(images done since the last call, the name of the last)."""


class Failure(NamedTuple):
    """An image that was left out."""

    name: str
    why: str
    """A sentence that begins with the name."""


class Copied(NamedTuple):
    """What became of one image: copies written now, copies that were there, and why there are none."""

    name: str
    written: int = 0
    present: int = 0
    why: str | None = None


@dataclass(frozen=True)
class Copies:
    """What `corrupt_files` did."""

    n_images: int
    written: int
    """Copies made now."""
    present: int
    """Copies that were there before."""
    failures: tuple[Failure, ...]
    folders: tuple[Path, ...]
    """One for each corruption."""


def corrupt_files(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    corruptions: Sequence[Corruption],
    *,
    workers: int = 0,
    force: bool = False,
    strict: bool = False,
    progress: Callable[[int], AbstractContextManager[Advance]] = lambda total: nullcontext(lambda images, name: None),
) -> Copies:
    """Write a corrupted copy of every image, for each of `corruptions`.

    Images are taken at their own size, upright as their EXIF orientation says. The constants are made for images of
    `Corruption.made_for` pixels a side: to repeat ImageNet-C, give images resized to 256 and cropped to 224 first; to
    repeat CIFAR-10-C, CIFAR-10's own and `made_for=32`. Copies that are there are kept; an image that changed since is
    not noticed.

    Parameters
    ----------
    source
        A folder of images, or one image.
    out
        A folder outside `source`, made where it is missing.
    workers
        Processes that share the work; 0 does it in this one.
    force
        Delete the copies that are there, and make all of them anew.
    strict
        Stop at the first image that cannot be used, instead of leaving it out.
    progress
        Given the number of images, a context whose value is called after each with 1 and the image's name.

    Beside the copies of each corruption lies `corruption.json`, which says what was done.
    """
    source, out = Path(source), Path(out)
    images = _images(source)
    names = _copy_names(images)
    folders = [out / corruption.kind / str(corruption.severity) for corruption in corruptions]
    _check_apart(source, out, folders)
    for corruption, folder in zip(corruptions, folders, strict=True):
        begin(folder, corruption, names, force=force)
    copier = _Copier(tuple(corruptions), tuple(folders), strict)
    tasks = [(images.take([i]), name) for i, name in enumerate(names)]
    done = []
    with progress(len(tasks)) as advance, Workers(copier, workers, doing="corrupts images") as corrupters:
        for copied in corrupters.map(tasks):
            done.append(copied)
            advance(1, copied.name)
    return Copies(
        n_images=len(images),
        written=sum(copied.written for copied in done),
        present=sum(copied.present for copied in done),
        failures=tuple(Failure(copied.name, copied.why) for copied in done if copied.why is not None),
        folders=tuple(folders),
    )


@dataclass(frozen=True)
class _Copier:
    """Makes all copies of one image, so that it is decoded once. Sent to worker processes."""

    corruptions: tuple[Corruption, ...]
    folders: tuple[Path, ...]
    strict: bool

    def __call__(self, task: tuple[ImageFiles, str]) -> Copied:
        images, copy_name = task
        name = images.name(0)
        missing = [
            (corruption, folder / copy_name)
            for corruption, folder in zip(self.corruptions, self.folders, strict=True)
            if not (folder / copy_name).exists()
        ]
        present = len(self.folders) - len(missing)
        if not missing:
            return Copied(name, present=present)
        written = 0
        try:
            image = images.open(0).image
            for corruption, target in missing:
                _write(target, corruption(image))
                written += 1
        except ValueError as error:  # unreadable (it names itself) or too small (it does not)
            why = str(error) if isinstance(error, ImageError) else f"{name}: {error}"
            if self.strict:
                raise ValueError(why) from error
            return Copied(name, written, present, why)
        return Copied(name, written, present)


def _write(target: Path, image: Image) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(target) as temporary:
            image.save(temporary, "PNG")
    except OSError as error:
        raise OSError(
            f"{target} cannot be written ({error.strerror or error}). Fix: check the folder's permissions and the "
            "space left on the disk; what is written is kept, so the same call goes on."
        ) from error


def _images(source: Path) -> ImageFiles:
    if source.is_file():
        return ImageFiles(source.parent, (source.name,), upright=True)
    if not source.exists():
        raise FileNotFoundError(f"nothing lies at {source}. Fix: name a folder of images, or one image.")
    images = read_folder(source, labelled=False).images
    assert isinstance(images, ImageFiles)
    return images


def _copy_names(images: ImageFiles) -> list[str]:
    """Where below a folder each copy goes; refused where two images would share one."""
    taken: dict[str, str] = {}
    for name in images.names:
        copy_name = str(PurePosixPath(name).with_suffix(".png"))
        if copy_name in taken:
            raise ValueError(
                f"{taken[copy_name]} and {name} would both be written as {copy_name}. Fix: rename one of them."
            )
        taken[copy_name] = name
    return list(taken)


def _check_apart(source: Path, out: Path, folders: Sequence[Path]) -> None:
    """Copies among the images would be corrupted again by the next run, and might replace one of them."""
    if source.is_dir() and out.resolve().is_relative_to(source.resolve()):
        raise ValueError(f"out must lie outside the images, {source}; got {out}. Fix: name a folder beside them.")
    for folder in folders:
        if source.resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"{source} lies in {folder}, where copies are written. Fix: name another folder as out.")

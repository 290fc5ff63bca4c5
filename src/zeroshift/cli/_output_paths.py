"""Checks of what a command needs at its end, before anything is computed: an hour's work must not end in a refused file
name or a missing package, nor be overwritten by another command that writes to the same file.

A command replaces a file only with `--force`. Without it, it continues its own records, and replaces its own pages
unless a page would then show less.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from zeroshift.files import check_writable
from zeroshift.installation import install_command
from zeroshift.interrupts import Watch, postpone, resume
from zeroshift.report.formatting import file_size

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

PAGE_SUFFIXES = (".html", ".htm")

__all__ = ["check_output_files", "check_outputs", "check_packages", "check_space", "claim", "release_claims"]


def check_outputs(
    *,
    files: Iterable[Path] = (),
    pages: Iterable[Path] = (),
    folders: Iterable[Path] = (),
    inputs: Iterable[Path] = (),
    force: bool = False,
    packages: Iterable[tuple[str, str]] = (),
) -> None:
    """Refuse what a command could not write at its end; until it ends, no other command writes there.

    Parameters
    ----------
    files : files to write; with `force`, one that exists may be replaced.
    pages : pages to write; one that zeroshift wrote may be replaced. Folders are made for them.
    folders : folders to write to; they are made, and deleted at the end if nothing was written.
    inputs : files that are read.
    packages : modules that will be imported, each with the extra that installs it.
    """
    from zeroshift.report.page import check_page

    check_packages(*packages)
    for folder in folders:
        _check_folder(folder, folder / "any.json")
    for page in pages:
        check_page(page)
        _check_folder(page.parent, page)
        claim(page)
    check_output_files(files, inputs=inputs, force=force)


def check_packages(*needed: tuple[str, str]) -> None:
    """Refuse to start if a module is missing; `needed` has modules, each with the extra that installs it."""
    for module, extra in needed:
        if importlib.util.find_spec(module) is None:
            raise ImportError(f"{module} is needed and not installed. Fix: {install_command(extra)}.")


def check_space(output: Path, size: int) -> None:
    """Refuse an output of about `size` bytes for which its disk has no room."""
    folder = next(path for path in (output, *output.absolute().parents) if path.is_dir())
    free = shutil.disk_usage(folder).free
    if size > free:
        raise OSError(
            f"{output} needs about {file_size(size)}, and its disk has {file_size(free)} left. "
            "Fix: make room, or write to another disk."
        )


def check_output_files(outputs: Iterable[Path], *, inputs: Iterable[Path], force: bool) -> None:
    """Refuse an output that cannot be written, that is also an input, that is named twice, that another command is
    writing or, unless `force`, that exists."""
    # `Path.resolve` raises a RuntimeError for a link to itself; an output of that kind is refused below.
    read = {os.path.realpath(path) for path in inputs}
    used: set[str] = set()
    for output in outputs:
        if not os.path.isdir(output.parent):
            raise FileNotFoundError(f"the folder {output.parent} does not exist. Fix: create it, or write elsewhere.")
        if os.path.isdir(output):
            raise ValueError(f"{output} is a folder; the name of a file is needed. Fix: {output / 'predictions.csv'}.")
        check_writable(output)
        target = os.path.realpath(output)
        if target in read:
            raise ValueError(f"{output} is also an input and would be overwritten. Fix: write to another file.")
        if target in used:
            raise ValueError(f"{output} is named for two outputs. Fix: give each output its own file.")
        claim(output)
        if os.path.exists(output) and not force:
            raise FileExistsError(f"{output} exists. Fix: pass --force to replace it, or write to another file.")
        used.add(target)


_MADE: list[Path] = []
"""Folders that were made and may still be empty, the outermost first."""


def _check_folder(folder: Path, file: Path) -> None:
    """Create `folder` if it is missing; refuse a file of that name, and a folder where `file` cannot be written."""
    if folder.suffix.lower() in PAGE_SUFFIXES and not os.path.exists(folder):
        raise ValueError(
            f"{folder} is the name of a page; the name of a folder is needed. Fix: {folder.with_suffix('')}."
        )
    try:
        is_file = folder.exists() and not folder.is_dir()
        if not is_file:
            _MADE.extend(path for path in reversed((folder, *folder.parents)) if not os.path.exists(path))
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(
            f"the folder {folder} cannot be created ({error.strerror or error}). Fix: name another folder."
        ) from error
    if is_file:
        raise FileExistsError(f"{folder} is a file, not a folder. Fix: name another folder.")
    check_writable(file)


class _Claim(NamedTuple):
    lock: Path
    handle: int
    created: tuple[Path, ...]
    """Folders that did not exist before, the innermost first."""


_CLAIMS: dict[Path, _Claim] = {}
"""By the file that is claimed."""


def claim(output: Path) -> None:
    """Refuse an output that another command is writing; until `release_claims`, other commands refuse it.

    A claim is a locked file next to the output, `.NAME.lock`. The operating system unlocks it when the process ends, so
    one that is left behind by a killed process claims nothing.
    """
    target = Path(os.path.realpath(output))
    if target in _CLAIMS or fcntl is None:
        return
    with Watch():
        postpone()  # a signal between the creation of the lock and its entry in `_CLAIMS` would leave it behind
        try:
            _CLAIMS[target] = _lock(output, target)
        finally:
            resume()


def _lock(output: Path, target: Path) -> _Claim:
    assert fcntl is not None
    created = tuple(folder for folder in target.parents if not folder.exists())
    target.parent.mkdir(parents=True, exist_ok=True)
    lock = target.with_name(_lock_name(target.name))
    while True:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        try:
            if stat.S_ISREG(os.fstat(handle).st_mode):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise FileExistsError(
                f"{output} is being written by another zeroshift command. Fix: wait for it, or write to another file."
            ) from None
        except OSError:
            pass  # a file system without locks
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), os.lstat(lock)):
                break
        os.close(handle)  # the other command has ended meanwhile and deleted its lock
    return _Claim(lock, handle, created)


LONGEST_IN_LOCK = 80
"""Longer names are abbreviated in the name of the lock: it must not be too long where the name itself is not."""


def _lock_name(name: str) -> str:
    content = os.fsencode(name)
    if len(content) > LONGEST_IN_LOCK:
        name = f"{content[:LONGEST_IN_LOCK].decode('utf-8', 'ignore')}.{hashlib.sha256(content).hexdigest()[:16]}"
    return f".{name}.lock"


def release_claims() -> None:
    """End all claims of this process, and delete folders that were made for them and are still empty."""
    with Watch():
        postpone()
        try:
            while _CLAIMS:
                _, made = _CLAIMS.popitem()
                with suppress(OSError):
                    made.lock.unlink()  # while it is locked, so that nobody can hold the lock of a deleted file
                os.close(made.handle)
                for folder in made.created:
                    with suppress(OSError):
                        folder.rmdir()
            while _MADE:
                with suppress(OSError):
                    _MADE.pop().rmdir()
        finally:
            resume()

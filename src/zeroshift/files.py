"""Files that are written completely or not at all, temporary folders, and the checksum of JSON content."""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = [
    "CHECKSUM_LETTERS",
    "FileFormatError",
    "TemporaryFolder",
    "atomic_path",
    "check_writable",
    "checked_path",
    "has_valid_checksum",
    "output_target",
    "with_checksum",
]


class FileFormatError(ValueError):
    """A file that cannot be used: damaged, truncated, of another kind, or from a newer version. It names the file."""


@contextmanager
def atomic_path(path: str | os.PathLike[str], *, mode: int | None = None) -> Iterator[Path]:
    """A temporary path next to `path`: renamed to `path` when the block succeeds, deleted when it fails.

    The file gets the permissions `mode`, or those of the file it replaces, or the default ones. An error of the disk,
    such as no space left, names `path`; a file that was there before is kept.
    """
    target = output_target(path)
    with _temporary_file(target) as temporary, _errors_name(path, target, temporary):
        if mode is None and os.path.exists(target):
            mode = target.stat().st_mode
        # Nobody else may read the temporary file of a private one. Some writers create private files: see below.
        made = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else 0o600)
        if mode is None:
            mode = os.fstat(made).st_mode
        os.close(made)
        yield temporary
        with open(temporary, "rb+") as handle:
            os.fsync(handle.fileno())
        temporary.chmod(mode & 0o7777)
        os.replace(temporary, target)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise the error that `atomic_path` would raise: a read-only file or folder, a name too long, a device."""
    target = output_target(path)
    with _temporary_file(target) as temporary, _errors_name(path, target, temporary), open(temporary, "xb"):
        pass


def checked_path(path: str | os.PathLike[str]) -> Path:
    """The argument `path` as a Path; an error that names it if it is no path, or an empty one."""
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else path
    if not isinstance(text, str):
        raise TypeError(f"path must be a string or a Path; got {type(path).__name__}. Fix: such as 'file.safetensors'.")
    if not text or "\0" in text:
        raise ValueError(f"path must be the name of a file; got {text!r}. Fix: such as 'file.safetensors'.")
    return Path(text)


def output_target(path: str | os.PathLike[str]) -> Path:
    """The file that `path` leads to, with links followed: that is replaced, not the link. An error if it cannot be."""
    target = Path(os.path.realpath(checked_path(path)))
    if os.path.isdir(target):
        raise IsADirectoryError(f"{path} is a folder; a file name is needed. Fix: add one, such as {target / 'file'}.")
    if os.path.exists(target) and not os.path.isfile(target):
        raise FileExistsError(
            f"{path} is a device, pipe or socket, which cannot be replaced by a file. Fix: write to a file."
        )
    if os.path.exists(target) and not os.access(target, os.W_OK):
        raise PermissionError(f"{path} is read-only. Fix: make it writable, or write to another file.")
    if not os.path.isdir(target.parent):
        raise FileNotFoundError(
            f"the folder {target.parent} does not exist, so {target.name} cannot be written. Fix: create it first."
        )
    return target


MOST_NAME_BYTES = 255
"""Longest name of a file on common file systems."""

_TEMPORARY: set[Path] = set()
"""Temporary files of this process that are not yet renamed or deleted."""


@contextmanager
def _temporary_file(target: Path) -> Iterator[Path]:
    """A free name next to `target`, deleted at the end if it exists."""
    suffix = f".{secrets.token_hex(6)}.tmp"
    name = os.fsencode(target.name)[: MOST_NAME_BYTES - len(suffix) - 1].decode("utf-8", "ignore")
    temporary = target.with_name(f".{name}{suffix}")
    _TEMPORARY.add(temporary)
    try:
        yield temporary
    finally:
        with suppress(OSError):  # a folder that may not be entered: the error to report is that of the writer
            temporary.unlink(missing_ok=True)
            _TEMPORARY.discard(temporary)


@atexit.register
def _delete_temporary_files() -> None:
    """Delete what a second Ctrl-C kept `_temporary_file` from deleting."""
    for temporary in _TEMPORARY:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_TEMPORARY.clear)  # another thread of the parent may be writing them


@contextmanager
def _errors_name(path: str | os.PathLike[str], target: Path, temporary: Path) -> Iterator[None]:
    """Errors of the file system about the temporary file, or about no file, are about `path`."""
    try:
        with suppress(FileNotFoundError):
            os.lstat(target)  # the temporary name may be shorter than a name that is too long
        yield
    except OSError as error:
        if error.filename is not None and str(error.filename) not in (str(temporary), str(target)):
            raise
        kept = "; the file that was there is kept" if os.path.exists(target) else ""
        raise type(error)(
            f"{path} cannot be written ({error.strerror or error}){kept}. "
            "Fix: check the space left on the disk, the permissions of the folder and the length of the name."
        ) from error


OURS, LOCK = "zeroshift-", ".lock"
"""How the names of temporary folders begin, and the file in each that its process keeps locked."""


class TemporaryFolder(tempfile.TemporaryDirectory[str]):
    """A folder that is deleted at the end, or by the next process that makes one if its own is killed.

    A process keeps a file in its folder locked. The operating system unlocks it when the process ends.
    """

    def __init__(self) -> None:
        _delete_abandoned_folders()
        super().__init__(prefix=OURS)
        self._lock = None if fcntl is None else _lock_folder(self.name)

    def cleanup(self) -> None:
        super().cleanup()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _lock_folder(folder: str) -> int | None:
    """A locked file, which gets its name when it is locked; None where files cannot be locked."""
    assert fcntl is not None
    new = os.path.join(folder, ".new")
    handle = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(new, os.path.join(folder, LOCK))
    except OSError:
        os.close(handle)
        return None
    return handle


def _delete_abandoned_folders() -> None:
    """Delete the temporary folders of this user whose processes have ended. Links are never followed."""
    if fcntl is None:
        return
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(OURS) and entry.is_dir(follow_symlinks=False):
                with suppress(OSError):
                    _delete_if_abandoned(entry.path)


def _delete_if_abandoned(folder: str) -> None:
    """OSError if the folder has no lock, or somebody holds it."""
    assert fcntl is not None
    handle = os.open(os.path.join(folder, LOCK), os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        own = os.lstat(folder).st_uid == os.fstat(handle).st_uid == os.getuid()
        if own and stat.S_ISREG(os.fstat(handle).st_mode):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
    finally:
        os.close(handle)


CHECKSUM_LETTERS = 32
"""Length of a checksum: a SHA-256, shortened. It detects damage and careless edits, not forgery."""


def with_checksum(content: Mapping[str, Any]) -> dict[str, Any]:
    """JSON content with a field `checksum` of everything else in it.

    >>> has_valid_checksum(with_checksum({"accuracy": 0.5}))
    True
    >>> has_valid_checksum({**with_checksum({"accuracy": 0.5}), "accuracy": 0.9})
    False
    """
    rest = {name: value for name, value in content.items() if name != "checksum"}
    text = json.dumps(rest, sort_keys=True)
    return {**rest, "checksum": hashlib.sha256(text.encode()).hexdigest()[:CHECKSUM_LETTERS]}


def has_valid_checksum(content: Mapping[str, Any]) -> bool:
    return with_checksum(content)["checksum"] == content.get("checksum")

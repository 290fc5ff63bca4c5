"""Folders of this machine and of fsspec URLs (`s3://...`) alike."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zeroshift.files import atomic_path
from zeroshift.installation import install_command
from zeroshift.parsers import check_regular_file

__all__ = ["Folder", "file_system", "import_optional", "is_url", "open_file"]


OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss"}
"""Protocols of file systems where a file appears when all of it is there."""


def is_url(path: str) -> bool:
    return "://" in path


def import_optional(module: str, extra: str) -> Any:
    try:
        __import__(module)
    except ImportError as error:
        raise ImportError(f"{module} is not installed. Fix: {install_command(extra)}.") from error
    return sys.modules[module]


def file_system(path: str) -> Any:
    """The file system of a URL."""
    return _open_address(path)[0]


def _open_address(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it, as fsspec finds them."""
    core = import_optional("fsspec", "distributed").core
    try:
        system, path = core.url_to_fs(url)
    except ImportError as error:  # fsspec knows the protocol, and its package is missing
        raise ImportError(f"{url} needs another package ({error}). Fix: install it.") from error
    except Exception as error:  # whatever a file system raises for an address that it cannot use
        raise ValueError(
            f"{url} is no address that can be opened ({error}). Allowed: a folder of this machine, or an address of "
            "fsspec with all that its file system needs. Fix: such as s3://bucket/folder, gs://bucket/folder or "
            "file:///folder."
        ) from error
    return system, path


def _locate(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it. A cache (`simplecache::s3://...`) is left out: it may give back
    what was in a file before."""
    system, path = _open_address(url)
    cache = import_optional("fsspec.implementations.cached", "distributed").CachingFileSystem
    return (system.fs if isinstance(system, cache) else system), path


def open_file(path: str) -> Any:
    """A file, to read bytes from. A device, pipe or socket, which may never end, is refused."""
    if is_url(path):
        return file_system(path).open(path, "rb")
    check_regular_file(path)
    return open(path, "rb")


@dataclass(frozen=True)
class Folder:
    """A folder to read from and to write to. Where a file system renames in one step, and in an object store, a file is
    there as a whole or not at all.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as path:
    ...     folder = Folder(path) / "part"
    ...     folder.write("a.txt", b"1")
    ...     folder.names(), folder.read("a.txt"), folder.read("b.txt")
    (['a.txt'], b'1', None)
    """

    path: str

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> Folder:
        """The folder at a path, absolute, so that processes that started elsewhere find it."""
        path = os.fspath(path)
        return cls(path if is_url(path) else os.path.abspath(path))

    def __truediv__(self, name: str) -> Folder:
        return Folder(f"{self.path.rstrip('/')}/{name}")

    def __str__(self) -> str:
        return self.path

    def names(self) -> list[str]:
        """The names in the folder, sorted; none if it does not exist."""
        if not is_url(self.path):
            return sorted(os.listdir(self.path)) if os.path.isdir(self.path) else []
        system, path = _locate(self.path)
        system.invalidate_cache()  # other processes may have written meanwhile
        with suppress(FileNotFoundError):
            return sorted(str(one).rstrip("/").rsplit("/", 1)[-1] for one in system.ls(path, detail=False))
        return []

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if there is none."""
        try:
            if not is_url(self.path):
                with open_file(os.path.join(self.path, name)) as handle:
                    return bytes(handle.read())
            system, path = _locate(f"{self.path}/{name}")
            return bytes(system.cat_file(path))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, name: str, content: bytes) -> None:
        if is_url(self.path):
            system, folder = _locate(self.path)
            system.makedirs(folder, exist_ok=True)
            _write_whole(system, folder.rstrip("/"), name, content)
            return
        try:
            os.makedirs(self.path, exist_ok=True)
        except OSError as error:
            raise type(error)(
                f"the folder {self.path} cannot be made ({error.strerror}). Fix: another output folder, or "
                "permission to write there."
            ) from error
        with atomic_path(Path(self.path, name)) as temporary:
            temporary.write_bytes(content)

    def remove(self, name: str) -> None:
        if is_url(self.path):
            system, path = _locate(f"{self.path}/{name}")
            system.rm_file(path)
        else:
            os.unlink(Path(self.path, name))

    def remove_all(self) -> None:
        """Remove the folder with its content, if it exists."""
        if not is_url(self.path):
            shutil.rmtree(self.path, ignore_errors=True)
            return
        system, path = _locate(self.path)
        with suppress(FileNotFoundError):
            system.rm(path, recursive=True)


def _write_whole(system: Any, folder: str, name: str, content: bytes) -> None:
    """Write a file under another name, then rename it; on object stores, uploads are whole by themselves."""
    path = f"{folder}/{name}"
    protocols = {system.protocol} if isinstance(system.protocol, str) else set(system.protocol)
    if protocols & OBJECT_STORES:
        system.pipe_file(path, content)
        return
    temporary = f"{folder}/.{name}.{secrets.token_hex(6)}.tmp"
    try:
        system.pipe_file(temporary, content)
        if system.exists(path):  # not every file system renames to a name that is taken
            with suppress(FileNotFoundError):  # another worker did the same
                system.rm_file(path)
        system.mv(temporary, path)
    except BaseException:
        with suppress(Exception):
            system.rm_file(temporary)
        raise

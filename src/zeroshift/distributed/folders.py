"""Folders of this machine and of fsspec URLs (`s3://...`) alike."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zeroshift.files import atomic_path

__all__ = ["Folder", "file_system", "import_optional", "is_url", "open_file"]


def is_url(path: str) -> bool:
    return "://" in path


def import_optional(module: str, extra: str) -> Any:
    try:
        __import__(module)
    except ImportError as error:
        raise ImportError(f"{module} is not installed. Fix: pip install 'zeroshift[{extra}]'.") from error
    return sys.modules[module]


def file_system(path: str) -> Any:
    """The file system of a URL."""
    return import_optional("fsspec", "distributed").core.url_to_fs(path)[0]


def open_file(path: str) -> Any:
    """A file, to read bytes from."""
    return file_system(path).open(path, "rb") if is_url(path) else open(path, "rb")


@dataclass(frozen=True)
class Folder:
    """A folder to read from and to write to. A file is there as a whole or not at all.

    >>> import tempfile
    >>> folder = Folder(tempfile.mkdtemp()) / "part"
    >>> folder.write("a.txt", b"1")
    >>> folder.names(), folder.read("a.txt"), folder.read("b.txt")
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
        system = file_system(self.path)
        system.invalidate_cache()  # other processes may have written meanwhile
        with suppress(FileNotFoundError):
            return sorted(str(one).rstrip("/").rsplit("/", 1)[-1] for one in system.ls(self.path, detail=False))
        return []

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if there is none."""
        try:
            with open_file(f"{self.path}/{name}") as handle:
                return bytes(handle.read())
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        path = f"{self.path}/{name}"
        if is_url(path):
            system = file_system(path)
            system.makedirs(self.path, exist_ok=True)
            system.pipe_file(path, content)
            return
        os.makedirs(self.path, exist_ok=True)
        with atomic_path(Path(path)) as temporary:
            temporary.write_bytes(content)

    def remove(self, name: str) -> None:
        path = f"{self.path}/{name}"
        if is_url(path):
            file_system(path).rm_file(path)
        else:
            os.unlink(path)

    def remove_all(self) -> None:
        """Remove the folder with its content, if it exists."""
        if not is_url(self.path):
            shutil.rmtree(self.path, ignore_errors=True)
            return
        with suppress(FileNotFoundError):
            file_system(self.path).rm(self.path, recursive=True)

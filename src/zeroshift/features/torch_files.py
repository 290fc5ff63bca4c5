"""Arrays from files of `torch.save` (.pt, .pth), without executing code that the file contains."""

from __future__ import annotations

import importlib
import os
import re
import warnings
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from zeroshift.arrays import is_array, to_numpy
from zeroshift.files import FileFormatError
from zeroshift.installation import install_command
from zeroshift.parsers import COPY_AGAIN, check_inflated, check_regular_file

__all__ = ["TORCH_SUFFIXES", "read_torch"]

TORCH_SUFFIXES = (".pt", ".pth")

SAFE_VERSION = (2, 10)
"""First version of torch whose `weights_only` has no known flaw by which a file could execute code."""


def read_torch(path: str | os.PathLike[str]) -> Any:
    """The content of a file of `torch.save`: an array, or a dictionary with arrays, text and numbers by name.

    Tensors become NumPy arrays. Other entries of a dictionary are as they were saved.
    """
    size = check_regular_file(path).st_size
    torch = _safe_torch(path)
    _check_archive(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about files that are refused
            content = torch.load(path, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # of many kinds, for a damaged file
        refused = re.search(r"GLOBAL ([\w.]+)", str(error))
        if refused is not None:
            raise FileFormatError(
                f"{path} contains {_name_of(refused[1])}; only tensors, text and numbers are read, because reading "
                "other objects can execute code. Fix: torch.save({'features': torch.as_tensor(features)}, path)."
            ) from error
        reason = re.split(r"[\n.]", str(error))[0] or type(error).__name__
        raise FileFormatError(f"{path} cannot be read as a file of torch.save ({reason}). {COPY_AGAIN}") from error
    if is_array(content):
        return _array(content, size, path)
    if isinstance(content, Mapping):
        found = {str(name): value for name, value in content.items()}
        return {
            name: _array(value, size, f"{path}: {name}") if is_array(value) else value for name, value in found.items()
        }
    raise FileFormatError(
        f"{path} contains {type(content).__name__}; a tensor or a dictionary of tensors is needed. "
        "Fix: torch.save(torch.stack(rows), path), or torch.save({'features': features}, path)."
    )


def _name_of(refused: str) -> str:
    return "a NumPy array" if refused.startswith("numpy.") else f"an object of {refused}"


def _check_archive(path: str | os.PathLike[str]) -> None:
    """Compare the checksums of the archive that torch.save writes, which torch itself does not; files of torch before
    1.6 are no archives and have none."""
    if not zipfile.is_zipfile(path):
        return
    try:
        with zipfile.ZipFile(path) as archive:
            if any(info.compress_type != zipfile.ZIP_STORED for info in archive.infolist()):
                raise zipfile.BadZipFile("its members are compressed")
            damaged = archive.testzip()
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, OSError) as error:
        raise FileFormatError(f"{path} cannot be read as a file of torch.save ({error}). {COPY_AGAIN}") from error
    if damaged is not None:
        raise FileFormatError(f"{path} is damaged: {damaged} does not have its checksum. {COPY_AGAIN}")


def _safe_torch(path: str | os.PathLike[str]) -> Any:
    try:
        torch = importlib.import_module("torch")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{path} is a file of torch.save, and torch is not installed. Fix: {install_command('torch')}, or save "
            "the features as .npy (numpy.save) or .npz (numpy.savez)."
        ) from error
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < SAFE_VERSION:
        raise ValueError(
            f"{path} is not read with torch {torch.__version__}: a file could execute code (CVE-2025-32434, "
            "CVE-2026-24747). Fix: pip install 'torch>=2.10', or save the features as .npy or .npz."
        )
    return torch


def _array(tensor: Any, size: int, source: object) -> np.ndarray:
    """The values of a tensor. One that repeats few stored numbers must not need much more memory than its file."""
    if str(tensor.layout) != "torch.strided" or tensor.is_quantized or tensor.is_nested or tensor.is_meta:
        kind = "quantized" if tensor.is_quantized else "sparse, nested or meta"
        raise FileFormatError(f"{source} is a {kind} tensor. Fix: save tensor.to_dense(), or tensor.dequantize().")
    check_inflated(source, tensor.numel() * tensor.element_size(), size)
    return to_numpy(tensor)

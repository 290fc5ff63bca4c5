"""Where an ALBEF checkpoint lies, and what is in the file."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from zeroshift.files import FileFormatError

if TYPE_CHECKING:
    import torch

__all__ = ["WHERE_FROM", "find_checkpoint", "read_state"]

SUFFIXES = (".pth", ".pt")

WHERE_FROM = "https://storage.googleapis.com/sfr-pcl-data-research/ALBEF/ALBEF.pth"
"""Where the authors keep the model pre-trained on 14 million images; ALBEF_4M, flickr30k and mscoco lie beside it."""


def find_checkpoint(source: str) -> Path:
    """The checkpoint that `source` means: the file itself, or the only one in a folder."""
    given = Path(source)
    if given.is_file():
        return given
    if not given.is_dir():
        raise FileNotFoundError(
            f"no ALBEF checkpoint at {source}. Fix: download one, such as {WHERE_FROM}, and give its path."
        )
    found = sorted(path for path in given.iterdir() if path.suffix in SUFFIXES)
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise FileNotFoundError(
            f"{source} must hold one checkpoint ({' or '.join(SUFFIXES)}); it holds {names}. Fix: name the file itself."
        )
    return found[0]


def read_state(path: Path) -> dict[str, torch.Tensor]:
    """The state dictionary, without running code that a file may bring along."""
    import torch

    try:
        # Mapped where the format allows it: momentum copies and an optimizer's state then stay on the disk.
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        raise FileFormatError(
            f"{path} is not a torch checkpoint, or holds more than tensors and numbers. Fix: copy it again if it may "
            "be damaged; if you trust where it is from, save the weights alone: "
            "torch.save({'model': torch.load(path, weights_only=False)['model']}, new_path)."
        ) from error
    except (OSError, MemoryError):
        raise
    except Exception as error:
        # Over damaged bytes torch fails with whatever comes first: KeyError, IndexError, AssertionError, ...
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise FileFormatError(f"{path} cannot be read as a torch checkpoint ({reason}). Fix: copy it again.") from error
    tensors = content.get("model") if isinstance(content, dict) else None
    if not isinstance(tensors, dict):
        kept = f"keys {', '.join(map(str, list(content)[:5]))}" if isinstance(content, dict) else type(content).__name__
        raise FileFormatError(
            f"{path} must hold a dictionary with the key 'model'; it holds {kept}. Fix: give a checkpoint as ALBEF "
            "wrote it, or save the state dictionary as {'model': state}."
        )
    return {str(name): value for name, value in tensors.items() if isinstance(value, torch.Tensor)}

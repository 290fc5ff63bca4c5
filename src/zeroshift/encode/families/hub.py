"""Getting a model: from the hub, from what was downloaded before, or from a folder; and saying why when it fails."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from urllib.parse import urlsplit

from zeroshift.encode.batches import out_of_memory

__all__ = ["from_hub", "loading"]

ENDPOINT = "https://huggingface.co"


def from_hub(source: str, revision: str | None) -> dict[str, object]:
    """Arguments of every `from_pretrained`. Where the hub's name cannot be resolved, only local files are looked for:
    else half a minute of attempts would pass before anyone is told."""
    arguments: dict[str, object] = {"revision": revision}
    if not Path(source).is_dir() and not _resolved(os.environ.get("HF_ENDPOINT") or ENDPOINT):
        arguments["local_files_only"] = True
    return arguments


def _resolved(endpoint: str) -> bool:
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True  # names are then resolved by the proxy, not here
    try:
        socket.getaddrinfo(urlsplit(endpoint).hostname, 443)
    except OSError:
        return False
    return True


@contextmanager
def loading(source: str, revision: str | None) -> Iterator[None]:
    """Turns what transformers and the hub raise over a model that cannot be had into one error with the fix."""
    from safetensors import SafetensorError
    from transformers.utils import logging

    # Its bars and advice (about a torchvision that is not needed here) would run through ours.
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError, UnpicklingError) as error:
        if out_of_memory(error):
            raise
        raise _cannot_load(source, revision, error) from error
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _cannot_load(source: str, revision: str | None, error: BaseException) -> Exception:
    what = source if revision is None else f"{source} at revision {revision}"
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    if isinstance(error, ImportError):
        return ImportError(f"{what} needs a package that is not installed ({first}). Fix: install it.")
    if Path(source).exists():
        return ValueError(
            f"{what} is not a whole model folder ({first}). Fix: it needs config.json, the weights, and the files of "
            "tokenizer and image processor, as save_pretrained writes them."
        )
    return OSError(
        f"{what} cannot be had from the hub ({first}). Fix: check the id and the network, or give the folder of a "
        "downloaded model; `--encoder composed` needs no hub."
    )

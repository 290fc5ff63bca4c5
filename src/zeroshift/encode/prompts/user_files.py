"""Text files that users write (class names, templates, descriptions), read with errors that name the file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from zeroshift.files import FileFormatError

__all__ = ["read_json", "read_lines", "read_text"]


def read_text(path: str | os.PathLike[str], what: str) -> str:
    """The text of a UTF-8 file; `what` says in errors what it was to hold, such as "templates"."""
    if not os.path.exists(path):
        raise FileNotFoundError(f"no file at {path}. Fix: check the path; a file of {what} is needed there.")
    if os.path.isdir(path):
        raise IsADirectoryError(f"{path} is a folder. Fix: name the file of {what} in it.")
    try:
        # utf-8-sig: editors on Windows put a mark at the front, which would become part of the first name.
        return Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} is not UTF-8 text ({error}). Fix: save the {what} as UTF-8.") from error


def read_lines(path: str | os.PathLike[str], what: str) -> list[str]:
    """The lines of a file without the spaces around them; blank lines at its end are no lines."""
    # Not splitlines(), which also breaks at characters that may stand inside a line, such as U+2028.
    lines = [line.strip() for line in read_text(path, what).rstrip().split("\n")]
    if lines == [""]:
        raise FileFormatError(f"{path} is empty. Fix: write the {what} into it, one a line.")
    for number, line in enumerate(lines, start=1):
        if not line:
            raise FileFormatError(
                f"{path}, line {number} is blank. Fix: remove the line; one of the {what} goes on each."
            )
    return lines


def read_json(path: str | os.PathLike[str], what: str) -> Any:
    """What a JSON file holds; a key that stands twice in an object is refused, where Python keeps the last."""

    def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise FileFormatError(f"{path} has the key {key!r} twice. Fix: merge the two, or remove one.")
            found[key] = value
        return found

    text = read_text(path, what)
    try:
        return json.loads(text, object_pairs_hook=distinct)
    except FileFormatError:
        raise
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path} is not JSON ({error}). Fix: mend it there, or copy the {what} again.") from error

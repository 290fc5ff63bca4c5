"""What the files of findings are called."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from zeroshift.experiments import Chapter
from zeroshift.experiments.parts.findings import Finding, Remark

__all__ = ["folder_for", "full_name", "named_findings"]

WORD = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def full_name(chapter: Chapter, finding: Finding) -> str:
    """The name of a finding among those of all experiments: "bank-size-sweep"."""
    return f"{chapter.experiment.name}-{getattr(finding, 'name', 'remark')}"


def named_findings(chapters: Sequence[Chapter]) -> Iterator[tuple[str, Chapter, Finding]]:
    """(full name, chapter, finding) of all that have one: no remarks. No two are called the same."""
    taken: set[str] = set()
    for chapter in chapters:
        for finding in chapter.findings:
            if isinstance(finding, Remark):
                continue
            name = full_name(chapter, finding)
            if not WORD.fullmatch(name):
                raise ValueError(
                    f"a finding is called {name!r}, by which no file can be named. "
                    "Fix: lower-case letters, digits and single hyphens only."
                )
            if name in taken:
                raise ValueError(f"two findings are called {name!r}. Fix: give one of them another name.")
            taken.add(name)
            yield name, chapter, finding


def folder_for(path: str | os.PathLike[str]) -> Path:
    """The folder, made where it does not exist."""
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{path} is a file; a folder is needed, for one file a table. Fix: name another.")
    folder.mkdir(parents=True, exist_ok=True)
    return folder

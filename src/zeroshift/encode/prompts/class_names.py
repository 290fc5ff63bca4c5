"""Class names as a user gives them: on a command line, in a file, in a list."""

from __future__ import annotations

import os
from collections.abc import Sequence

from zeroshift.encode.prompts.user_files import read_lines

__all__ = ["clean", "parse_class_names"]

LIST_FIX = "A name that has a comma in it goes into a text file, one name a line."
"""Said with every refusal of a list with commas: there, a comma cannot be part of a name."""


def clean(name: str) -> str:
    """A class name as prompts write it: underscores, which many data sets have for spaces, become spaces.

    >>> clean("baby_back_ribs")
    'baby back ribs'
    """
    return name.replace("_", " ")


def parse_class_names(given: str | os.PathLike[str] | Sequence[str]) -> tuple[str, ...]:
    """The classes to tell apart, checked: two or more, none blank, none twice.

    Parameters
    ----------
    given : names with commas between them, the path of a text file with one name a line, or a sequence of names. A
        string that is the path of an existing file is that file.

    Names that differ only in underscores for spaces are the same name twice, because they give the same prompts. The
    catalogue's own lists may repeat a name (ImageNet has two classes "missile"); they do not come through here.

    >>> parse_class_names("cat, dog,hot_dog")
    ('cat', 'dog', 'hot_dog')
    """
    if isinstance(given, os.PathLike) or (isinstance(given, str) and _is_path(given)):
        return _checked(read_lines(given, "class names"), "line", f"{given}", "")
    if isinstance(given, str):
        entries = given.split(",")
        for entry in entries:
            if entry.count('"') % 2:
                raise ValueError(
                    f"class_names has a comma inside quotation marks, near {entry.strip()!r}. Fix: {LIST_FIX}"
                )
        return _checked(entries, "name", "class_names", LIST_FIX)
    if not isinstance(given, Sequence):
        raise TypeError(
            f"class_names must be a string, a path or a sequence of strings; got {type(given).__name__}. "
            "Fix: ['cat', 'dog']."
        )
    return _checked(given, "name", "class_names", "")


def _is_path(given: str) -> bool:
    """Whether a string means a file: it is there, or it can only have been meant as one."""
    looks_like_one = "," not in given and (os.sep in given or given.strip().lower().endswith(".txt"))
    return os.path.isfile(given) or looks_like_one


def _checked(entries: Sequence[str], unit: str, where: str, hint: str) -> tuple[str, ...]:
    """`entries` without the spaces around them; `unit` and `where` say in errors what was counted, and in what."""
    first_at: dict[str, int] = {}
    names: list[str] = []

    def refused(problem: str, fix: str) -> ValueError:
        return ValueError(f"{where}{problem}. Fix: {fix}. {hint}".rstrip())

    for number, entry in enumerate(entries, start=1):
        if not isinstance(entry, str):
            raise TypeError(f"{where}, {unit} {number} must be a string; got {entry!r}. Fix: write it as text.")
        name = entry.strip()
        if not name:
            raise refused(f", {unit} {number} is blank", "remove it, and the comma if there is one")
        first = first_at.setdefault(clean(name), number)
        if first != number:
            other = names[first - 1]
            twice = f"{name!r} twice" if name == other else f"{other!r} and {name!r}, which give the same prompts"
            raise refused(f" has {twice} ({unit}s {first} and {number})", "remove one, or tell them apart")
        names.append(name)
    if len(names) < 2:
        given = f"only {names[0]!r}" if names else "no names"
        raise refused(
            f" has {given}; a classifier needs two classes or more",
            "add what else the images may show, such as cat,dog,horse, or name a text file with one class a line",
        )
    return tuple(names)

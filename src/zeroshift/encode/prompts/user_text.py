"""Class names and descriptions as users write them."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zeroshift.files import FileFormatError
from zeroshift.suggest import did_you_mean

__all__ = [
    "check_descriptions",
    "checked_sentences",
    "clean",
    "parse_class_names",
    "read_descriptions",
    "read_json",
    "read_lines",
    "read_text",
    "refuse_missing",
]


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


NAMED = 5
"""How many of the classes in question an error names; it counts the rest."""


def read_descriptions(path: str | os.PathLike[str]) -> dict[str, list[str]]:
    """The descriptions in a JSON file, by class name as the file spells it.

    A sentence that is blank is kept and warned of. `check_descriptions` compares the file with the classes in use.
    """
    content = read_json(path, "descriptions")
    if not isinstance(content, dict):
        raise FileFormatError(
            f"{path} must hold a JSON object; it holds a {type(content).__name__}. "
            'Fix: {"cat": ["It has whiskers.", ...], ...}.'
        )
    try:
        checked_sentences(content, str(path))
    except (TypeError, ValueError) as error:
        raise FileFormatError(str(error)) from error
    blank = [(name, i) for name, sentences in content.items() for i, text in enumerate(sentences) if not text.strip()]
    if blank:
        (name, i), total = blank[0], sum(map(len, content.values()))
        warnings.warn(
            f"{path} has blank sentences, {len(blank)} of {total}, the first of them {name!r}[{i}]. They are kept, as "
            "the published numbers have them: each is a prompt of the class name alone.",
            stacklevel=2,
        )
    return content


def checked_sentences(
    descriptions: Mapping[str, Sequence[str]], where: str = "descriptions"
) -> dict[str, tuple[str, ...]]:
    """A copy of `descriptions`, if they are lists of sentences by class; `where` is what errors call them."""
    if not isinstance(descriptions, Mapping):
        raise TypeError(
            f"{where} must be a mapping from class name to sentences; got {type(descriptions).__name__}. "
            "Fix: read_descriptions(path) makes one."
        )
    if not descriptions:
        raise ValueError(f"{where} has no classes. Fix: one key for each class, with its sentences in a list.")
    for name, sentences in descriptions.items():
        if not isinstance(name, str):
            raise TypeError(f"{where} must be keyed by class names; got the key {name!r}. Fix: write it as text.")
        if isinstance(sentences, str) or not isinstance(sentences, Sequence):
            raise TypeError(
                f'{where}: {name!r} must have a list of sentences; got {sentences!r:.60}. Fix: ["...", "..."].'
            )
        for i, sentence in enumerate(sentences):
            if not isinstance(sentence, str):
                raise TypeError(
                    f"{where}: {name!r}[{i}] must be a string; got {sentence!r:.60}. Fix: write it as text."
                )
        if not any(sentence.strip() for sentence in sentences):
            raise ValueError(f"{where}: {name!r} has no sentence. Fix: write one or more, or remove the class.")
    return {name: tuple(sentences) for name, sentences in descriptions.items()}


def check_descriptions(
    descriptions: Mapping[str, Sequence[str]],
    class_names: Sequence[str],
    path: str | os.PathLike[str] = "descriptions",
) -> None:
    """Refuse descriptions that lack a class; warn of those of classes not in use. `path` is what messages call them.

    >>> check_descriptions({"hot_dog": ["It lies in a bun."]}, ["hot_dog"])
    """
    refuse_missing(descriptions, class_names, path)
    extra = descriptions.keys() - set(class_names)
    if extra:
        warnings.warn(
            f"{path} has {len(extra)} of its {len(descriptions)} classes not in use, such as {min(extra)!r}. "
            "That is right where a data set has a part of the classes (ImageNet-A), and a slip otherwise.",
            stacklevel=2,
        )


def refuse_missing(
    descriptions: Mapping[str, Sequence[str]],
    class_names: Sequence[str],
    path: str | os.PathLike[str] = "descriptions",
) -> None:
    """Refuse descriptions that lack a class; keys are class names to the character, underscores and case included."""
    wanted = dict.fromkeys(class_names)
    missing = [name for name in wanted if name not in descriptions]
    if not missing:
        return
    spelled = {clean(key).casefold(): key for key in descriptions}
    respelled = [(name, spelled[clean(name).casefold()]) for name in missing if clean(name).casefold() in spelled]
    if respelled:
        name, key = respelled[0]
        hint = f"{len(respelled)} of them only by underscores or case: for {name!r}, did you mean {key!r}? "
    else:
        hint = did_you_mean(missing[0], descriptions)
    named = ", ".join(map(repr, missing[:NAMED])) + (", ..." if len(missing) > NAMED else "")
    raise ValueError(
        f"{path} lacks {len(missing)} of {len(wanted)} classes: {named}. {hint}"
        "Fix: spell its keys exactly as the class names, or take a prompt mode without descriptions."
    )

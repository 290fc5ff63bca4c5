"""Text that users provide: class names and class descriptions, as arguments and as files.

Descriptions are sentences of language models, in a JSON file {class name: [sentence, ...]}. They are not changed: some
published sentences end in a space, and some are blank, which gives a warning, but published results include them.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from zeroshift import parsers
from zeroshift.files import FileFormatError
from zeroshift.suggest import did_you_mean, first_few, name_key

__all__ = [
    "check_described",
    "check_descriptions",
    "clean_name",
    "parse_class_names",
    "read_descriptions",
    "read_json",
    "read_lines",
    "read_text",
    "validate_descriptions",
    "without_blanks",
]


def read_text(path: str | os.PathLike[str], what: str) -> str:
    """The text of a UTF-8 file; `what` is its expected content in errors, such as "templates"."""
    try:
        return parsers.read_text(path, pipes=True)
    except FileNotFoundError:
        raise FileNotFoundError(f"no file at {path}. Fix: check the path of the file of {what}.") from None
    except IsADirectoryError:
        raise IsADirectoryError(f"{path} is a folder. Fix: pass the file of {what} in it.") from None


def read_lines(path: str | os.PathLike[str], what: str) -> list[str]:
    """The stripped lines of a file. Blank lines are skipped: with a warning, if they are not at its end."""
    # Not splitlines(), which also splits at characters such as U+2028.
    lines = [line.strip() for line in read_text(path, what).rstrip().split("\n")]
    if lines == [""]:
        raise FileFormatError(f"{path} is empty. Fix: write the {what} into it, one per line.")
    if "" in lines:
        warnings.warn(f"{path}, line {lines.index('') + 1} is blank and skipped", stacklevel=2)
    return list(filter(None, lines))


def read_json(path: str | os.PathLike[str], what: str) -> Any:
    """The content of a JSON file. Repeated keys of an object are refused, where Python would use the last."""
    return parsers.parse_json(read_text(path, what), path)


LIST_FIX = "Names that contain a comma can be given in a text file, one name per line."
"""Added to errors about comma-separated lists, in which a name cannot contain a comma."""


def clean_name(name: str) -> str:
    """A class name as written in prompts: underscores become spaces.

    >>> clean_name("baby_back_ribs")
    'baby back ribs'
    """
    return name.replace("_", " ")


def parse_class_names(given: str | os.PathLike[str] | Sequence[str], argument: str = "class_names") -> tuple[str, ...]:
    """Parse and check class names: at least two, none blank, none repeated.

    Parameters
    ----------
    given : names separated by commas, the path of a text file with one name per line, or a sequence of names. A string
        that is the path of an existing file is read as a file.
    argument : what the user calls it, for messages.

    Names that differ only in case, underscores and spaces count as repeated. Blank lines of a file, and names that are
    blank because of a comma too many, are skipped with a warning. The lists of the catalogue, which may repeat a name
    (ImageNet has two classes "missile"), are not parsed by this function.

    >>> parse_class_names("cat, dog,hot_dog")
    ('cat', 'dog', 'hot_dog')
    """
    if isinstance(given, os.PathLike) or (isinstance(given, str) and _is_path(given)):
        lines = read_lines(given, "class names")
        _refuse_tables(given, lines)
        return _validate_names(lines, "name", f"{given}", "")
    if isinstance(given, str):
        entries = given.split(",")
        for entry in entries:
            if entry.count('"') % 2:
                raise ValueError(
                    f"{argument} has a comma inside quotation marks, near {entry.strip()!r}. Fix: {LIST_FIX}"
                )
        return _validate_names(without_blanks(entries, argument), "name", argument, LIST_FIX)
    if not isinstance(given, Sequence):
        raise TypeError(
            f"{argument} must be a string, a path or a sequence of strings; got {type(given).__name__}. "
            "Fix: ['cat', 'dog']."
        )
    return _validate_names(given, "name", argument, "")


def without_blanks(entries: Sequence[str], argument: str) -> list[str]:
    """The entries of a list with commas that are not blank; with a warning if there are others."""
    named = [entry.strip() for entry in entries if entry.strip()]
    if named and len(named) < len(entries):
        warnings.warn(f"{argument} has a comma too many: a blank name is skipped", stacklevel=3)
    return named or list(entries)


TABLE_MARKS = {".csv": ",;", ".tsv": "\t", ".json": "[{"}
"""By suffix, characters of files that have more than a name on each line."""


def _refuse_tables(path: str | os.PathLike[str], lines: Sequence[str]) -> None:
    """Refuse a table, whose rows would be taken for names."""
    marks = TABLE_MARKS.get(os.path.splitext(path)[1].lower(), "")
    if row := next((line for line in lines if set(line) & set(marks)), None):
        raise FileFormatError(
            f"{path} has more than a name on each line, such as {row[:40]!r}. Fix: a .txt file with one name per line."
        )


def _is_path(given: str) -> bool:
    """Whether a string is a path: the file exists, or the string looks like a path."""
    looks_like_path = "," not in given and (os.sep in given or given.strip().lower().endswith(".txt"))
    return os.path.isfile(given) or looks_like_path


def _validate_names(entries: Sequence[str], unit: str, where: str, hint: str) -> tuple[str, ...]:
    """`entries` stripped and checked; errors call them `unit` 1, 2, ... of `where`."""
    spelled: dict[str, tuple[int, str]] = {}
    names: list[str] = []

    def error(problem: str, fix: str) -> ValueError:
        return ValueError(f"{where}{problem}. Fix: {fix}. {hint}".rstrip())

    for number, entry in enumerate(entries, start=1):
        if not isinstance(entry, str):
            raise TypeError(f"{where}, {unit} {number} must be a string; got {entry!r}. Fix: write it as text.")
        name = entry.strip()
        if not name:
            raise error(f", {unit} {number} is blank", "remove it")
        first, other = spelled.setdefault(name_key(name), (number, name))
        if first != number:
            twice = f"{name!r} twice" if name == other else f"{other!r} and {name!r}, which are the same name"
            raise error(f" has {twice} ({unit}s {first} and {number})", "remove or rename one")
        names.append(name)
    if len(names) < 2:
        given = f"only {names[0]!r}" if names else "no names"
        raise error(
            f" has {given}; a classifier needs at least two classes",
            "add the other classes, such as cat,dog,horse, or pass a text file with one class per line",
        )
    return tuple(names)


MAX_NAMES_SHOWN = 5
"""Number of class names shown in an error."""


def read_descriptions(path: str | os.PathLike[str]) -> dict[str, list[str]]:
    """The descriptions in a JSON file, by class name as spelt in the file.

    Blank sentences are kept, with a warning. `check_descriptions` compares the descriptions with the classes in use.
    """
    content = read_json(path, "descriptions")
    if not isinstance(content, dict):
        raise FileFormatError(
            f"{path} must contain a JSON object; it contains a {type(content).__name__}. "
            'Fix: {"cat": ["It has whiskers.", ...], ...}.'
        )
    try:
        validate_descriptions(content, str(path))
    except (TypeError, ValueError) as error:
        raise FileFormatError(str(error)) from error
    blank = [(name, i) for name, sentences in content.items() for i, text in enumerate(sentences) if not text.strip()]
    if blank:
        (name, i), total = blank[0], sum(map(len, content.values()))
        warnings.warn(
            f"{path} has {len(blank)} blank sentences of {total}, the first is {name!r}[{i}]. They are kept, as in "
            "published results: each gives a prompt with the class name alone.",
            stacklevel=2,
        )
    return content


def validate_descriptions(
    descriptions: Mapping[str, Sequence[str]], where: str = "descriptions"
) -> dict[str, tuple[str, ...]]:
    """A checked copy of `descriptions`, lists of sentences by class; errors call them `where`."""
    if not isinstance(descriptions, Mapping):
        raise TypeError(
            f"{where} must be a mapping from class name to sentences; got {type(descriptions).__name__}. "
            "Fix: read_descriptions(path) makes one."
        )
    if not descriptions:
        raise ValueError(f"{where} has no classes. Fix: add one key per class, with a list of sentences.")
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
    """Raise for classes without descriptions, and warn about descriptions of unused classes; messages call them `path`.

    >>> check_descriptions({"hot_dog": ["It lies in a bun."]}, ["hot_dog"])
    """
    check_described(descriptions, class_names, path)
    extra = descriptions.keys() - set(class_names)
    if extra:
        warnings.warn(
            f"{len(extra)} of the {len(descriptions)} classes in {path} are not in use, such as {min(extra)!r}. "
            "This is expected if a data set has only some of the classes (ImageNet-A), and a mistake otherwise.",
            stacklevel=2,
        )


def check_described(
    descriptions: Mapping[str, Sequence[str]],
    class_names: Sequence[str],
    path: str | os.PathLike[str] = "descriptions",
) -> None:
    """Raise if a class has no descriptions; keys must equal the class names, including underscores and case."""
    wanted = dict.fromkeys(class_names)
    missing = [name for name in wanted if name not in descriptions]
    if not missing:
        return
    spelled = {name_key(key): key for key in descriptions}
    respelled = [(name, spelled[name_key(name)]) for name in missing if name_key(name) in spelled]
    if respelled:
        name, key = respelled[0]
        hint = f"{len(respelled)} of them differ only in underscores or case: for {name!r}, did you mean {key!r}? "
    else:
        hint = did_you_mean(missing[0], descriptions)
    shown = first_few([*map(repr, missing)], MAX_NAMES_SHOWN)
    raise ValueError(
        f"{path} lacks {len(missing)} of {len(wanted)} classes: {shown}. {hint}"
        "Fix: spell its keys exactly like the class names, or use a prompt mode without descriptions."
    )

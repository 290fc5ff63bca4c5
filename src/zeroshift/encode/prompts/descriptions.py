"""Descriptions of classes, as language models write them: a JSON file of {class name: [sentence, ...]}.

Sentences are kept to the character, because the published numbers were made with them as they are: some end in a space,
and the published files even have blank ones, which a reader is told of and which still count in the mean.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence

from zeroshift.encode.prompts.class_names import clean
from zeroshift.encode.prompts.user_files import read_json
from zeroshift.files import FileFormatError
from zeroshift.suggest import did_you_mean

__all__ = ["check_descriptions", "checked_sentences", "read_descriptions", "refuse_missing"]

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

"""`prompted_text`: a loaded encoder and class names as the text side that prompt-tuning methods are given."""

from __future__ import annotations

import re
from collections.abc import Sequence

from zeroshift.encode.encoder import Encoder, warn_cut
from zeroshift.encode.prompts.class_names import clean
from zeroshift.encode.prompts.templates import SLOT, fill
from zeroshift.encode.tuning.text import ContextText, find_context
from zeroshift.encode.tuning.text_sides import TextSide, text_side
from zeroshift.methods.parts.towers import PromptedText
from zeroshift.parameters import Flag, Number, Optional

__all__ = ["TEMPLATE", "WORDS", "check_class_names", "prompted_text"]

WORDS = "a photo of a"
"""What TPT, and nearly every method after it, tunes."""

TEMPLATE = "{words} {name}."
PLACES = ("{words}", "{name}")
PLACE = re.compile(r"\{[^{}]*\}")


def prompted_text(
    encoder: Encoder,
    class_names: Sequence[str],
    *,
    words: str = WORDS,
    template: str = TEMPLATE,
    chunk_size: int | None = None,
    repeated_names: bool = False,
) -> PromptedText:
    """The text side of `encoder` for these classes, with `words` of every prompt to be tuned.

    At the words as they stand its features are those of `encoder.encode_texts` for the same prompts. The encoder itself
    stays as it is, and can go on being used.

    Parameters
    ----------
    encoder : of any family; see `zeroshift.encode.load_encoder`.
    class_names : in the order of the classes. Underscores become spaces, as in all prompts.
    words : what is tuned: one embedding for each of its tokens.
    template : a prompt, with `{words}` and `{name}` once each.
    chunk_size : prompts whose activations are held at once for a gradient, by default 64, on a GPU 256; halved
        where memory does not suffice.
    repeated_names : allow a name twice. ImageNet's list has two classes "missile", which no text can tell apart.
    """
    import torch

    if not isinstance(encoder, Encoder):
        raise TypeError(
            f"encoder must be a loaded encoder; got {type(encoder).__name__}. Fix: zeroshift.encode.load_encoder(...)."
        )
    Optional(Number(1, integer=True)).check("chunk_size", chunk_size)
    repeated = bool(Flag().check("repeated_names", repeated_names))
    names = check_class_names(class_names, repeated=repeated)
    head, wording = _checked_wording(words, template)
    prompts = [fill(wording, clean(name)) for name in names]
    side = text_side(encoder, wording)
    if long := encoder.count_too_long(prompts):
        warn_cut(long, len(prompts), encoder.text_length)
    with torch.inference_mode(False):
        tokens = side.tokens(prompts)
        rows = tokens["input_ids"].tolist()
        starts, length = _place(side, rows, words, head, cut=bool(long))
        if not repeated:
            _refuse_alike(rows, names)
        return ContextText(
            side.encode,
            side.embedding,
            tokens,
            start=starts,
            words=length,
            modules=side.modules,
            chunk_size=chunk_size,
            batch_size=encoder.text_batch_size,
            identity={"encoder": encoder.key()},
        )


def check_class_names(class_names: Sequence[str], *, repeated: bool) -> tuple[str, ...]:
    """The names as they are: strings, none blank, at least one; none twice unless `repeated`."""
    if isinstance(class_names, str) or not isinstance(class_names, Sequence):
        given = f"the string {class_names!r}" if isinstance(class_names, str) else type(class_names).__name__
        raise TypeError(f"class_names must be a sequence of names, in order; got {given}. Fix: ['cat', 'dog'].")
    if not class_names:
        raise ValueError("class_names is empty; at least one class is needed. Fix: ['cat', 'dog'].")
    seen: dict[str, int] = {}
    for number, name in enumerate(class_names):
        if not isinstance(name, str):
            raise TypeError(f"class_names[{number}] must be a string; got {name!r}. Fix: str(name).")
        if not clean(name).strip():
            raise ValueError(f"class_names[{number}] is blank ({name!r}); every class needs a name. Fix: give it one.")
        first = seen.setdefault(clean(name), number)
        if first != number and not repeated:
            raise ValueError(
                f"class_names has {class_names[first]!r} and {name!r}, which make the same prompt (numbers {first} and "
                f"{number}). Fix: tell them apart, or repeated_names=True where the list is meant so."
            )
    return tuple(class_names)


def _checked_wording(words: str, template: str) -> tuple[str, str]:
    """What stands before the words, and the template with {} for the name, as in all of `encode.prompts`."""
    for given, value in (("words", words), ("template", template)):
        if not isinstance(value, str):
            raise TypeError(f"{given} must be a string; got {value!r}. Fix: words={WORDS!r}, template={TEMPLATE!r}.")
    if not words.strip() or PLACE.search(words):
        raise ValueError(
            f"words must be one word or more, without places in braces; got {words!r}. Fix: words={WORDS!r}."
        )
    if sorted(PLACE.findall(template)) != sorted(PLACES):
        raise ValueError(
            f"template must have {' and '.join(PLACES)} exactly once each, and no other places; got {template!r}. "
            f"Fix: template={TEMPLATE!r}."
        )
    head = template.split(PLACES[0])[0]
    return head, template.replace(PLACES[1], SLOT).replace(PLACES[0], words)


def _place(side: TextSide, rows: list[list[int]], words: str, head: str, *, cut: bool) -> tuple[list[int], int]:
    """Where the words begin in each prompt, as far from its own beginning as in the others; and how many they are."""
    filled = [_leading(row, side.filler) for row in rows]
    own = [row[n:] for row, n in zip(rows, filled, strict=True)]
    # Words that follow others may be other tokens than the same words at the beginning: the space belongs to them.
    before = len(side.ids(head.rstrip())) if head.strip() and PLACES[1] not in head else 0
    for tried in (words, f" {words}"):
        ids = side.ids(tried)
        start = find_context(own, ids, before) if ids else None
        if start is not None:
            return [n + start for n in filled], len(ids)
    raise ValueError(
        f"the words {words!r} do not stand at one place in all prompts, as tokens of their own. "
        + (
            "Some prompts are longer than the model reads and were cut, perhaps within the words. Fix: fewer words."
            if cut
            else "Fix: put {words} before {name} in the template, with spaces around both."
        )
    )


def _leading(row: list[int], filler: int | None) -> int:
    """How many tokens at the beginning of a row only fill it up."""
    return next((n for n, token in enumerate(row) if token != filler), len(row))


def _refuse_alike(rows: list[list[int]], names: Sequence[str]) -> None:
    first: dict[tuple[int, ...], int] = {}
    for number, row in enumerate(rows):
        other = first.setdefault(tuple(row), number)
        if other != number:
            raise ValueError(
                f"the prompts of {names[other]!r} and {names[number]!r} are the same tokens to the model: no words can "
                "tell them apart. Fix: rename one; fewer words if the prompts are cut; an encoder that knows the names."
            )

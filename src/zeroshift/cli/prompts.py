"""`zeroshift prompts`: the prompt modes; with class names, every sentence a mode makes of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from zeroshift.cli import _encoder_options as options
from zeroshift.cli._prompt_options import find_mode
from zeroshift.cli.console import console, print_json
from zeroshift.encode.prompts import (
    MODES,
    PromptMode,
    Prompts,
    check_descriptions,
    parse_class_names,
    read_descriptions,
)
from zeroshift.report.formatting import visible
from zeroshift.report.listings import prompts_table

__all__ = ["prompts"]


def prompts(
    mode: Annotated[str | None, typer.Argument(metavar="MODE", help="Show the sentences of this mode.")] = None,
    classes: options.ClassNames = None,
    template: options.Template = None,
    descriptions: options.Descriptions = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the prompt modes, or print every sentence that a mode makes of class names.

    For example: zeroshift prompts ensemble --classes cat,dog
    """
    given = {"classes": classes, "template": template, "descriptions": descriptions}
    if mode is None:
        for name, value in given.items():
            if value is not None:
                raise ValueError(f"--{name} needs a mode. Fix: zeroshift prompts ensemble --classes cat,dog.")
        _list_modes(MODES.values(), json=json)
        return
    chosen = find_mode(mode)
    for need in ("template", "descriptions"):
        if (given[need] is not None) != (need in chosen.needs):
            needs, fix = ("needs", "add it") if need in chosen.needs else ("takes no", "leave it out")
            raise ValueError(f"the mode {mode} {needs} --{need}. Fix: {fix}; see `zeroshift prompts`.")
    if classes is None:
        raise ValueError(f"--classes is missing. Fix: zeroshift prompts {mode} --classes cat,dog.")
    names = parse_class_names(classes, "--classes")
    sentences_by_class = None
    if descriptions is not None:
        sentences_by_class = read_descriptions(descriptions)
        check_descriptions(sentences_by_class, names, descriptions)
    made = Prompts.named(chosen.name, template=template, descriptions=sentences_by_class)
    sentences = dict(zip(names, made.for_classes(names), strict=True))
    if json:
        print_json({"mode": chosen.name, "hash": made.hash(names), "prompts": sentences})
        return
    for listed in sentences.values():
        for sentence in listed:
            typer.echo(visible(sentence))


def _list_modes(modes: Iterable[PromptMode], *, json: bool) -> None:
    if json:
        print_json([{"name": m.name, "title": m.title, "summary": m.summary, "needs": list(m.needs)} for m in modes])
    else:
        console().print(prompts_table(list(modes)))

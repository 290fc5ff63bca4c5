"""`zeroshift prompts`: the ways of putting class names into words; with names, the very sentences."""

from __future__ import annotations

from typing import Annotated

import typer

from zeroshift.cli import _encoder_options as options
from zeroshift.cli.console import console, print_json

__all__ = ["prompts"]


def prompts(
    mode: Annotated[str | None, typer.Argument(help="Show the sentences of this mode.")] = None,
    classes: options.ClassNames = None,
    template: options.Template = None,
    descriptions: options.Descriptions = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the prompt modes, or print every sentence that a mode makes of class names.

    For example: zeroshift prompts ensemble --classes cat,dog
    """
    from zeroshift.cli._prompt_options import asked_mode
    from zeroshift.encode.prompts import MODES, Prompts, check_descriptions, parse_class_names, read_descriptions

    given = {"classes": classes, "template": template, "descriptions": descriptions}
    if mode is None:
        for name, value in given.items():
            if value is not None:
                raise ValueError(f"--{name} goes with a mode. Fix: zeroshift prompts ensemble --classes cat,dog.")
        _list(list(MODES.values()), json=json)
        return
    chosen = asked_mode(mode)
    for need in ("template", "descriptions"):
        if (given[need] is not None) != (need in chosen.needs):
            needs, fix = ("needs", "give it") if need in chosen.needs else ("takes no", "leave it out")
            raise ValueError(f"the mode {mode} {needs} --{need}. Fix: {fix}; see `zeroshift prompts`.")
    if classes is None:
        raise ValueError(f"class names to put into words are needed. Fix: zeroshift prompts {mode} --classes cat,dog.")
    names = parse_class_names(classes)
    sentences_of = None
    if descriptions is not None:
        sentences_of = read_descriptions(descriptions)
        check_descriptions(sentences_of, names, descriptions)
    made = Prompts.named(chosen.name, template=template, descriptions=sentences_of)
    sentences = dict(zip(names, made.for_classes(names), strict=True))
    if json:
        print_json({"mode": chosen.name, "hash": made.hash(names), "prompts": sentences})
        return
    for listed in sentences.values():
        for sentence in listed:
            typer.echo(sentence)


def _list(modes: list, *, json: bool) -> None:
    if json:
        print_json([{"name": m.name, "title": m.title, "summary": m.summary, "needs": list(m.needs)} for m in modes])
        return
    from zeroshift.report.listings import prompts_table

    console().print(prompts_table(modes))

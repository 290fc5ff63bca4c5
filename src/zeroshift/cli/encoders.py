"""`zeroshift encoders`: which families of models can be used, and what is missing for them here."""

from __future__ import annotations

from typing import Annotated

import typer

from zeroshift.cli.console import console, print_json
from zeroshift.encode.registry import list_families
from zeroshift.report.listings import encoders_table

__all__ = ["encoders"]


def encoders(json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the families of encoders, how their models are named, and what each needs.

    For example: zeroshift encoders
    """
    families = list_families()
    if json:
        print_json(
            [
                {
                    "name": family.name,
                    "title": family.title,
                    "example": family.example,
                    "needs": family.needs,
                    "missing": list(family.missing),
                    "install": family.fix,
                    "note": family.note,
                    "has_text": family.has_text,
                }
                for family in families
            ]
        )
        return
    out = console()
    out.print(encoders_table(families))
    out.print(
        "--encoder takes a hub id, the folder of a downloaded model, or composed, which needs no hub. --second-encoder "
        "takes all of these, and models without text.",
        style="dim",
    )

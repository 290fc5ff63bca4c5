"""`zeroshift packs`: the feature sets that come with the library."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from zeroshift.cli.console import console, print_json
from zeroshift.data import packs as bundled_packs
from zeroshift.report.listings import packs_table

__all__ = ["packs"]


def packs(json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the bundled packs: real image features to try methods on, without a download.

    For example: zeroshift packs
    """
    listed = bundled_packs.list()
    if json:
        print_json([asdict(pack) for pack in listed])
        return
    out = console()
    out.print(packs_table(listed))
    out.print("Made with a composed dual encoder, not CLIP; their numbers are not CLIP's.", style="dim")
    out.print("Use one with: zeroshift adapt pack:NAME --out predictions.csv", style="dim")

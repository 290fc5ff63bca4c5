"""`zeroshift data check`: which data sets lie below a folder, and what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zeroshift.cli.console import console, print_json

__all__ = ["check"]

STYLES = {"complete": "green", "differs": "yellow", "incomplete": "red", "missing": "dim"}


def check(
    root: Annotated[Path, typer.Argument(metavar="ROOT", help="The folder the data sets lie below.")],
    only: Annotated[
        str | None, typer.Option(metavar="ID,...", help="Only these; see `zeroshift data list`.", show_default="all")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show which data sets lie below ROOT, where, and what is missing of them; no image is opened.

    The layouts of ADAPT, CoOp, AWT, TPT and MTA are known. Whatever is found, the exit code is 0.
    """
    from dataclasses import asdict

    from zeroshift.data.catalogue.checking import check as checked

    names = None if only is None else [name.strip() for name in only.split(",") if name.strip()]
    if names == []:
        raise ValueError(f"--only names no data set; got {only!r}. Fix: such as --only dtd,imagenet_a.")
    statuses = checked(root, only=names)
    if json:
        print_json([asdict(status) for status in statuses])
        return
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("data set", no_wrap=True, style="bold")
    table.add_column("state", no_wrap=True)
    table.add_column("found", justify="right", no_wrap=True)
    table.add_column("of", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for status in statuses:
        state = Text(status.state, style=STYLES[status.state])
        table.add_row(status.id, state, f"{status.found:,}", f"{status.expected:,}", status.unit)
    out = console()
    out.print(table)
    # Below and not in the table: a path that is broken over lines cannot be copied.
    for status in statuses:
        where = status.location or f"not in {', '.join(status.looked_in)}"
        out.print(Text.assemble((status.id, "bold"), f": {where}"), soft_wrap=True)
        for problem in status.problems if status.location else ():
            out.print(f"  {problem}", soft_wrap=True)
    whole = sum(status.state == "complete" for status in statuses)
    out.print(f"{whole} of {len(statuses)} complete below {root}", soft_wrap=True)

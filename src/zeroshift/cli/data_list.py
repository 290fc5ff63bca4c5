"""`zeroshift data list`: the data sets the catalogue knows."""

from __future__ import annotations

from typing import Annotated

import typer

from zeroshift.cli.console import console, print_json

__all__ = ["list_data_sets"]


def list_data_sets(json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the data sets that can be read from a disk by name."""
    from zeroshift.data import catalogue

    listed = catalogue.list()
    if json:
        from dataclasses import asdict

        print_json([asdict(info) for info in listed])
        return
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("id", no_wrap=True, style="bold")
    table.add_column("title", overflow="fold")
    table.add_column("classes", justify="right", no_wrap=True)
    table.add_column("test", justify="right", no_wrap=True)
    table.add_column("template", overflow="fold")
    for info in listed:
        table.add_row(info.id, info.title, str(info.n_classes), f"{info.counts['test']:,}", info.template)
    out = console()
    out.print(table)
    out.print("Of imagenet_c, test counts one corruption at one severity.", style="dim")
    out.print("zeroshift data check ROOT shows which of them lie below a folder.", style="dim")

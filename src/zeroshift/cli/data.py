"""`zeroshift data check`: which data sets lie below a folder, and what is missing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from zeroshift.cli.console import console, print_json, print_warning

__all__ = ["check", "corrupt", "list_data_sets"]


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

    from zeroshift.data.catalogue.status import check as checked

    names = None if only is None else [name.strip() for name in only.split(",") if name.strip()]
    if names == []:
        raise ValueError(f"--only names no data set; got {only!r}. Fix: such as --only dtd,imagenet_a.")
    statuses = checked(root, only=names)
    if json:
        print_json([asdict(status) for status in statuses])
        return
    from rich.text import Text

    from zeroshift.report.listings import dataset_status_table

    out = console()
    out.print(dataset_status_table(statuses))
    # Below and not in the table: a path that is broken over lines cannot be copied.
    for status in statuses:
        where = status.location or f"not in {', '.join(status.looked_in)}"
        out.print(Text.assemble((status.id, "bold"), f": {where}"), soft_wrap=True)
        for problem in status.problems if status.location else ():
            out.print(f"  {problem}", soft_wrap=True)
    whole = sum(status.state == "complete" for status in statuses)
    out.print(f"{whole} of {len(statuses)} complete below {root}", soft_wrap=True)


# `zeroshift data corrupt`: corrupted copies of images, as ImageNet-C and CIFAR-10-C have them.


ALL = "all"


def corrupt(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="A folder of images, or one image.")],
    kind: Annotated[str, typer.Option("--kind", "-k", help="One of the fifteen, or all.", show_default=False)],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder to write <kind>/<severity>/... to.", show_default=False)
    ],
    severity: Annotated[str, typer.Option("--severity", "-s", help="1 to 5, a range such as 1-3, or all.")] = "5",
    made_for: Annotated[
        int, typer.Option("--made-for", help="Severities of ImageNet-C (224) or, for small images, CIFAR-10-C (32).")
    ] = 224,
    seed: Annotated[int, typer.Option(help="Another seed, other noise.")] = 0,
    workers: Annotated[int, typer.Option(help="Processes that share the work; 0 for none but this.")] = 0,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first unusable image.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Make copies anew that exist.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar and no summary.")] = False,
) -> None:
    """Write corrupted copies of images as PNG, laid out as ImageNet-C: OUT/<kind>/<severity>/<path of the image>.

    Strengths are made for images of 224 x 224 pixels, or with --made-for 32 for such of 32 x 32, and not scaled to
    others. Frost is drawn, not photographed. Copies that exist are kept, so the same command goes on where it was
    stopped.

    For example: zeroshift data corrupt photos --kind fog --severity 1-5 --out photos-c
    """
    from zeroshift.cli.progress import progress_bar
    from zeroshift.data.corruptions import KINDS, Corruption
    from zeroshift.data.corruptions.files import corrupt_files

    kinds = KINDS if kind == ALL else (kind,)
    corruptions = [
        Corruption(name, level, seed, made_for=made_for) for name in kinds for level in _severities(severity)
    ]
    copies = corrupt_files(
        source,
        out,
        corruptions,
        workers=workers,
        force=force,
        strict=strict,
        progress=lambda total: progress_bar("corrupting", total, quiet=quiet),
    )
    for failure in copies.failures:
        print_warning(f"left out: {failure.reason}")
    if json:
        print_json(
            {
                "out": str(out),
                "corruptions": [corruption.describe() for corruption in corruptions],
                "images": copies.n_images,
                "written": copies.written,
                "present": copies.present,
                "failed": [{"name": failure.name, "why": failure.reason} for failure in copies.failures],
            }
        )
    elif not quiet:
        left_out = f", images left out: {len(copies.failures)}" if copies.failures else ""
        console().print(
            f"{copies.written} copies written, {copies.present} were there{left_out}; see {out}", soft_wrap=True
        )
    if copies.failures and not copies.written + copies.present:
        raise typer.Exit(1)


def _severities(text: str) -> list[int]:
    """ "3", "1-5" or "all" as a list."""
    from zeroshift.data.corruptions import SEVERITIES

    if text == ALL:
        return list(SEVERITIES)
    match = re.fullmatch(r"([1-5])(?:-([1-5]))?", text)
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise ValueError(f"--severity must be 1 to 5, a range such as 1-3, or all; got {text!r}. Fix: --severity 5.")
    return list(range(int(match[1]), int(match[2] or match[1]) + 1))


# `zeroshift data list`: the data sets the catalogue knows.


def list_data_sets(json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the data sets that can be read from a disk by name."""
    from zeroshift.data import catalogue

    listed = catalogue.list()
    if json:
        from dataclasses import asdict

        print_json([asdict(info) for info in listed])
        return
    from zeroshift.report.listings import datasets_table

    out = console()
    out.print(datasets_table(listed))
    out.print("Of imagenet_c, test counts one corruption at one severity.", style="dim")
    out.print("zeroshift data check ROOT shows which of them lie below a folder.", style="dim")

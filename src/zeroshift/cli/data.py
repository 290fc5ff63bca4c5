"""`zeroshift data`: the data sets the catalogue knows (`list`), which of them are on the disk (`check`), and corrupted
copies of images as in ImageNet-C and CIFAR-10-C (`corrupt`)."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from zeroshift.cli import _encoder_options as options
from zeroshift.cli._help import HelpCommand, HelpGroup
from zeroshift.cli._inputs import split_names
from zeroshift.cli._output_paths import check_outputs, claim
from zeroshift.cli.console import console, print_json, print_warning
from zeroshift.cli.progress import progress_bar
from zeroshift.data import catalogue
from zeroshift.data.catalogue.status import check as check_data_sets
from zeroshift.data.corruptions import KINDS, SEVERITIES, Corruption
from zeroshift.data.corruptions.files import corrupt_files
from zeroshift.report.listings import dataset_status_table, datasets_table

__all__ = ["check", "corrupt", "data", "list_data_sets"]

data = typer.Typer(
    name="data",
    cls=HelpGroup,
    help="Data sets: which are known, which are on the disk, corrupted copies.",
    no_args_is_help=True,
    add_completion=False,
)


@data.command("list", cls=HelpCommand)
def list_data_sets(json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the data sets that can be read from a disk by name.

    For example: zeroshift data list
    """
    listed = catalogue.list()
    if json:
        print_json([asdict(info) for info in listed])
        return
    out = console()
    out.print(datasets_table(listed))
    out.print("For imagenet_c, test is the number of images per corruption and severity.", style="dim")
    out.print("zeroshift data check FOLDER shows which of them are in a folder.", style="dim")


@data.command(cls=HelpCommand)
def check(
    root: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder that contains the data sets.")],
    only: Annotated[
        str | None,
        typer.Option(metavar="DATASET,...", help="Only these; see `zeroshift data list`.", show_default="all"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show which data sets are in a folder, where, and what is missing from them; no image is opened.

    The layouts of ADAPT, CoOp, AWT, TPT and MTA are known. The exit code is 0, whatever is found.

    For example: zeroshift data check ~/data --only dtd,eurosat
    """
    names = None if only is None else split_names(only)
    if names == []:
        raise ValueError(f"--only names no data set; got {only!r}. Fix: such as --only dtd,imagenet_a.")
    statuses = check_data_sets(root, only=names)
    if json:
        print_json([asdict(status) for status in statuses])
        return
    out = console()
    out.print(dataset_status_table(statuses))
    # Below the table: a path that is wrapped in a column cannot be copied.
    for status in statuses:
        where = status.location or f"not in {', '.join(status.looked_in)}"
        out.print(Text.assemble((status.id, "bold"), f": {where}"), soft_wrap=True)
        for problem in status.problems if status.location else ():
            out.print(f"  {problem}", soft_wrap=True)
    complete = sum(status.state == "complete" for status in statuses)
    out.print(f"{complete} of {len(statuses)} complete in {root}", soft_wrap=True)


ALL = "all"


@data.command(cls=HelpCommand)
def corrupt(
    source: Annotated[Path, typer.Argument(metavar="IMAGES", help="A folder of images, or one image.")],
    kind: Annotated[
        str,
        typer.Option(
            "--kind",
            "-k",
            "--corruption",
            metavar="KIND|all",
            help="One of ImageNet-C's fifteen corruptions, such as fog, or all of them.",
            rich_help_panel=options.IMAGE_PANEL,
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="FOLDER",
            help="Folder to write KIND/SEVERITY/... to.",
            rich_help_panel=options.OUTPUT_PANEL,
        ),
    ],
    severity: Annotated[
        str,
        typer.Option(
            "--severity",
            metavar="1-5|all",
            help="One severity, a range such as 1-3, or all.",
            rich_help_panel=options.IMAGE_PANEL,
        ),
    ] = "5",
    made_for: Annotated[
        int,
        typer.Option(
            "--made-for",
            metavar="224|32",
            help="Severities of ImageNet-C (224) or, for small images, CIFAR-10-C (32).",
            rich_help_panel=options.IMAGE_PANEL,
        ),
    ] = 224,
    seed: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, max=options.MOST_SEED, help="Seed of the noise.", rich_help_panel=options.IMAGE_PANEL
        ),
    ] = 0,
    workers: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            max=options.MOST_PROCESSES,
            help="Number of worker processes; 0 runs in this process.",
            rich_help_panel=options.RUN_PANEL,
        ),
    ] = 0,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Stop at the first unusable image.", rich_help_panel=options.RUN_PANEL),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace copies that exist.", rich_help_panel=options.OUTPUT_PANEL)
    ] = False,
    json: options.Json = False,
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="No progress bar and no summary.", rich_help_panel=options.OUTPUT_PANEL),
    ] = False,
) -> None:
    """Write corrupted copies of images as PNG, laid out as ImageNet-C: KIND/SEVERITY/ and the path of the image.

    Severities are made for images of 224 x 224 pixels, or with --made-for 32 for images of 32 x 32, and are not scaled
    to other sizes. Frost is drawn, not photographed. Copies that exist are kept, so an interrupted command resumes when
    it is run again.

    For example: zeroshift data corrupt photos --kind fog --severity 1-5 --out photos-c
    """
    kinds = KINDS if kind == ALL else (kind,)
    corruptions = [
        Corruption(name, level, seed, made_for=made_for) for name in kinds for level in _parse_severities(severity)
    ]
    check_outputs(folders=[out])
    claim(out / "corrupt")
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
        print_warning(f"skipped: {failure.reason}")
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
        skipped = f", images skipped: {len(copies.failures)}" if copies.failures else ""
        console().print(
            f"{copies.written} copies written, {copies.present} already there{skipped}; see {out}", soft_wrap=True
        )
    if copies.failures and not copies.written + copies.present:
        raise typer.Exit(1)


def _parse_severities(text: str) -> list[int]:
    """ "3", "1-5" or "all" as a list."""
    if text == ALL:
        return list(SEVERITIES)
    match = re.fullmatch(r"([1-5])(?:-([1-5]))?", text)
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise ValueError(f"--severity must be 1 to 5, a range such as 1-3, or all; got {text!r}. Fix: --severity 5.")
    return list(range(int(match[1]), int(match[2] or match[1]) + 1))

"""The application: its commands and what they share."""

from __future__ import annotations

from typing import Annotated

import typer

from zeroshift._version import __version__
from zeroshift.cli.adapt import adapt
from zeroshift.cli.bench import bench
from zeroshift.cli.classify import classify
from zeroshift.cli.compare import compare
from zeroshift.cli.data import check, corrupt, list_data_sets
from zeroshift.cli.demo import demo
from zeroshift.cli.encoders import encoders
from zeroshift.cli.errors import ErrorHandlingGroup
from zeroshift.cli.experiment import experiment
from zeroshift.cli.extract import extract
from zeroshift.cli.methods import methods
from zeroshift.cli.packs import packs
from zeroshift.cli.prompts import prompts
from zeroshift.cli.results import results

__all__ = ["app", "main"]

app = typer.Typer(
    name="zeroshift",
    cls=ErrorHandlingGroup,
    help="Keep zero-shot classifiers accurate when the data shifts: no labels, no gradients, no source data.",
    no_args_is_help=True,
    add_completion=False,
    # Errors a user can mend are one line (see `errors`); what remains is a bug and deserves its plain traceback.
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"zeroshift {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    pass


for command in (
    demo, classify, extract, adapt, compare, experiment, results, methods, encoders, prompts, packs, bench
):  # fmt: skip
    app.command()(command)

data = typer.Typer(help="Data sets: what there is, what lies on the disk, corrupted copies.", no_args_is_help=True)
data.command("list")(list_data_sets)
data.command("check")(check)
data.command("corrupt")(corrupt)
app.add_typer(data, name="data")


def main() -> None:
    app(prog_name="zeroshift")

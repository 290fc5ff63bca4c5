"""The application: the list of commands, each of which is imported when it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from zeroshift._version import __version__
from zeroshift.cli._help import HelpCommand
from zeroshift.cli.completion import VARIABLE, answer
from zeroshift.cli.errors import ErrorHandlingGroup

__all__ = ["app", "main"]

COMMANDS = {
    "demo": "Compare zero-shot, ADAPT and the anchored mixture on the bundled packs; write an HTML report.",
    "classify": "Classify images from class names alone, with a classifier that adapts to these images without labels.",
    "extract": "Encode images and class names into one file that every other command takes.",
    "adapt": "Adapt a method to features and write its predictions next to those of zero-shot.",
    "compare": "Compare methods on labelled features: accuracy, gain over zero-shot, calibration, time, memory, "
    "encoder passes.",
    "experiment": "Run experiments of the paper: each prints its table in the paper's layout; one HTML report contains "
    "them all.",
    "serve": "Run a service whose classifiers adapt to streams of samples, and that loses and repeats none of them.",
    "results": "Merge, filter and summarise the records of runs.",
    "leaderboard": "Rank the methods of a comparison: accuracy with its uncertainty, calibration, worst stream, time, "
    "memory, needs.",
    "methods": "List the methods and which to start with, or describe one with its parameters.",
    "encoders": "List the families of encoders, how their models are named, and what each needs.",
    "prompts": "List the prompt modes, or print every sentence that a mode makes of class names.",
    "packs": "List the bundled packs: real image features to try methods on, without a download.",
    "bench": "Measure time and memory of ADAPT's engines and the mixture, compared with the plain implementation.",
    "data": "Data sets: which are known, which are on the disk, corrupted copies.",
    "completion": "Print a script that lets your shell complete commands, options, methods and other names.",
}
"""The first paragraph of each command's help, so that listing the commands imports none of them."""

PANELS = {
    "Classify and adapt": ("demo", "classify", "extract", "adapt"),
    "Compare": ("compare", "leaderboard", "experiment", "results", "bench"),
    "Deploy": ("serve",),
    "What there is": ("methods", "encoders", "prompts", "packs", "data"),
    "Shell": ("completion",),
}
"""The commands by purpose, as `zeroshift --help` shows them."""


class LazyGroup(ErrorHandlingGroup):
    """Commands listed by `COMMANDS`; `zeroshift NAME` imports `zeroshift.cli.NAME`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {
            name: TyperCommand(name, short_help=COMMANDS[name], rich_help_panel=panel)
            for panel, names in PANELS.items()
            for name in names
        }

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        _refuse_empty(rest)
        return name, command if name is None else load_command(name), rest


def _refuse_empty(arguments: Sequence[str]) -> None:
    """Refuse empty values, such as those of unset shell variables: as a path, one would mean the current folder."""
    for before, argument in pairwise(["", *arguments]):
        option = argument.removesuffix("=") if argument.startswith("--") else before if before.startswith("-") else ""
        if argument in ("", f"{option}="):
            raise ValueError(f"{option or 'an argument'} is empty. Fix: give it a value, or leave it out.")


def load_command(name: str) -> Any:
    """The command whose function, or group of commands, is `zeroshift.cli.NAME.NAME`."""
    target = getattr(import_module(f"zeroshift.cli.{name}"), name)
    if not isinstance(target, typer.Typer):
        function, target = target, typer.Typer(add_completion=False)
        target.command(name, cls=HelpCommand)(function)
    return typer.main.get_command(target)


app = typer.Typer(
    name="zeroshift",
    cls=LazyGroup,
    help="Make zero-shot image classifiers more accurate on your images: no labels, no gradients, no other data.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["--help", "-h"]},  # of all commands: they inherit it
    # Errors a user can fix are one line (see `errors`); the rest are bugs and get a plain traceback.
    pretty_exceptions_enable=False,
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"zeroshift {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run a command or, if the completion script of a shell asks, answer it."""
    if shell := os.environ.get(VARIABLE):
        answer(shell, sys.argv[1:])
    else:
        app(prog_name="zeroshift")

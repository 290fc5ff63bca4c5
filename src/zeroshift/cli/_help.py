"""What a command says about itself: `--help`, and one line if it is called in a way that it cannot be.

Every option that takes a value shows a placeholder (`metavar`), which also says what shell completion offers: see
`completion`. Of several long names of an option, the first is documented and the others are only accepted.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

from zeroshift.cli.console import console, print_error
from zeroshift.suggest import did_you_mean

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

__all__ = ["HelpCommand", "HelpGroup", "documented_names", "documented_parameters"]

ARGUMENTS, OPTIONS, COMMANDS = "Arguments", "Options", "Commands"
"""Titles of panels, for arguments, options and commands that name none."""

EXAMPLE = "For example: "
"""How a paragraph of a docstring starts that is an example. It becomes the end of the help."""

WIDEST = 100
"""Columns: longer lines are hard to read."""

WIDEST_NAME = 34

LONGEST_SURPLUS = 60
"""Characters of arguments that are too many, in an error."""

UsageError: Any = typer.BadParameter.__mro__[1]
"""Of all errors in how a command is called; typer exports only this subclass."""


class _SelfDescribing:
    """Help and usage errors, for commands and groups alike."""

    def format_help(self: Any, ctx: Any, formatter: Any) -> None:
        out = console()
        out.width = min(out.width, WIDEST)
        with out.capture() as captured:
            for part in _help_parts(self, ctx):
                out.print(part, soft_wrap=isinstance(part, str))
        formatter.write(captured.get())

    def parse_args(self: Any, ctx: Any, args: list[str]) -> Any:
        if not args and self.no_args_is_help:
            typer.echo(ctx.get_help())
            raise typer.Exit(2)
        given = list(args)
        try:
            return super().parse_args(ctx, args)  # type: ignore[misc]
        except UsageError as error:
            print_error(_describe_usage_error(error, ctx, self, given))
            raise typer.Exit(2) from None


class HelpCommand(_SelfDescribing, TyperCommand):
    pass


class HelpGroup(_SelfDescribing, TyperGroup):
    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name = args[0]
        if name not in self.commands:
            raise ValueError(
                f"{ctx.command_path} has no command {name!r}. {did_you_mean(name, self.commands)}"
                f"Fix: one of {', '.join(self.commands)}."
            )
        return name, self.commands[name], args[1:]


def _describe_usage_error(error: Any, ctx: Any, command: Any, given: Sequence[str]) -> str:
    """One line. A suggestion is made by `did_you_mean`: those of click are often far from what was typed."""
    fix = f"Fix: see {ctx.command_path} --help."
    if hasattr(error, "possibilities"):
        names = [name for one in documented_parameters(command) for name in documented_names(one)]
        guess = did_you_mean(error.option_name, [name for name in names if name.startswith("--")])
        return f"{ctx.command_path} has no option {error.option_name}. {guess}{fix}"
    message = error.format_message().rstrip(".")
    if surplus := re.fullmatch(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", message, re.DOTALL):
        return _describe_surplus(surplus[1], ctx, command)
    own_names: Sequence[str] = getattr(getattr(error, "param", None), "opts", [])
    value = next((text for name, text in pairwise(given) if name in own_names), None)
    got = "" if value is None or repr(value) in message else f"; got {value!r}"
    return f"{message}{got}. {fix}"


def _describe_surplus(surplus: str, ctx: Any, command: Any) -> str:
    """Too many arguments: of a pattern that the shell replaced by names, or of a list with spaces."""
    own = [one for one in documented_parameters(command) if one.param_type_name == "argument"]
    takes = " ".join(f"one {_placeholder(one)} ({(one.help or '').rstrip('.')})" for one in own) or "no argument"
    more = surplus if len(surplus) <= LONGEST_SURPLUS else f"{surplus[:LONGEST_SURPLUS]}..."
    return (
        f"{ctx.command_path} takes {takes}; got more: {more}. Fix: leave that out, or put quotes around a value that "
        "contains spaces."
    )


def documented_parameters(command: Any) -> list[Any]:
    """Arguments and options that are shown; whoever reads the help knows `--help`."""
    return [one for one in command.params if not getattr(one, "hidden", False)]


def documented_names(parameter: Any) -> list[str]:
    """Its short names and its first long name, with `--no-NAME` where it has one.

    >>> from types import SimpleNamespace
    >>> documented_names(SimpleNamespace(opts=["--classes", "-c", "--class-names"], secondary_opts=[]))
    ['-c', '--classes']
    """
    short = [name for name in parameter.opts if not name.startswith("--")]
    long = [name for name in parameter.opts if name.startswith("--")][:1]
    return [*short, *long, *parameter.secondary_opts]


def _help_parts(command: Any, ctx: Any) -> Iterator[Any]:
    """Usage, description, one panel per purpose, examples; strings are not wrapped."""
    from rich.panel import Panel
    from rich.text import Text

    parameters = documented_parameters(command)
    yield Text.assemble(("Usage: ", "bold"), _usage(command, ctx, parameters))
    paragraphs = [" ".join(one.split()) for one in inspect.cleandoc(command.help or "").split("\n\n")]
    for paragraph in paragraphs:
        if not paragraph.startswith(EXAMPLE):
            yield ""
            yield Text(paragraph)
    yield ""
    panels: dict[str, list[tuple[Text, Text]]] = {}
    for parameter in parameters:
        default = ARGUMENTS if parameter.param_type_name == "argument" else OPTIONS
        panel = panels.setdefault(parameter.rich_help_panel or default, [])
        panel.append((_name_text(parameter), _meaning_text(parameter)))
    for listed in getattr(command, "commands", {}).values():
        meaning = Text(listed.short_help or " ".join(inspect.cleandoc(listed.help or "").split("\n\n")[0].split()))
        panels.setdefault(listed.rich_help_panel or COMMANDS, []).append((Text(listed.name, "bold"), meaning))
    width = min(WIDEST_NAME, max((len(name) for rows in panels.values() for name, _ in rows), default=0))
    for title, rows in sorted(panels.items(), key=lambda item: item[0] != ARGUMENTS):
        yield Panel(_grid(rows, width), title=title, title_align="left", border_style="dim")
    examples = [paragraph.removeprefix(EXAMPLE) for paragraph in paragraphs if paragraph.startswith(EXAMPLE)]
    if examples:
        yield Text("Examples" if len(examples) > 1 else "Example", style="bold")
        for example in examples:
            yield f"  {example}"
    if getattr(command, "commands", None):
        yield Text(f"{ctx.command_path} COMMAND --help describes a command, with its options and an example.")


def _usage(command: Any, ctx: Any, parameters: Sequence[Any]) -> str:
    """Arguments and required options by name, the others as [OPTIONS]."""
    pieces = [ctx.command_path]
    for one in parameters:
        if one.param_type_name == "argument":
            name = _placeholder(one)
            pieces.append(name if one.required else f"[{name}]")
        elif one.required:
            pieces.append(f"{documented_names(one)[-1]} {_placeholder(one)}")
    if any(one.param_type_name == "option" and not one.required for one in parameters):
        pieces.append("[OPTIONS]")
    return " ".join([*pieces, *(["COMMAND"] if hasattr(command, "commands") else [])])


def _placeholder(parameter: Any) -> str:
    """What stands for its value, such as FILE; an argument that takes several values ends with dots."""
    if parameter.param_type_name == "argument":
        name = parameter.metavar or parameter.name.upper()
        return f"{name}..." if parameter.nargs == -1 else name
    return "" if parameter.is_flag else parameter.metavar or "VALUE"


def _name_text(parameter: Any) -> Text:
    """`-o, --out FILE`; names without a short form are aligned with the others."""
    from rich.text import Text

    if parameter.param_type_name == "argument":
        return Text(_placeholder(parameter), "bold")
    names = documented_names(parameter)
    text = Text(" " * (4 if names[0].startswith("--") else 0))
    text.append(", ".join(names), "bold cyan")
    return text.append(f" {_placeholder(parameter)}".rstrip(), "yellow")


def _meaning_text(parameter: Any) -> Text:
    """The help, and the default or that it is required."""
    from rich.text import Text

    text = Text(parameter.help or "")
    if parameter.required:
        return text.append(" [required]", "dim red")
    default = _default(parameter)
    return text.append(f" [default: {default}]", "dim") if default else text


def _default(parameter: Any) -> str:
    shown, value = parameter.show_default, parameter.default
    if isinstance(shown, str):
        return shown
    is_value = isinstance(value, str | int | float | os.PathLike) and not isinstance(value, bool)
    return str(value) if shown and is_value else ""


def _grid(rows: Sequence[tuple[Text, Text]], width: int) -> Table:
    from rich.table import Table

    grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
    grid.add_column(width=width, no_wrap=False)
    grid.add_column(ratio=1)
    for name, meaning in rows:
        grid.add_row(name, meaning)
    return grid

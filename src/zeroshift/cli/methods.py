"""`zeroshift methods`: the registered methods, and what each needs and takes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zeroshift.cli._method_options import DEFAULT_METHODS
from zeroshift.cli.console import console, print_json
from zeroshift.method import Method
from zeroshift.methods import MethodInfo, get, list_methods
from zeroshift.methods.inputs import PYTHON_ONLY, method_inputs
from zeroshift.report.formatting import describe_needs, format_setting
from zeroshift.report.listings import method_details_table, methods_markdown, methods_table
from zeroshift.report.tables import ReportColumn, ReportTable, summary_table
from zeroshift.suggest import did_you_mean

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["methods"]

RECOMMENDED = {
    DEFAULT_METHODS["transductive"]: "for a set of images: the default",
    DEFAULT_METHODS["online"]: "for a stream, sample by sample",
    "adapt_transductive": "to reproduce the ADAPT paper, on a set",
    "adapt_online": "to reproduce the ADAPT paper, on a stream",
}
"""Which method to start with, and for what (docs/guide.md)."""

NOTHING = "nothing"
"""What `--needs` calls the inputs of a method that needs only features and prototypes."""

LEGEND = (
    "zeroshift methods NAME describes a method and its parameters. NAME+filter is an online method that also uses the "
    "order of the stream. --details lists what each needs and costs; "
    f"--needs {NOTHING} leaves only those that need no more than features and prototypes."
)

DETAILS_LEGEND = (
    "K classes, d dimensions, N samples seen; other letters are parameters. Every method needs prototypes; "
    "optional inputs are in brackets: views of an image (zeroshift extract --views), "
    "the text or the vision of an encoder (--encoder), the features of a second encoder (--second), labelled samples "
    "(--support) and so on."
)


def methods(
    name: Annotated[
        str | None, typer.Argument(metavar="METHOD", help="Describe this method and its parameters.")
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            metavar="PROTOCOL", help="Only methods of this protocol: online, transductive, episodic or few-shot."
        ),
    ] = None,
    needs: Annotated[
        str | None,
        typer.Option(
            metavar="INPUT",
            help=f"Only methods that need this input, such as views or support; {NOTHING}: only methods that need no "
            "more than features and prototypes.",
        ),
    ] = None,
    takes: Annotated[
        str | None,
        typer.Option(metavar="INPUT", help="Only methods that need this input or can use it."),
    ] = None,
    details: Annotated[bool, typer.Option("--details", help="List what each needs, its state and its cost.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the details as a Markdown table.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """List the methods and which to start with, or describe one with its parameters.

    For example: zeroshift methods --protocol online --needs nothing

    For example: zeroshift methods adapt_online
    """
    filters = {"--protocol": protocol, "--needs": needs, "--takes": takes, "--details": details or None}
    for option, value in filters.items():
        if name is not None and value is not None:
            raise ValueError(f"METHOD describes one method and {option} is for the list. Fix: give one of them.")
    if markdown and (json or name is not None):
        raise ValueError("--markdown prints the list as a table. Fix: leave out METHOD and --json.")
    chosen = [get(name)] if name is not None else _filter(list_methods(protocol), needs, takes)
    if json:
        records = [_record(method) for method in chosen]
        print_json(records[0] if name is not None else records)
    elif markdown:
        print(methods_markdown(chosen))
    elif name is not None:
        _print_method(console(), chosen[0])
    elif details:
        console().print(method_details_table(chosen))
        console().print(DETAILS_LEGEND, style="dim")
    else:
        _print_list(console(), chosen)


def _filter(listed: Iterable[MethodInfo], needs: str | None, takes: str | None) -> list[MethodInfo]:
    """Those that need, or can use, an input."""
    inputs = {method.name: method_inputs(method) for method in list_methods()}
    known = list(dict.fromkeys(name for one in inputs.values() for name in one.accepted))
    for option, given, others in (("--needs", needs, [NOTHING]), ("--takes", takes, [])):
        if given is not None and given not in (*known, *others):
            raise ValueError(
                f"{option}: no method takes {given!r}. {did_you_mean(given, known)}"
                f"Fix: one of {', '.join([*known, *others])}."
            )
    chosen = list(listed)
    if needs is not None:
        chosen = [m for m in chosen if needs in (inputs[m.name].required or (NOTHING,))]
    if takes is not None:
        chosen = [m for m in chosen if takes in inputs[m.name].accepted]
    return chosen


def _print_list(out: Console, chosen: list[MethodInfo]) -> None:
    names = [method.name for method in chosen]
    recommended = [(name, reason) for name, reason in RECOMMENDED.items() if name in names]
    if recommended:
        columns = (ReportColumn("", is_whole=True, style="bold"), ReportColumn(""))
        out.print(ReportTable.from_values(columns, recommended, title="Start with", has_header=False))
    if chosen:
        out.print(methods_table(chosen))
    else:
        out.print("No method fits these options.")
    out.print(LEGEND, style="dim")


def _print_method(out: Console, method: MethodInfo) -> None:
    """What it does and needs, then one entry per parameter; a table would leave a narrow column for the meaning."""
    from rich.padding import Padding
    from rich.text import Text

    out.print(f"{method.name} ({method.protocol})", style="bold")
    out.print(method.summary)
    out.print()
    out.print(summary_table(_facts(method)))
    out.print()
    out.print(Text.assemble(("Parameters", "bold"), " (--set NAME=VALUE)"))
    for parameter in method.parameters:
        default = "required" if parameter.required else format_setting(parameter.default)
        meaning = Text.assemble(parameter.meaning, (f" [{parameter.allowed}]", "dim"))
        out.print(Text.assemble("  ", (parameter.name, "bold cyan"), f" = {default}"))
        out.print(Padding(meaning, (0, 0, 0, 6), expand=False))


def _facts(method: MethodInfo) -> dict[str, str]:
    needs, bracket, optional = describe_needs(method).partition("(")
    optional = f" (optional: {optional}" if bracket else ""
    facts = {
        "needs": f"{needs.strip() or 'nothing but prototypes'}{optional}",
        **_where(method),
        "state": method.state_size,
        "cost": method.complexity,
    }
    if method.name in RECOMMENDED:
        facts = {"recommended": RECOMMENDED[method.name], **facts}
    # A method that keeps the default learns from no sample, and could be scored neither before nor after it.
    if method.protocol == "online" and method.cls._adapt_scores is not Method._adapt_scores:
        facts["scored"] = f"each sample {method.scored} the method learns from it"
    if method.cls.overconfident:
        facts["probabilities"] = "over-confident: use them only to rank classes"
    if method.presets:
        facts["presets"] = ", ".join(method.presets)
    if method.reconstructed:
        facts["reconstructed"] = method.reconstructed
    return facts


def _where(method: MethodInfo) -> dict[str, str]:
    """Where a method runs that no command can run, because of what it needs."""
    if not set(PYTHON_ONLY) & set(method.needs):
        return {}
    images = {"vision", "images"} & set(method.needs)
    encoder = ", on images, with an encoder that has CLIP's vision transformer" if images else ""
    return {"runs": f"in Python only (not by classify, adapt or compare){encoder}"}


def _record(method: MethodInfo) -> dict[str, Any]:
    return {
        "name": method.name,
        "class": f"{method.cls.__module__}.{method.cls.__qualname__}",
        "protocol": method.protocol,
        "headline": method.headline,
        "recommended": RECOMMENDED.get(method.name),
        "needs": list(method.needs),
        "takes": list(method.takes),
        "models": list(method.cls.model_parameters),
        "summary": method.summary,
        "scored": method.scored,
        "state_size": method.state_size,
        "complexity": method.complexity,
        "overconfident": method.cls.overconfident,
        "reconstructed": method.reconstructed,
        "presets": list(method.presets),
        "parameters": [
            {
                "name": p.name,
                "allowed": p.allowed,
                "required": p.required,
                "default": p.default,
                "meaning": p.meaning,
            }
            for p in method.parameters
        ],
    }

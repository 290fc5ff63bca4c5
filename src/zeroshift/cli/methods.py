"""`zeroshift methods`: the registered methods, and what each needs and takes."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from zeroshift.cli.console import console, print_json
from zeroshift.methods import MethodInfo, get, list_methods
from zeroshift.report.formatting import describe_needs
from zeroshift.report.listings import methods_markdown, methods_table, parameters_table
from zeroshift.report.tables import summary_table

__all__ = ["methods"]

LEGEND = (
    "K classes, d dimensions, N samples seen; other letters are parameters. Every method needs prototypes; "
    "optional inputs are in brackets: views of an image (zeroshift extract --views), "
    "the text or the vision of an encoder (--encoder), the features of a second encoder (--second), labelled samples "
    "(--support) and so on. "
    "zeroshift methods NAME describes a method and shows its parameters."
)


def methods(
    name: Annotated[str | None, typer.Argument(help="Show this method with its parameters.")] = None,
    protocol: Annotated[
        str | None, typer.Option(help="Only methods of this protocol: online, episodic, transductive or few-shot.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the list as a Markdown table.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the methods, or one with its parameters."""
    chosen = [get(name)] if name is not None else list_methods(protocol)
    if name is not None and protocol is not None:
        raise ValueError("NAME shows one method and --protocol filters the list. Fix: give one of them.")
    if markdown and (json or name is not None):
        raise ValueError("--markdown prints the list as a table. Fix: leave out NAME and --json.")
    if json:
        records = [_record(method) for method in chosen]
        print_json(records[0] if name is not None else records)
        return
    if markdown:
        print(methods_markdown(chosen))
        return
    out = console()
    if name is None:
        out.print(methods_table(chosen))
        out.print(LEGEND, style="dim")
        return
    method = chosen[0]
    out.print(f"{method.name} ({method.protocol})", style="bold")
    out.print(method.summary)
    out.print(summary_table(_facts(method)))
    out.print(parameters_table(method))


def _facts(method: MethodInfo) -> dict[str, str]:
    facts = {
        "needs": describe_needs(method) or "nothing but prototypes",
        "state": method.state_size,
        "cost": method.complexity,
    }
    if method.protocol == "online":
        facts["scored"] = f"each sample {method.scored} the method learns from it"
    if method.cls.overconfident:
        facts["probabilities"] = "over-confident: use them only to rank classes"
    if method.presets:
        facts["presets"] = ", ".join(method.presets)
    if method.reconstructed:
        facts["reconstructed"] = method.reconstructed
    return facts


def _record(method: MethodInfo) -> dict[str, Any]:
    return {
        "name": method.name,
        "class": f"{method.cls.__module__}.{method.cls.__qualname__}",
        "protocol": method.protocol,
        "needs": list(method.needs),
        "takes": list(method.takes),
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

"""Write what shell completion offers: `python scripts/write_completion.py`.

Commands take a second to import, and completion must not. Their options, and the names of methods, packs and so on, are
therefore stored in src/zeroshift/cli/completion.json. Run this after a change of any of these; a test fails if it was
forgotten. Running it again writes the same bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zeroshift.adapt.engines import ENGINES
from zeroshift.benchmarks.problems import GEOMETRIES
from zeroshift.cli._help import documented_names, documented_parameters
from zeroshift.cli._method_options import DEFAULT_METHODS
from zeroshift.cli.app import COMMANDS, load_command
from zeroshift.cli.compare import FILTERED, GROUPS
from zeroshift.cli.methods import NOTHING
from zeroshift.data import catalogue, corruptions, packs
from zeroshift.encode import registry as encoders
from zeroshift.encode.prompts import MODES
from zeroshift.evaluate.leaderboard import NEEDS
from zeroshift.evaluate.protocols import PROTOCOLS as EVALUATIONS
from zeroshift.evaluate.streams import KINDS as STREAMS
from zeroshift.experiments import list_experiments
from zeroshift.method import registered_methods
from zeroshift.methods import MethodInfo, StickyFilter, get, list_methods
from zeroshift.methods.inputs import method_inputs
from zeroshift.methods.registry import PROTOCOLS
from zeroshift.parameters import Choice, Constraint, Flag, Optional

TARGET = Path(__file__).resolve().parents[1] / "src" / "zeroshift" / "cli" / "completion.json"


def describe() -> dict[str, Any]:
    """Everything that completion offers, from the commands and registries themselves."""
    methods = [method for method in list_methods() if method.name in registered_methods()]  # without plug-ins
    filtered = get("tda+filter")
    return {
        "options": {"--version": {"about": "Print the version and exit."}},
        "commands": {name: _describe_command(load_command(name)) for name in COMMANDS},
        "defaults": DEFAULT_METHODS,
        "methods": {method.name: _describe_method(method) for method in methods},
        "filter": {
            name: one for name, one in _describe_parameters(filtered).items() if name not in get("tda").cls.constraints
        },
        "words": _describe_words(methods),
    }


def _describe_command(command: Any) -> dict[str, Any]:
    described: dict[str, Any] = {"about": _first_sentence(command.help)}
    if hasattr(command, "commands"):
        described["commands"] = {name: _describe_command(one) for name, one in command.commands.items()}
    arguments, options = [], {}
    for parameter in documented_parameters(command):
        if parameter.param_type_name == "argument":
            arguments.append(f"{parameter.metavar}{'...' if parameter.nargs == -1 else ''}")
            continue
        # `--no-NAME` and the like are options of their own here.
        main, *others = [name for name in documented_names(parameter) if name.startswith("--")]
        also = [name for name in parameter.opts if name != main]
        about = {"about": _first_sentence(parameter.help)}
        options[main] = {
            **about,
            **({"also": also} if also else {}),
            **({} if parameter.is_flag else {"takes": parameter.metavar}),
            **({"repeats": True} if parameter.multiple else {}),
        }
        options |= dict.fromkeys(others, about)
    if "commands" in described:
        return {**described, **({"options": options} if options else {})}
    return {**described, "arguments": arguments, "options": options}


def _describe_method(method: MethodInfo) -> dict[str, Any]:
    inputs = method_inputs(method)
    return {
        "about": method.headline,
        "adds": [
            *(["filter"] if _can_be_filtered(method) else []),
            *(n for n in inputs.from_features if n in inputs.optional),
        ],
        "presets": list(method.presets),
        "parameters": _describe_parameters(method),
    }


def _can_be_filtered(method: MethodInfo) -> bool:
    try:
        StickyFilter.of(method.cls)
    except ValueError:
        return False
    return True


def _describe_parameters(method: MethodInfo) -> dict[str, Any]:
    """Those that `--set` takes."""
    described = {}
    for parameter in method.parameters:
        constraint = method.cls.constraints.get(parameter.name)
        if constraint is None or parameter.name in method.cls.model_parameters:
            continue
        values = _values(constraint)
        described[parameter.name] = {
            "about": _first_sentence(parameter.meaning),
            **({"values": "|".join(values)} if values else {}),
        }
    return described


def _values(constraint: Constraint) -> list[str]:
    """The values that are words, as they are typed."""
    if isinstance(constraint, Optional):
        return ["none", *_values(constraint.inner)]
    if isinstance(constraint, Choice):
        return list(constraint.values)
    return ["true", "false"] if isinstance(constraint, Flag) else []


def _describe_words(methods: list[MethodInfo]) -> dict[str, dict[str, str]]:
    """Words by placeholder, each with a description."""
    experiments = list_experiments()
    inputs = dict.fromkeys(name for method in methods for name in method_inputs(method).accepted)
    return {
        "GROUP": {
            "all": "all methods",
            **{group: f"all {group} methods" for group in GROUPS},
            FILTERED: "all online methods with the order filter",
        },
        "EVALUATION": {one.name: one.title for one in EVALUATIONS.values()},
        "STREAM": dict.fromkeys(STREAMS, ""),
        "NEED": NEEDS,
        "PACK": {pack.name: pack.title for pack in packs.list()},
        "MODE": {mode.name: mode.summary for mode in MODES.values()},
        "ENCODER": {_typed_part(family.example): family.title for family in encoders.list_families()},
        "EXPERIMENT": {
            **{experiment.name: experiment.title for experiment in experiments},
            **{name: one.title for one in experiments for name in one.paper_names},
        },
        "DATASET": {info.id: info.title for info in catalogue.list()},
        "KIND": dict.fromkeys(corruptions.KINDS, ""),
        "PROTOCOL": dict.fromkeys(PROTOCOLS, ""),
        "INPUT": dict.fromkeys([NOTHING, *inputs], ""),
        "ENGINE": dict.fromkeys(ENGINES, ""),
        "GEOMETRY": dict.fromkeys(GEOMETRIES, ""),
        "DEVICE": dict.fromkeys(("auto", "cpu", "cuda", "mps"), ""),
        "DTYPE": dict.fromkeys(("auto", "float32", "float16", "bfloat16"), ""),
    }


def _typed_part(example: str) -> str:
    """Of `albef:path/to/ALBEF.pth` the prefix; the path is the user's."""
    return example.partition("path/to")[0]


def _first_sentence(text: str | None) -> str:
    return re.split(r"(?<=[.!?;]) ", " ".join((text or "").split()))[0].rstrip(".;")


def dumps(value: Any, indent: str = "") -> str:
    """JSON with one line per option, parameter and list of words, so that changes can be read and merged."""
    if not isinstance(value, Mapping) or not any(isinstance(one, Mapping) for one in value.values()):
        return json.dumps(value, ensure_ascii=False)
    inner = indent + " "
    lines = [f"{inner}{json.dumps(key)}: {dumps(one, inner)}" for key, one in value.items()]
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


if __name__ == "__main__":
    TARGET.write_text(dumps(describe()) + "\n", encoding="utf-8", newline="\n")
    print(f"{TARGET.name}: {TARGET.stat().st_size:,} bytes")

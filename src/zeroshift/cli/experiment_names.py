"""Which experiments `zeroshift experiment` does, and the command that does them again."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zeroshift.cli.console import print_warning
from zeroshift.cli.sources import is_pack
from zeroshift.experiments import Experiment, get, list_experiments

__all__ = ["chosen_experiments", "retyped"]

ALL = "all"


def chosen_experiments(names: str | None, sources: Sequence[str]) -> list[Experiment]:
    """Those named, each once, in the order of the registry for `all`; what reads as a slip is answered as one."""
    known = {experiment.name for experiment in list_experiments()}
    wanted = [name.strip() for name in (names or "").split(",") if name.strip()]
    if not wanted:
        raise ValueError("no experiment is named. Fix: zeroshift experiment all, or see zeroshift experiment list.")
    beside = [source for source in sources if (source in known or source == ALL) and not os.path.exists(source)]
    if beside:
        raise ValueError(
            f"no file at {beside[0]}; an experiment is called so. Fix: a list with commas, {names},{','.join(beside)}."
        )
    (first, *others) = wanted
    if not others and first not in known and first != ALL and (is_pack(first) or os.path.exists(first)):
        raise ValueError(
            f"{first} is no experiment but {'a pack' if is_pack(first) else 'a file or folder'}; the experiment comes "
            f"first. Fix: zeroshift experiment all {shlex.quote(first)}."
        )
    for name, count in Counter(wanted).items():
        if count > 1:
            print_warning(f"{name} is named {count} times; it counts once")
    if ALL in wanted and (beside := [name for name in dict.fromkeys(wanted) if name in known]):
        print_warning(f"{ALL} holds {', '.join(beside)} too; it counts once")
    chosen: list[Experiment] = []
    for name in wanted:
        chosen += list_experiments() if name == ALL else [get(name)]
    return list({experiment.name: experiment for experiment in chosen}.values())


def retyped(given: Mapping[str | None, Any]) -> str:
    """A command line that a reader can type, from options by name and, under None, arguments.

    >>> retyped({None: ["ablation", "my set.npz"], "--packs": None, "--normalize": True, "--encoder": ["composed"]})
    "zeroshift experiment ablation 'my set.npz' --normalize --encoder composed"
    """
    words = ["zeroshift", "experiment"]
    for option, value in given.items():
        for one in value if isinstance(value, list) else [value]:
            if one is True and option is not None:
                words.append(option)
            elif isinstance(one, (str, int, Path)) and one is not False:
                words += [str(one)] if option is None else [option, str(one)]
    return shlex.join(words)

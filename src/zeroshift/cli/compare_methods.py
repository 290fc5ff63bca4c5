"""Which methods `zeroshift compare` runs, and with which parameters, read from `--methods` and `--set`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from zeroshift import methods
from zeroshift.cli.settings import parse_settings
from zeroshift.evaluate import Contestant, contestants
from zeroshift.evaluate.needs import ENCODER, VIEWS
from zeroshift.suggest import did_you_mean

__all__ = ["chosen_contestants"]

GROUPS = ("online", "episodic", "transductive", "few-shot")

ELSEWHERE = {
    "support": "Fix: --methods NAME+support.",
    **dict.fromkeys(("prompts", "validation", "unlabelled"), "Fix: leave it out; a comparison takes it from the sets."),
    "text": "Fix: --encoder SOURCE.",
}
"""How a comparison gives a method what holds arrays, or a model."""


def chosen_contestants(
    wanted: str, settings: Sequence[str], *, views: bool = False, encoder: bool = False
) -> list[Contestant]:
    """The contestants `wanted` names, each once; those named one by one must be possible, those of a group need not.

    `views` says that a set holds several of each image, `encoder` that one is given.

    >>> [contestant.label for contestant in chosen_contestants("zero_shot,adapt_online", ["adapt_online.bank_size=8"])]
    ['zero_shot', 'adapt_online bank_size=8']
    """
    chosen: dict[str, Contestant] = {}
    single: set[str] = set()
    for name in (part.strip() for part in wanted.split(",")):
        if not name:
            continue
        if name == "all" or name in GROUPS:
            found = contestants(None if name == "all" else name, views=views)
        else:
            found = [_named(name)]
            single.add(found[0].label)
        chosen |= {contestant.label: contestant for contestant in found if contestant.label not in chosen}
    if not chosen:
        raise ValueError(
            f"--methods names no method; got {wanted!r}. Fix: all, {', '.join(GROUPS)}, or some of `zeroshift methods`."
        )
    parameters = _by_method(settings, chosen.values())
    changed = {
        label: replace(
            contestant,
            parameters=parse_settings(contestant.info, parameters.get(contestant.method, []), ELSEWHERE),
        )
        for label, contestant in chosen.items()
    }
    for label in sorted(single):
        held = [*([VIEWS] if views else []), *([ENCODER] if encoder else [])]
        if reason := changed[label].obstacle_with(*held):
            fix = "" if "Fix: " in reason else _fix(changed[label])
            raise ValueError(f"{label} cannot be compared: it {reason}. {fix}".rstrip())
    return list(changed.values())


def _named(name: str) -> Contestant:
    known = [info.name for info in methods.list_methods()]
    method = name.split("+")[0]
    if method not in known:
        guess = did_you_mean(name, [*known, "all", *GROUPS])
        raise ValueError(
            f"--methods: no method is called {method!r}. {guess}Known: {', '.join(known)}; all, {', '.join(GROUPS)}."
        )
    try:
        return Contestant.named(name)
    except ValueError as error:
        raise ValueError(f"--methods {name}: {error} Fix: --methods {method}.") from None


def _by_method(settings: Sequence[str], chosen: Iterable[Contestant]) -> dict[str, list[str]]:
    """`METHOD.NAME=VALUE` as `NAME=VALUE` under each method."""
    compared = list(dict.fromkeys(contestant.method for contestant in chosen))
    found: dict[str, list[str]] = {}
    for item in settings:
        method, point, setting = item.partition(".")
        if not point or "=" in method:
            raise ValueError(
                f"--set takes METHOD.NAME=VALUE, for example --set adapt_online.bank_size=8; got {item!r}."
            )
        if "+" in method:
            plain = method.split("+")[0]
            raise ValueError(
                f"--set {item}: parameters are the method's, whatever it is given. Fix: --set {plain}.{setting}."
            )
        if method not in compared:
            methods.get(method)  # a name that is none is answered by the registry
            raise ValueError(f"--set {item}: {method} is not among the methods compared. Fix: add it to --methods.")
        found.setdefault(method, []).append(setting)
    return found


def _fix(contestant: Contestant) -> str:
    """How to come by what it lacks; on the command line only numbers and words can be set."""
    cls = contestant.info.cls
    lacking = [p.name for p in contestant.info.parameters if p.required and p.name not in contestant.given]
    settable = [name for name in lacking if name not in (*cls.array_parameters, *cls.model_parameters)]
    if len(settable) < len(lacking) or not lacking:
        return f"Fix: leave it out; in Python zeroshift.encode.make_method({contestant.method!r}, ...) makes it."
    return f"Fix: --set {contestant.method}.{settable[0]}=VALUE."

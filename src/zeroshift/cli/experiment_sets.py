"""Which sets `zeroshift experiment` runs on: packs, feature files, and data sets on the disk once they are encoded."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from zeroshift.cli.compare_sets import chosen_entries
from zeroshift.cli.console import print_warning
from zeroshift.cli.experiment_data import DataSets
from zeroshift.cli.sources import is_pack
from zeroshift.data import packs as bundled
from zeroshift.experiments import Member, Suite
from zeroshift.suggest import did_you_mean

__all__ = ["chosen_suite"]


def chosen_suite(
    sources: Sequence[str], packs: str | None, on_disk: DataSets | None, *, out: Path, normalize: bool, quiet: bool
) -> Suite:
    """Packs and files first, each set once whatever it is called; with neither and no data sets, the bundled packs."""
    _check_sources(sources, packs)
    members: list[Member] = []
    if sources or packs is not None or on_disk is None:
        entries = chosen_entries(sources, packs, prompt=None, normalize=normalize)
        members = [Member.of(entry.name, entry.load(), entry.load) for entry in entries]
    for member in on_disk.members(out, quiet=quiet) if on_disk is not None else ():
        twin = next((other for other in members if other.entry.digest == member.entry.digest), None)
        if twin is None:
            members.append(member)
        else:
            print_warning(f"left out: {member.name} holds the same as {twin.name}")
    if not members:
        raise ValueError(
            "there is no set to do experiments on: everything was left out. Fix: mend what the warnings above name, or "
            "leave out --data for the bundled packs."
        )
    return Suite(tuple(_told_apart(members)))


def _check_sources(sources: Sequence[str], packs: str | None) -> None:
    """Slips of the command line, before anything is loaded."""
    known = [info.name for info in bundled.list()]
    named = [name.strip() for name in (packs or "").split(",") if name.strip()]
    for name in named:
        if name not in (*known, "all"):
            raise ValueError(
                f"--packs: no pack is called {name!r}. {did_you_mean(name, known)}Fix: all, or some of "
                f"{', '.join(known)}."
            )
    for source in sources:
        if not is_pack(source) and source not in known and not os.path.exists(source):
            raise FileNotFoundError(
                f"no file or folder at {source}. Fix: check the path; bundled packs are named as pack:cifar10."
            )
    for name, count in Counter([*sources, *(f"pack:{name}" for name in named)]).items():
        if count > 1:
            print_warning(f"{name} is named {count} times; it counts once")


def _told_apart(members: Sequence[Member]) -> list[Member]:
    """With longer names where several have the same: the file's with its folder, or its whole path."""
    found = list(members)
    for lengthen in (_with_folder, _whole_path):
        count = Counter(member.name for member in found)
        found = [_renamed(one, lengthen(_source(one))) if count[one.name] > 1 else one for one in found]
    return found


def _renamed(member: Member, name: str) -> Member:
    title = name if member.title == member.name else member.title
    return replace(member, entry=replace(member.entry, name=name, title=title))


def _source(member: Member) -> str:
    """The file or pack it is loaded from."""
    load = member.entry.load
    return str(load.args[0]) if isinstance(load, partial) and load.args else member.name


def _with_folder(source: str) -> str:
    path = Path(source).resolve()
    return source if is_pack(source) else f"{path.parent.name}/{path.name}"


def _whole_path(source: str) -> str:
    return source if is_pack(source) else str(Path(source).resolve())

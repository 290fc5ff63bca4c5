"""Which sets `zeroshift experiment` runs on: packs, feature files, and data sets on the disk once they are encoded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from zeroshift.cli.compare_sets import chosen_entries
from zeroshift.cli.console import print_warning
from zeroshift.cli.experiment_data import DataSets
from zeroshift.experiments import Member, Suite

__all__ = ["chosen_suite"]


def chosen_suite(
    sources: Sequence[str], packs: str | None, on_disk: DataSets | None, *, out: Path, normalize: bool, quiet: bool
) -> Suite:
    """Packs and files first, each set once whatever it is called; with neither and no data sets, the bundled packs."""
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
    return Suite(tuple(members))

"""The prompt modes of the paper's Tables 7 and 18, and which of them the sets have prototypes for."""

from __future__ import annotations

from zeroshift.encode.prompts.prompts import MODES
from zeroshift.evaluate import Trial
from zeroshift.experiments._shared.findings import Remark
from zeroshift.experiments._shared.suite import Member, Suite, describe_sets
from zeroshift.experiments._shared.trials import runs

__all__ = ["PAPERS_MODES", "mode_title", "modes_of", "modes_remark", "runs_in_mode"]

PAPERS_MODES = tuple(name for name, mode in MODES.items() if mode.title != "Custom")
"""The six modes of the paper, in its order."""


def modes_of(suite: Suite) -> list[str]:
    """Modes of at least one set: the paper's in its order, then all others."""
    there = dict.fromkeys(prompt for member in suite.members for prompt in member.prompts)
    return [*(mode for mode in PAPERS_MODES if mode in there), *(mode for mode in there if mode not in PAPERS_MODES)]


def runs_in_mode(member: Member, method: str, mode: str) -> list[Trial]:
    """One run of a method from the prototypes of a mode; empty if the set does not have the mode."""
    return runs(member, method, prompt=mode) if mode in member.prompts else []


def mode_title(mode: str) -> str:
    """The paper's name of a mode, or the mode itself.

    >>> mode_title("descriptions_ensemble"), mode_title("mine")
    ('GPT & Ensemble', 'mine')
    """
    return MODES[mode].title if mode in MODES else mode


def modes_remark(suite: Suite) -> Remark | None:
    """Lists which of the paper's modes are missing and how to get them; None if every set has all six."""
    text = []
    for mode in PAPERS_MODES:
        lacking = [member for member in suite.members if mode not in member.prompts]
        if len(lacking) == len(suite.members):
            text.append(f"{mode_title(mode)} ({mode})")
        elif lacking:
            text.append(f"{mode_title(mode)} ({mode}; not in {describe_sets(lacking)})")
    if not text:
        return None
    return Remark(
        f"The sets have no prototypes of: {', '.join(text)}. Fix: make them with `zeroshift extract ... --prompts "
        f"{','.join(PAPERS_MODES)} --descriptions FILE --template TEXT`; `zeroshift prompts` says what each mode is."
    )

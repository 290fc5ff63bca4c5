"""Which sets are taken where all of them would take too long, or where the paper took one."""

from __future__ import annotations

from zeroshift.experiments.parts.suite import Member, Suite, together

__all__ = ["NO_ORDER", "PAPERS_SET", "main_set", "one_a_task", "one_a_task_note"]

PAPERS_SET = "imagenet"
"""What the paper measures time and memory on."""

NO_ORDER = "Zero-shot and transductive methods do not depend on the order."


def main_set(suite: Suite) -> Member:
    """The paper's ImageNet where it is there, else the set of most samples, the first of several."""
    papers = [member for member in suite.members if member.papers and member.data_set == PAPERS_SET]
    return max(papers or suite.members, key=lambda member: member.entry.n_samples)


def one_a_task(suite: Suite) -> Suite:
    """Of each task the set of most samples, the first of several. A task whose sets are just the paper's keeps them
    all: the paper's number is a mean over them.

    >>> from zeroshift.data import packs
    >>> names = ("cifar10", "cifar10c_fog_5", "cifar10c_defocus_blur_5")
    >>> suite = one_a_task(Suite.of({name: packs.load(name) for name in names}))
    >>> [member.name for member in suite.members]
    ['cifar10', 'cifar10c_fog_5']
    """
    taken: set[str] = set()
    for task in suite.tasks:
        members = suite.of_task(task.id)
        whole = suite.papers(task) is not None
        kept = members if whole else [max(members, key=lambda member: member.entry.n_samples)]
        taken |= {member.entry.digest for member in kept}
    return Suite(tuple(member for member in suite.members if member.entry.digest in taken))


def one_a_task_note(suite: Suite) -> str:
    """Says that sets were left out, where they were; `suite` holds all of them."""
    kept = one_a_task(suite)
    why = "because the slow rows compute everything anew for every sample"
    if len(kept) == len(suite):
        return f"Online: one random order, {why}. {NO_ORDER}"
    return f"Online: one random order; and one set a task ({together(kept.members)}), {why}. {NO_ORDER}"

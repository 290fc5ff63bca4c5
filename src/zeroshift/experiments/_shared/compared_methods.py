"""Who stands in the main tables: every registered method that features alone allow, and what the paper calls it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zeroshift.evaluate import MethodSpec, Trial, list_method_specs
from zeroshift.experiments._shared.paper import PaperTable
from zeroshift.experiments._shared.suite import Member
from zeroshift.experiments._shared.trials import runs

__all__ = [
    "OURS",
    "PAPER_ROWS",
    "SLOW",
    "PaperName",
    "compared_methods",
    "excluded_methods",
    "joined_names",
    "method_label",
    "method_trials",
    "paper_accuracy",
    "row_group",
]

OURS = {"online": "adapt_online", "transductive": "adapt_transductive"}
"""The methods the tables are about, by protocol."""

SLOW = ("dota", "ecalp", "dpe")
"""Online methods that run in one random order: for every sample Dota inverts a d x d matrix, ECALP goes through all
samples it has seen, and DPE takes a gradient step on two prototypes of every class. All others run in as many orders as
ADAPT, because accuracies move by as much over orders as they differ between methods."""

ORDER_INDEPENDENT = "zero_shot"
"""Online, and the same in every order."""


@dataclass(frozen=True)
class PaperName:
    """How a method stands in our tables and in the paper's."""

    label: str
    method: str
    protocol: str


PAPER_ROWS: Mapping[str, PaperName] = {
    "zero_shot": PaperName("CLIP (zero-shot)", "CLIP", "online"),
    "adapt_online": PaperName("ADAPT (online)", "ADAPT", "online"),
    "tda": PaperName("TDA", "TDA", "online"),
    "dmn": PaperName("DMN", "DMN", "online"),
    "dota": PaperName("Dota", "Dota", "online"),
    "dpe": PaperName("DPE", "DPE", "online"),
    "bca": PaperName("BCA", "BCA", "online"),
    "oga": PaperName("OGA", "OGA", "online"),
    "tca": PaperName("TCA", "TCA", "online"),
    "zlap_inductive": PaperName("ZLaP (inductive)", "ZLaP", "online"),
    "adapt_transductive": PaperName("ADAPT (transductive)", "ADAPT", "transductive"),
    "gda_pseudo": PaperName("GDA-CLIP (without labels)", "GDA-CLIP", "transductive"),
    "transclip": PaperName("TransCLIP", "TransCLIP", "transductive"),
    "frolic": PaperName("Frolic", "Frolic", "transductive"),
    "stata": PaperName("StatA", "StatA", "transductive"),
    "zlap": PaperName("ZLaP", "ZLaP", "transductive"),
    "t3a": PaperName("T3A", "T3A", "online"),
    "ecalp": PaperName("ECALP", "ECALP", "online"),
    "histo_transclip": PaperName("Histo-TransCLIP", "Histo-TransCLIP", "transductive"),
    "anchored_mixture_online": PaperName("Anchored mixture (online)", "Anchored mixture", "online"),
    "anchored_mixture_transductive": PaperName("Anchored mixture (transductive)", "Anchored mixture", "transductive"),
}
"""By name in the registry. The last five have no row in the paper's main tables; few-shot methods (GDA-CLIP with
labels, TIMO, Tip-Adapter) see labels and stand in none of ours."""


def compared_methods(protocol: str) -> list[MethodSpec]:
    """Methods of a protocol that need neither labels nor views nor tokens: the zero-shot classifier first, ADAPT last.

    >>> [spec.method for spec in compared_methods("transductive")][-1]
    'adapt_transductive'
    """
    able = [spec for spec in list_method_specs(protocol) if spec.missing_input() is None]
    ends = {"zero_shot": -1, OURS[protocol]: 1}
    return sorted(able, key=lambda spec: ends.get(spec.method, 0))


def excluded_methods() -> list[MethodSpec]:
    """Methods of the two protocols that a set of features is not enough for."""
    return [c for protocol in OURS for c in list_method_specs(protocol) if c.missing_input() is not None]


def method_trials(spec: MethodSpec, member: Member, orders: int) -> list[Trial]:
    """In `orders` random orders; once where it is slow or the order does not matter."""
    return runs(member, spec.label, 1 if spec.method in (*SLOW, ORDER_INDEPENDENT) else orders)


def row_group(spec: MethodSpec) -> str:
    """The heading a row stands under: only methods scored on the same samples stand together."""
    return f"{spec.protocol}, scored on half" if spec.drawn else spec.protocol


def method_label(method: str) -> str:
    """What a row is called: the paper's name, or that in the registry."""
    return PAPER_ROWS[method].label if method in PAPER_ROWS else method


def paper_accuracy(table: PaperTable | None, column: str | None, method: str) -> float | None:
    """What the paper printed for a method, as a fraction; None where it printed nothing, or for all samples of a set
    where ours is scored on some of them."""
    if table is None or column is None or method not in PAPER_ROWS or MethodSpec.named(method).drawn:
        return None
    name = PAPER_ROWS[method]
    number = table.number_at(column, method=name.method, protocol=name.protocol)
    return None if number is None else number / 100


def joined_names(specs: Sequence[MethodSpec]) -> str:
    return ", ".join(spec.method for spec in specs)

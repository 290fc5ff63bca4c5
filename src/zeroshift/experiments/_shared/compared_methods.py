"""The methods of the main tables: every registered method that needs only features, and its name in the paper."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from zeroshift.evaluate import MethodSpec, Trial, list_method_specs
from zeroshift.experiments._shared.paper import PaperTable
from zeroshift.experiments._shared.suite import Member
from zeroshift.experiments._shared.trials import runs
from zeroshift.methods import get
from zeroshift.methods.registry import describe_caveats

__all__ = [
    "OURS",
    "PAPER_ROWS",
    "SLOW",
    "PaperName",
    "caveat_notes",
    "compared_methods",
    "excluded_methods",
    "joined_names",
    "method_label",
    "method_trials",
    "paper_accuracy",
    "row_group",
    "starred",
]

OURS = {"online": "adapt_online", "transductive": "adapt_transductive"}
"""Our methods, by protocol."""

SLOW = ("dota", "ecalp", "dpe")
"""Online methods that run in only one random order, because they are slow: per sample, Dota inverts a d x d matrix,
ECALP visits all previous samples, and DPE takes a gradient step on two prototypes per class."""

ORDER_INDEPENDENT = "zero_shot"
"""An online method whose predictions do not depend on the order."""


@dataclass(frozen=True)
class PaperName:
    """Names of a method in our tables and in the paper's."""

    label: str
    method: str
    protocol: str


PAPER_ROWS: Mapping[str, PaperName] = {
    "zero_shot": PaperName("zero-shot", "CLIP", "online"),
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
    "onzeta": PaperName("OnZeta", "OnZeta", "online"),
    "pta": PaperName("PTA", "PTA", "online"),
    "freetta": PaperName("FreeTTA", "FreeTTA", "online"),
    "boostadapter": PaperName("BoostAdapter", "BoostAdapter", "online"),
    "histo_transclip": PaperName("Histo-TransCLIP", "Histo-TransCLIP", "transductive"),
    "anchored_mixture_online": PaperName("Anchored mixture (online)", "Anchored mixture", "online"),
    "anchored_mixture_transductive": PaperName("Anchored mixture (transductive)", "Anchored mixture", "transductive"),
}
"""By name in the registry. The last nine are not in the paper's main tables. Few-shot methods (GDA-CLIP with labels,
TIMO, Tip-Adapter) see labels and are in none of our tables."""


def compared_methods(protocol: str) -> list[MethodSpec]:
    """Methods of a protocol that need no labels, views or tokens; zero-shot first, ADAPT last.

    >>> [spec.method for spec in compared_methods("transductive")][-1]
    'adapt_transductive'
    """
    able = [spec for spec in list_method_specs(protocol) if spec.missing_input() is None]
    ends = {"zero_shot": -1, OURS[protocol]: 1}
    return sorted(able, key=lambda spec: ends.get(spec.method, 0))


def excluded_methods() -> list[MethodSpec]:
    """Methods of the two protocols that need more than features."""
    return [c for protocol in OURS for c in list_method_specs(protocol) if c.missing_input() is not None]


def method_trials(spec: MethodSpec, member: Member, orders: int) -> list[Trial]:
    """Trials in `orders` random orders; one if the method is slow or does not depend on the order."""
    return runs(member, spec.label, 1 if spec.method in (*SLOW, ORDER_INDEPENDENT) else orders)


def row_group(spec: MethodSpec) -> str:
    """The heading of the row; only methods scored on the same samples share one."""
    return f"{spec.protocol}, scored on half" if spec.drawn else spec.protocol


def method_label(method: str) -> str:
    """The label of a row: the name in the paper, or in the registry; with a star where `caveat_notes` says more.

    >>> method_label("tda"), method_label("freetta")
    ('TDA', 'FreeTTA*')
    """
    return starred(PAPER_ROWS[method].label if method in PAPER_ROWS else method, method)


def starred(label: str, method: str) -> str:
    return label + ("*" if get(method).caveat else "")


def caveat_notes(methods: Iterable[str]) -> tuple[str, ...]:
    """What the stars of `methods` mean, as a note of their table.

    >>> caveat_notes(["tda", "freetta", "bca"])
    ("* FreeTTA, BCA: reconstructed, not the authors' code.",)
    """
    return tuple(describe_caveats({method_label(method).removesuffix("*"): get(method).caveat for method in methods}))


def paper_accuracy(table: PaperTable | None, column: str | None, method: str) -> float | None:
    """The accuracy printed in the paper, as a fraction; None if there is none, or if ours is scored on part of
    the set."""
    if table is None or column is None or method not in PAPER_ROWS or MethodSpec.named(method).drawn:
        return None
    name = PAPER_ROWS[method]
    number = table.number_at(column, method=name.method, protocol=name.protocol)
    return None if number is None else number / 100


def joined_names(specs: Sequence[MethodSpec]) -> str:
    return ", ".join(spec.method for spec in specs)

"""The anchored mixture, our own method: soft counts of all samples, means anchored at the text, trusted by evidence."""

from zeroshift.mixture.online import OnlineAnchoredMixture
from zeroshift.mixture.transductive import TransductiveAnchoredMixture

__all__ = ["OnlineAnchoredMixture", "TransductiveAnchoredMixture"]

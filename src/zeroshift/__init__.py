"""zeroshift keeps zero-shot classifiers accurate when the data shifts: no labels, no gradients, no source data.

>>> import zeroshift
>>> pack = zeroshift.data.packs.load("cifar10")
>>> adapter = zeroshift.OnlineADAPT(pack.prototypes_for(), logit_scale=pack.logit_scale)
>>> adapter.adapt(pack.features[:100]).shape
(100, 10)
"""

from zeroshift import data, methods
from zeroshift._version import __version__
from zeroshift.adapt import OnlineADAPT, ReleasedOnlineADAPT, ReleasedTransductiveADAPT, TransductiveADAPT
from zeroshift.arrays import normalize
from zeroshift.features import FeatureSet
from zeroshift.methods import StickyFilter, ZeroShot
from zeroshift.mixture import OnlineAnchoredMixture, TransductiveAnchoredMixture

__all__ = [
    "FeatureSet",
    "OnlineADAPT",
    "OnlineAnchoredMixture",
    "ReleasedOnlineADAPT",
    "ReleasedTransductiveADAPT",
    "StickyFilter",
    "TransductiveADAPT",
    "TransductiveAnchoredMixture",
    "ZeroShot",
    "__version__",
    "data",
    "methods",
    "normalize",
]


def __dir__() -> list[str]:
    return sorted(__all__)

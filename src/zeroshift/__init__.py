"""zeroshift keeps zero-shot classifiers accurate when the data shifts: no labels, no gradients, no source data.

>>> import zeroshift
>>> pack = zeroshift.data.packs.load("cifar10")
>>> adapter = zeroshift.OnlineADAPT(pack.prototypes_for(), logit_scale=pack.logit_scale)
>>> adapter.adapt(pack.features[:100]).shape
(100, 10)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from zeroshift._version import __version__

if TYPE_CHECKING:
    # For editors and type checkers; at run time, `__getattr__` imports each when it is first used.
    from zeroshift import data, methods
    from zeroshift.adapt import OnlineADAPT, ReleasedOnlineADAPT, ReleasedTransductiveADAPT, TransductiveADAPT
    from zeroshift.arrays import normalize
    from zeroshift.encode.pipeline import Pipeline, pipeline
    from zeroshift.features import FeatureSet
    from zeroshift.methods import StickyFilter, ZeroShot
    from zeroshift.mixture import OnlineAnchoredMixture, TransductiveAnchoredMixture

__all__ = [
    "FeatureSet",
    "OnlineADAPT",
    "OnlineAnchoredMixture",
    "Pipeline",
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
    "pipeline",
]

_MODULES = {
    "FeatureSet": "features",
    "OnlineADAPT": "adapt",
    "OnlineAnchoredMixture": "mixture",
    "Pipeline": "encode",
    "ReleasedOnlineADAPT": "adapt",
    "ReleasedTransductiveADAPT": "adapt",
    "StickyFilter": "methods",
    "TransductiveADAPT": "adapt",
    "TransductiveAnchoredMixture": "mixture",
    "ZeroShot": "methods",
    "normalize": "arrays",
    "pipeline": "encode.pipeline",
}
"""Where each name is imported from."""

_PACKAGES = (
    "adapt", "data", "encode", "evaluate", "experiments", "features", "methods", "mixture", "reject", "testing",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `import zeroshift` and `zeroshift --version` need none of them."""
    if name in _MODULES:
        found = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    elif name in _PACKAGES:
        found = import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)

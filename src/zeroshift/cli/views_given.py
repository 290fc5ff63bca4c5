"""Whether `zeroshift adapt` gives a method the views of each image: needed, asked for with `--views`, or not at all."""

from __future__ import annotations

from zeroshift.features import FeatureSet
from zeroshift.methods import MethodInfo

__all__ = ["check_views", "gives_views"]

VIEWS = "views"


def gives_views(info: MethodInfo, *, asked: bool) -> bool:
    """A method that needs views is given them anyway; one that takes them only where `asked`."""
    if asked and VIEWS not in (*info.needs, *info.takes):
        raise ValueError(
            f"--views: {info.name} takes no views, it looks at each image itself. Fix: leave it out, or take a method "
            "with views among its needs: see `zeroshift methods`."
        )
    return asked or VIEWS in info.needs


def check_views(info: MethodInfo, features: FeatureSet, source: str) -> None:
    """Refuse features without views for a method that is to be given them."""
    if features.views is None:
        why = "needs" if VIEWS in info.needs else "is to be given"
        other = "" if VIEWS in info.needs else ", or leave out --views"
        raise ValueError(
            f"{info.name} {why} several views of each image, and {source} holds none. "
            f"Fix: zeroshift extract --views 64{other}."
        )

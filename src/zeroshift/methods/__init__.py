"""All methods: the registry, one module per method, and the base classes for writing one.

Every module of this package is imported, and every method class in it registers itself and becomes available here. A
new file is all that a new method needs.
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

import zeroshift.adapt
import zeroshift.mixture  # noqa: F401 (both register methods)
from zeroshift.method import (
    EpisodicMethod,
    Method,
    OnlineMethod,
    OnlineViewMethod,
    SetMethod,
    TwoEncoderMethod,
    ViewMethod,
)
from zeroshift.method import registered_methods as _registered_methods
from zeroshift.methods._shared.few_shot import FewShotMethod
from zeroshift.methods._shared.source_statistics import source_statistics
from zeroshift.methods._shared.towers import PromptedText, PromptedVision
from zeroshift.methods.registry import MethodInfo, ParameterInfo, create, get, list_methods, load
from zeroshift.methods.selftpt import selftpt_source
from zeroshift.methods.sticky_filter import StickyFilter

if TYPE_CHECKING:
    # For editors and type checkers, which do not run the import below.
    from zeroshift.methods.ape import APE as APE
    from zeroshift.methods.awt import AWT as AWT
    from zeroshift.methods.b2tpt import B2TPT as B2TPT
    from zeroshift.methods.batclip import BATCLIP as BATCLIP
    from zeroshift.methods.bca import BCA as BCA
    from zeroshift.methods.boostadapter import BoostAdapter as BoostAdapter
    from zeroshift.methods.clip_adapter import CLIPAdapter as CLIPAdapter
    from zeroshift.methods.cocoop import CoCoOp as CoCoOp
    from zeroshift.methods.coop import CoOp as CoOp
    from zeroshift.methods.cosmic import COSMIC as COSMIC
    from zeroshift.methods.ctpt import CTPT as CTPT
    from zeroshift.methods.difftpt import DiffTPT as DiffTPT
    from zeroshift.methods.dmn import DMN as DMN
    from zeroshift.methods.dota import DOTA as DOTA
    from zeroshift.methods.dpcore import DPCore as DPCore
    from zeroshift.methods.dpe import DPE as DPE
    from zeroshift.methods.dynaprompt import DynaPrompt as DynaPrompt
    from zeroshift.methods.ecalp import ECALP as ECALP
    from zeroshift.methods.freetta import FreeTTA as FreeTTA
    from zeroshift.methods.frolic import Frolic as Frolic
    from zeroshift.methods.gda_clip import GDACLIP as GDACLIP
    from zeroshift.methods.gda_pseudo import GDAPseudo as GDAPseudo
    from zeroshift.methods.histpt import HisTPT as HisTPT
    from zeroshift.methods.mint import Mint as Mint
    from zeroshift.methods.mta import MTA as MTA
    from zeroshift.methods.oga import OGA as OGA
    from zeroshift.methods.onzeta import OnZeta as OnZeta
    from zeroshift.methods.promptalign import PromptAlign as PromptAlign
    from zeroshift.methods.promptsrc import PromptSRC as PromptSRC
    from zeroshift.methods.pta import PTA as PTA
    from zeroshift.methods.ratta import RATTA as RATTA
    from zeroshift.methods.selftpt import SelfTPT as SelfTPT
    from zeroshift.methods.stata import StatA as StatA
    from zeroshift.methods.swapprompt import SwapPrompt as SwapPrompt
    from zeroshift.methods.t3a import T3A as T3A
    from zeroshift.methods.taskres import TaskRes as TaskRes
    from zeroshift.methods.tca import TCA as TCA
    from zeroshift.methods.tda import TDA as TDA
    from zeroshift.methods.tent import Tent as Tent
    from zeroshift.methods.timo import TIMO as TIMO
    from zeroshift.methods.timo import TIMOS as TIMOS
    from zeroshift.methods.tip_adapter import TipAdapter as TipAdapter
    from zeroshift.methods.tip_adapter_f import TipAdapterF as TipAdapterF
    from zeroshift.methods.tip_x import TipX as TipX
    from zeroshift.methods.tnt import TNT as TNT
    from zeroshift.methods.tps import TPS as TPS
    from zeroshift.methods.tpt import TPT as TPT
    from zeroshift.methods.transclip import HistoTransCLIP as HistoTransCLIP
    from zeroshift.methods.transclip import TransCLIP as TransCLIP
    from zeroshift.methods.zero import ZERO as ZERO
    from zeroshift.methods.zero_shot import ZeroShot as ZeroShot
    from zeroshift.methods.zlap import ZLaP as ZLaP
    from zeroshift.methods.zlap import ZLaPInductive as ZLaPInductive

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
_classes = {
    method.__name__: method for method in _registered_methods().values() if method.__module__.startswith(__name__)
}
globals().update(_classes)

__all__ = [
    "EpisodicMethod",
    "FewShotMethod",
    "Method",
    "MethodInfo",
    "OnlineMethod",
    "OnlineViewMethod",
    "ParameterInfo",
    "PromptedText",
    "PromptedVision",
    "SetMethod",
    "StickyFilter",
    "TwoEncoderMethod",
    "ViewMethod",
    "create",
    "get",
    "list_methods",
    "load",
    "selftpt_source",
    "source_statistics",
]
__all__ += sorted(_classes)


def __dir__() -> list[str]:
    return sorted(__all__)

"""Every method under one roof: the registry, and the base classes to write one's own."""

from zeroshift.method import EpisodicMethod, Method, ViewMethod
from zeroshift.methods._shared.few_shot import FewShotMethod
from zeroshift.methods._shared.source_statistics import source_statistics
from zeroshift.methods._shared.towers import PromptedText, PromptedVision
from zeroshift.methods.awt import AWT
from zeroshift.methods.b2tpt import B2TPT
from zeroshift.methods.bca import BCA
from zeroshift.methods.ctpt import CTPT
from zeroshift.methods.difftpt import DiffTPT
from zeroshift.methods.dmn import DMN
from zeroshift.methods.dota import DOTA
from zeroshift.methods.dpcore import DPCore
from zeroshift.methods.dpe import DPE
from zeroshift.methods.dynaprompt import DynaPrompt
from zeroshift.methods.ecalp import ECALP
from zeroshift.methods.frolic import Frolic
from zeroshift.methods.gda_clip import GDACLIP
from zeroshift.methods.gda_pseudo import GDAPseudo
from zeroshift.methods.histo_transclip import HistoTransCLIP
from zeroshift.methods.histpt import HisTPT
from zeroshift.methods.mta import MTA
from zeroshift.methods.oga import OGA
from zeroshift.methods.promptalign import PromptAlign
from zeroshift.methods.ratta import RATTA
from zeroshift.methods.registry import MethodInfo, ParameterInfo, create, get, list_methods, load
from zeroshift.methods.stata import StatA
from zeroshift.methods.swapprompt import SwapPrompt
from zeroshift.methods.t3a import T3A
from zeroshift.methods.tca import TCA
from zeroshift.methods.tda import TDA
from zeroshift.methods.timo import TIMO
from zeroshift.methods.timo_s import TIMOS
from zeroshift.methods.tip_adapter import TipAdapter
from zeroshift.methods.tps import TPS
from zeroshift.methods.tpt import TPT
from zeroshift.methods.transclip import TransCLIP
from zeroshift.methods.zero import ZERO
from zeroshift.methods.zero_shot import ZeroShot
from zeroshift.methods.zlap import ZLaP
from zeroshift.methods.zlap_inductive import ZLaPInductive

__all__ = [
    "AWT",
    "B2TPT",
    "BCA",
    "CTPT",
    "DMN",
    "DOTA",
    "DPE",
    "ECALP",
    "GDACLIP",
    "MTA",
    "OGA",
    "RATTA",
    "T3A",
    "TCA",
    "TDA",
    "TIMO",
    "TIMOS",
    "TPS",
    "TPT",
    "ZERO",
    "DPCore",
    "DiffTPT",
    "DynaPrompt",
    "EpisodicMethod",
    "FewShotMethod",
    "Frolic",
    "GDAPseudo",
    "HisTPT",
    "HistoTransCLIP",
    "Method",
    "MethodInfo",
    "ParameterInfo",
    "PromptAlign",
    "PromptedText",
    "PromptedVision",
    "StatA",
    "SwapPrompt",
    "TipAdapter",
    "TransCLIP",
    "ViewMethod",
    "ZLaP",
    "ZLaPInductive",
    "ZeroShot",
    "create",
    "get",
    "list_methods",
    "load",
    "source_statistics",
]

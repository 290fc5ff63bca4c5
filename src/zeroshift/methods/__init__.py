"""Every method under one roof: the registry, and the base class to write one's own."""

from zeroshift.method import Method
from zeroshift.methods.registry import MethodInfo, ParameterInfo, create, get, list_methods, load
from zeroshift.methods.zero_shot import ZeroShot

__all__ = ["Method", "MethodInfo", "ParameterInfo", "ZeroShot", "create", "get", "list_methods", "load"]

"""ADAPT: online and transductive as the paper defines them, and both as the authors released them."""

from zeroshift.adapt.online import OnlineADAPT
from zeroshift.adapt.released import ReleasedOnlineADAPT, ReleasedTransductiveADAPT
from zeroshift.adapt.transductive import TransductiveADAPT

__all__ = ["OnlineADAPT", "ReleasedOnlineADAPT", "ReleasedTransductiveADAPT", "TransductiveADAPT"]

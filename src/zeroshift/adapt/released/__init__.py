"""ADAPT as the authors' released code computes it, for those who compare against that code's numbers.

It differs from the paper in the mean, the covariance, the bank term and the fusion, and needs a `scale` the authors
set by hand for every data set. docs/adapt.md lists the differences; `OnlineADAPT` and `TransductiveADAPT` follow the
paper.
"""

from zeroshift.adapt.released.base import RELEASED_SCALES
from zeroshift.adapt.released.online import ReleasedOnlineADAPT
from zeroshift.adapt.released.transductive import ReleasedTransductiveADAPT

__all__ = ["RELEASED_SCALES", "ReleasedOnlineADAPT", "ReleasedTransductiveADAPT"]

"""Checks that every method must pass, for your own methods too.

>>> from zeroshift.testing import check_method
>>> from zeroshift import ZeroShot
>>> report = check_method(ZeroShot)
>>> report.failed
{}
"""

from zeroshift.testing.case import Case, NotApplicable, Problem, make_problem
from zeroshift.testing.check import CHECKS, CheckReport, check_method, checks

__all__ = ["CHECKS", "Case", "CheckReport", "NotApplicable", "Problem", "check_method", "checks", "make_problem"]

"""`check_method`: run all common checks on one method and report which passed, failed, or do not apply."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from zeroshift.method import Method
from zeroshift.methods import get
from zeroshift.testing import contract, inputs, interrupts, libraries, persistence, symmetry, threads
from zeroshift.testing.case import Case, Check, NotApplicable

__all__ = ["CHECKS", "CheckReport", "check_method", "checks"]

CHECKS: Mapping[str, Check] = {
    check.__name__: check
    for module in (contract, inputs, symmetry, libraries, persistence, interrupts, threads)
    for check in module.CHECKS
}
"""All checks by name. A check takes a `Case` and raises AssertionError if the method fails it."""


@dataclass
class CheckReport:
    """The results of `check_method`."""

    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    """Checks that do not apply to the method or cannot run here, with the reason."""
    declared: dict[str, str] = field(default_factory=dict)
    """Checks the method declares it cannot satisfy, with its reason."""


def checks(method: type[Method], parameters: Mapping[str, Any] | None = None) -> list[tuple[str, Callable[[], None]]]:
    """(name, call) for every check that the method does not declare as an exception, for parametrized tests."""
    case = Case(method, parameters or {})
    for name in method.check_exceptions:
        if name not in CHECKS:
            raise ValueError(
                f"{method.__name__}.check_exceptions names {name!r}, which is not a check. "
                "Fix: one of the names in zeroshift.testing.CHECKS."
            )
    return [(name, partial(check, case)) for name, check in CHECKS.items() if name not in method.check_exceptions]


def check_method(method: type[Method] | str, *, parameters: Mapping[str, Any] | None = None) -> CheckReport:
    """Run all checks on `method` (a class or a registered name), created with `parameters`.

    Returns which checks passed, and which did not apply and why. Raises AssertionError with the checks that failed.

    A method that cannot pass a check declares it, with the reason, in its class attribute `check_exceptions`. Declaring
    a check that passes is a failure too.
    """
    method = get(method).cls if isinstance(method, str) else method
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise TypeError(
            f"method must be a subclass of zeroshift.methods.Method or a registered name; got {method!r}. "
            "Fix: check_method(type(method), parameters={...}) for an instance."
        )
    report = CheckReport(declared=dict(method.check_exceptions))
    for name, call in checks(method, parameters):
        try:
            call()
        except NotApplicable as reason:
            report.skipped[name] = str(reason)
        except Exception as error:
            report.failed[name] = f"{type(error).__name__}: {error}"
        else:
            report.passed.append(name)
    case = Case(method, parameters or {})
    for name in method.check_exceptions:
        try:
            CHECKS[name](case)
        except Exception:
            continue
        report.failed[name] = "declared in check_exceptions, but it passes: remove the declaration"
    if report.failed:
        lines = "\n".join(f"  {name}: {reason}" for name, reason in report.failed.items())
        raise AssertionError(f"{method.__name__} fails {len(report.failed)} of {len(CHECKS)} checks:\n{lines}")
    return report

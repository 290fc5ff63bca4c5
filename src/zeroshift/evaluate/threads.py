"""BLAS threads: many small products one after the other are faster with one, many times so on a busy machine."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import Any

__all__ = ["one_blas_thread"]


def one_blas_thread() -> AbstractContextManager[Any]:
    """Keep BLAS to one thread inside the block.

    Threads that wait for each other after every product of a few hundred columns cost more than they bring: 1500
    samples of OnlineADAPT in d = 256 took 4 s with one thread, and 4 to 26 s with two, by what else the two cores did.
    """
    return _controller().limit(limits=1, user_api="blas")


@cache
def _controller() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()

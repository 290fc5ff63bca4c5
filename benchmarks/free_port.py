"""A port of this machine for a server that is stopped and started again, in tests and measurements."""

from __future__ import annotations

import random
import socket

__all__ = ["free_port"]

PORTS = range(10_240, 32_768)
"""Below those that systems give to outgoing connections. While the server is stopped, one of these, even one that is
looking for the server, could get its port, and the server could not start again."""


def free_port() -> int:
    while True:
        with socket.socket() as found:
            port = random.SystemRandom().choice(PORTS)
            try:
                found.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port

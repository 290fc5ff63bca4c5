"""Services on free ports: in a thread of the test process, or in a process of their own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from zeroshift.serve import Client
from zeroshift.serve.server import make_server
from zeroshift.serve.service import Limits, Service
from zeroshift.serve.store import open_store

NAMES = ("a", "b", "c", "d", "e")

PATIENCE = 120.0
"""Seconds until a test that waits gives up. What it waits for takes a moment, unless other programs use all cores."""


def wait_until(condition: Callable[[], Any], what: str = "the condition does not hold") -> Any:
    """What `condition` returns as soon as it is true."""
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.01)
    return found


class Running:
    """A service that runs; `service` may be looked into."""

    def __init__(self, location: str, **settings: Any) -> None:
        self.location, limits, port = location, settings.pop("limits", Limits()), settings.pop("port", 0)
        self.store = open_store(location)
        self._clients: list[Client] = []
        settings = {"auth": False, **settings}
        self.server = make_server(
            lambda: Service(self.store, limits=limits, **settings), host="127.0.0.1", port=port, limits=limits
        )
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        wait_until(lambda: self.server.started or not self.thread.is_alive(), "the service did not start")
        assert self.thread.is_alive(), "the service did not start"

    @property
    def service(self) -> Service:
        return self.server.config.app.state.service  # type: ignore[union-attr, no-any-return]

    @property
    def url(self) -> str:
        return self.server.address

    def client(self, key: str | None = None, **settings: Any) -> Client:
        self._clients.append(Client(self.url, key, **{"retry": 0.0, **settings}))
        return self._clients[-1]

    def stop(self) -> None:
        for client in self._clients:
            client.close()
        self.server.stop_streams()
        self.server.should_exit = True
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive(), "the service did not stop"


class Process:
    """`zeroshift serve` on a free port, without keys, in a process of its own."""

    def __init__(
        self, *arguments: str, environment: Mapping[str, str] | None = None, before: Callable[[], None] | None = None
    ) -> None:
        command = [sys.executable, "-m", "zeroshift", "serve", "--no-auth", "--port", "0", *arguments]
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})}, preexec_fn=before
        )
        self.lines: list[str] = []
        self._clients: list[Client] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)

    @property
    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in list(self.lines) if line.startswith("{")]

    @property
    def text(self) -> str:
        return "".join(self.lines)

    @property
    def url(self) -> str:
        """Waits until it listens."""

        def announced() -> re.Match[str] | None:
            found = re.search(r"at (http://127[\d.:]+)", self.text)
            assert found or self.process.poll() is None, self.text
            return found

        return str(wait_until(announced, "the service did not start")[1])

    def client(self, **settings: Any) -> Client:
        self._clients.append(Client(self.url, **{"retry": PATIENCE, **settings}))
        return self._clients[-1]

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code

    def kill(self) -> None:
        for client in self._clients:
            client.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(PATIENCE)
        assert self.process.stderr is not None
        self.process.stderr.close()

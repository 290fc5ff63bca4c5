"""A service on a free port, in a thread of the test process."""

from __future__ import annotations

import threading
import time
from typing import Any

from zeroshift.serve import Client
from zeroshift.serve.server import make_server
from zeroshift.serve.service import Limits, Service
from zeroshift.serve.store import open_store

NAMES = ("a", "b", "c", "d", "e")


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
        deadline = time.monotonic() + 30
        while not self.server.started:
            assert self.thread.is_alive(), "the service did not start"
            assert time.monotonic() < deadline, "the service did not start"
            time.sleep(0.01)

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
        self.thread.join(30)
        assert not self.thread.is_alive(), "the service did not stop"

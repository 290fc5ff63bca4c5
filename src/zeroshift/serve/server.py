"""Runs the application with uvicorn: timeouts for slow clients, a log of JSON lines, an orderly end."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from zeroshift.serve.app import create_app
from zeroshift.serve.service import Service

__all__ = ["configure_log", "make_server"]

log = logging.getLogger("zeroshift.serve")

STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """One JSON object per line. What was posted is never part of it."""

    def format(self, record: logging.LogRecord) -> str:
        content = {"time": round(time.time(), 3), "level": record.levelname.lower(), "message": record.getMessage()}
        content |= {name: value for name, value in vars(record).items() if name not in STANDARD}
        if record.exc_info:
            content["exception"] = self.formatException(record.exc_info)
        return json.dumps(content, default=str)


def configure_log(level: str = "info") -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("zeroshift.serve", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level.upper() if name == "zeroshift.serve" else logging.WARNING)


def make_server(make_service: Callable[[], Service], *, host: str, port: int, limits: Any) -> Server:
    """A server; `run()` serves until SIGINT or SIGTERM."""

    class TimedProtocol(H11Protocol):
        """Closes connections whose headers do not arrive in time, or that take nothing more of an answer."""

        timer: asyncio.TimerHandle | None = None
        write_timer: asyncio.TimerHandle | None = None

        def _is_idle(self) -> bool:
            return self.cycle is None or self.cycle.response_complete

        def _watch(self) -> None:
            if self.timer is None:
                self.timer = self.loop.call_later(limits.header_seconds, self._close_if_idle)

        def _close_if_idle(self) -> None:
            self.timer = None
            if self._is_idle() and not self.transport.is_closing():
                self.transport.close()

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            # The next part of an answer is written when all of the last one was taken: what is left only shrinks.
            transport.set_write_buffer_limits(high=0)
            self._watch()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._watch_writing()

        def resume_writing(self) -> None:
            super().resume_writing()
            self._end_write_timer()

        def _watch_writing(self) -> None:
            left = self.transport.get_write_buffer_size()
            self.write_timer = self.loop.call_later(limits.write_seconds, self._abort_if_stuck, left)

        def _abort_if_stuck(self, before: int) -> None:
            if self.transport.get_write_buffer_size() < before:
                self._watch_writing()
            else:
                self.transport.abort()

        def _end_write_timer(self) -> None:
            if self.write_timer is not None:
                self.write_timer.cancel()
                self.write_timer = None

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._is_idle():
                self._watch()
            elif self.timer is not None:
                self.timer.cancel()
                self.timer = None

        def connection_lost(self, exc: Exception | None) -> None:
            if self.timer is not None:
                self.timer.cancel()
                self.timer = None
            self._end_write_timer()
            super().connection_lost(exc)

    app = create_app(make_service)
    config = uvicorn.Config(
        app, host=host, port=port, http=TimedProtocol, ws="none", lifespan="on", log_config=None, access_log=False,
        server_header=False, date_header=False, limit_concurrency=limits.connections, timeout_keep_alive=30,
        timeout_graceful_shutdown=30, h11_max_incomplete_event_size=32 * 1024,
    )  # fmt: skip
    return Server(config)


ACCEPT_PAUSE = 60.0
"""Seconds between two lines in the log about connections that cannot be accepted."""


class LoopErrors:
    """Logs what nobody catches. asyncio reports every connection without a file descriptor, thousands per second."""

    def __init__(self) -> None:
        self._reported = float("-inf")

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
            loop.default_exception_handler(context)
        elif time.monotonic() - self._reported > ACCEPT_PAUSE:
            self._reported = time.monotonic()
            log.error("connections wait: too few file descriptors. Fix: ulimit -n, or fewer connections")


class Server(uvicorn.Server):
    """Ends the event streams when it is asked to stop; otherwise they would keep it open."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(LoopErrors())
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Unlike uvicorn's, this does not raise the signal again at the end: that it was asked to stop is no error.
        self.stop_streams()
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    def stop_streams(self) -> None:
        service = getattr(self.config.app.state, "service", None)  # type: ignore[union-attr]
        if service is not None:
            service.stopping.set()

    @property
    def address(self) -> str:
        """Where it listens, after it has started."""
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from postgres_server import PostgresServer

pytest.importorskip("fastapi", reason="the extra `serve` brings it")
pytest.importorskip("uvicorn", reason="the extra `serve` brings it")

from serve.running import NAMES, Process, Running
from zeroshift.testing import make_problem


@pytest.fixture
def run_service(tmp_path) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def run(location: str | None = None, **settings: Any) -> Running:
        running = Running(location or str(tmp_path / "store"), **settings)
        started.append(running)
        return running

    yield run
    for one in started:
        if one.thread.is_alive():
            one.stop()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    pytest.importorskip("psycopg", reason="the extra `postgres` brings it")
    try:
        server = PostgresServer()
    except LookupError as error:
        pytest.skip(str(error))
    yield server
    server.end()


@pytest.fixture(params=["sqlite", "postgres"])
def location(request, tmp_path) -> str:
    """Where a new store is: a folder, or an empty database."""
    if request.param == "sqlite":
        return str(tmp_path / "store")
    return request.getfixturevalue("postgres").new_database()


@pytest.fixture
def start_process() -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def start(*arguments: str, **settings: Any) -> Process:
        started.append(Process(*arguments, **settings))
        return started[-1]

    yield start
    for one in started:
        one.kill()


@pytest.fixture
def running(run_service) -> Running:
    return run_service()


@pytest.fixture(scope="session")
def problem() -> Any:
    features, prototypes, _ = make_problem(classes=5, dimension=16, samples=400)
    return features.astype(np.float32), prototypes.astype(np.float32)


@pytest.fixture
def stream(running, problem):
    made = running.client().stream("cam-1")
    made.create(NAMES, problem[1], logit_scale=20.0, snapshot_every=50)
    return made

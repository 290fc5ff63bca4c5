"""What all tests share: a cache of their own, and less repeated work: cheap garbage collection, commands built once."""

import functools
import gc
import os

import pytest


def freeze_garbage_collection() -> None:
    """Exempt everything that exists now from garbage collection: every timed run collects twice, and would search all
    imported modules each time."""
    gc.collect()
    gc.freeze()


def pytest_collection_finish(session):
    freeze_garbage_collection()


@pytest.fixture(scope="module", autouse=True)
def _cheap_garbage_collection():
    """Modules that tests import late, such as torch, are exempted too."""
    freeze_garbage_collection()


@pytest.fixture(scope="session", autouse=True)
def _commands_built_once():
    """typer builds all commands and options again for every call of `CliRunner.invoke`."""
    import typer.testing

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", functools.cache(typer.testing._get_command))
        yield


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    """One cache for the run, so that the composed encoder fits its bridge once and not in every test."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # a worker's folder is inside that of the run
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZEROSHIFT_CACHE", str(folder / "zeroshift-cache"))
        yield

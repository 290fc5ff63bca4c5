"""What all tests share: none of them touches the cache of whoever runs them, and garbage is found fast."""

import gc
import os

import pytest


def pytest_collection_finish(session):
    """What was imported and collected stays to the end: no later search for garbage, and there is one around every
    timed run, has to go through it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    """One cache for the run, so that the composed encoder fits its bridge once and not in every test."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # a worker's folder lies in that of the run
    before = os.environ.get("ZEROSHIFT_CACHE")
    os.environ["ZEROSHIFT_CACHE"] = str(folder / "zeroshift-cache")
    yield
    if before is None:
        del os.environ["ZEROSHIFT_CACHE"]
    else:
        os.environ["ZEROSHIFT_CACHE"] = before

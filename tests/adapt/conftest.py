import pytest

from comparing import treat_as_large


@pytest.fixture
def large(monkeypatch):
    """Small problems have simple ways of their own; here they go the way of large ones."""
    treat_as_large(monkeypatch)

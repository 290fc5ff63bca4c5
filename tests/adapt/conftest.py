import pytest

from engine_comparison import treat_as_large


@pytest.fixture
def large(monkeypatch):
    """Small problems have shortcuts; here they are computed like large ones."""
    treat_as_large(monkeypatch)

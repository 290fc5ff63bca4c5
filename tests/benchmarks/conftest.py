import pytest

from zeroshift.adapt.engines import ENGINES


@pytest.fixture
def every_engine() -> tuple[str, ...]:
    """One engine of each kind that is measured: on sampled steps, one sample per call, the whole array."""
    names = ("direct", "streaming", "replay")
    assert set(names) <= set(ENGINES)
    return names

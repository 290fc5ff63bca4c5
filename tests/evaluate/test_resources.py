"""The gauge sees what is taken in between, and not what was there before."""

from pathlib import Path

import pytest

from fresh_memory import touch_memory
from zeroshift.evaluate.resources import PeakMemory, release_free_memory

MEGABYTE = 2**20


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak can be set back on Linux only")
def test_the_peak_is_that_since_the_reset():
    touch_memory(64 * MEGABYTE)
    release_free_memory()
    memory = PeakMemory()
    before = memory.now()
    memory.reset()
    if not memory.resets:
        pytest.skip("this system does not let it")
    assert memory.peak() - before < 8 * MEGABYTE
    touch_memory(32 * MEGABYTE)
    assert 28 * MEGABYTE < memory.peak() - before < 48 * MEGABYTE

"""The gauge sees what is taken in between, and not what was there before."""

from pathlib import Path

import numpy as np
import pytest

from zeroshift.evaluate.gauge import HostGauge, settle

MEGABYTE = 2**20


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak can be set back on Linux only")
def test_the_peak_is_that_since_the_reset():
    np.ones(64 * MEGABYTE, np.uint8)
    settle()
    gauge = HostGauge()
    before = gauge.now()
    gauge.reset()
    if not gauge.resets:
        pytest.skip("this system does not let it")
    assert gauge.peak() - before < 8 * MEGABYTE
    np.ones(32 * MEGABYTE, np.uint8)
    assert 28 * MEGABYTE < gauge.peak() - before < 48 * MEGABYTE

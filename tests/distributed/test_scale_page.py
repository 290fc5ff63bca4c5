"""The arithmetic in docs/scale.md follows from its assumptions."""

from __future__ import annotations

import re
from pathlib import Path

from zeroshift.encode.sharded import MAX_MEMBER_BYTES

PAGE = (Path(__file__).parents[2] / "docs" / "scale.md").read_text()


def test_costs():
    rows = re.findall(
        r"^\| 10\^(\d)(, exact)? \| ([\d.]+) TB \| (\S+) 10\^(\d+) \| ([\d.]+) \| .*\| ([\d.]+) \|$", PAGE, re.M
    )
    assert len(rows) == 4
    for power, exact, terabytes, factor, exponent, hours, dollars in rows:
        count = 10 ** int(power)
        visited = 11 * count if exact else 5 * count + 6 * 2_000_000
        assert abs(float(factor) * 10 ** int(exponent) / visited - 1) < 0.03
        assert float(terabytes) == round(count * 512 * 2 / 1e12, 2)
        assert float(hours) == round(visited / 11_000 / 3600, 1)
        assert float(dollars) == round(visited / 11_000 / 3600 * 0.05, 2)


def test_limit_of_files_in_tars():
    assert int(re.search(r"files of more than (\d+) MiB", PAGE)[1]) * 2**20 == MAX_MEMBER_BYTES

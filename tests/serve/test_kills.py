"""SIGKILL under load, with both stores: benchmarks/serve_kill.py checks what must hold."""

from __future__ import annotations

import pytest
import serve_kill


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_kills_lose_and_repeat_nothing(location, kills):
    outcome = serve_kill.run(location, kills, minutes=10, seed=kills, say=lambda *_, **__: None)
    assert outcome.kills == kills
    assert outcome.acknowledged > 8 * kills
    assert outcome.check == 0

"""Building blocks the peers share, each once."""

from __future__ import annotations

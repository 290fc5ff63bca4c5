"""What several experiments share: data sets, numbers of the paper, findings, claims and tables."""

from __future__ import annotations

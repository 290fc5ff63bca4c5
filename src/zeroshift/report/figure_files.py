"""Figures as files, PNG and SVG: for a README, a paper or a slide."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from zeroshift.evaluate import Comparison
from zeroshift.files import atomic_path
from zeroshift.report import figures
from zeroshift.report.drawing import streamed
from zeroshift.report.svg import svg_bytes

__all__ = ["figure_paths", "write_figures"]

PNG_DPI = 160


NAMES = ("accuracy", "running_accuracy", "bank_fill")
SUFFIXES = (".png", ".svg")


def figure_paths(folder: str | os.PathLike[str]) -> list[Path]:
    """Every file `write_figures` may write into `folder`; without a bank there is no figure of its filling."""
    return [Path(folder) / f"{name}{suffix}" for name in NAMES for suffix in SUFFIXES]


def write_figures(folder: str | os.PathLike[str], comparisons: Sequence[Comparison]) -> list[Path]:
    """Write every figure, all sets together in each, into `folder`; older ones are replaced. Returns the paths."""
    drawn = {
        "accuracy": figures.accuracy_bars(comparisons),
        "running_accuracy": figures.running_accuracies(comparisons),
    }
    if all(streamed(comparison) is not None for comparison in comparisons):
        drawn["bank_fill"] = figures.bank_fill(comparisons)
    written = []
    for name, figure in drawn.items():
        for suffix in SUFFIXES:
            target = Path(folder) / f"{name}{suffix}"
            with atomic_path(target) as temporary:
                if suffix == ".svg":
                    temporary.write_bytes(svg_bytes(figure))
                else:
                    # Without the "Software" entry the bytes do not change with matplotlib's version number alone.
                    figure.savefig(temporary, format="png", dpi=PNG_DPI, metadata={"Software": None})
            written.append(target)
    return written

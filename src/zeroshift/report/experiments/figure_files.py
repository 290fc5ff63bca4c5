"""Figures as files, SVG and PNG: for a paper, a README or a slide."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from zeroshift.experiments import Chapter
from zeroshift.files import atomic_path
from zeroshift.report.experiments.figure import figure_of
from zeroshift.report.experiments.naming import folder_for, named_findings
from zeroshift.report.svg import svg_bytes

__all__ = ["write_figures"]

PNG_DPI = 160


def write_figures(folder: str | os.PathLike[str], chapters: Sequence[Chapter]) -> list[Path]:
    """Every figure into `folder` as EXPERIMENT-NAME.svg and .png, on white; older ones are replaced."""
    target, written = folder_for(folder), []
    for name, _, finding in named_findings(chapters):
        figure = figure_of(finding)
        if figure is None:
            continue
        for suffix in (".svg", ".png"):
            with atomic_path(target / f"{name}{suffix}") as temporary:
                if suffix == ".svg":
                    temporary.write_bytes(svg_bytes(figure))
                else:
                    # Without the "Software" entry the bytes do not change with matplotlib's version number alone.
                    figure.savefig(temporary, format="png", dpi=PNG_DPI, metadata={"Software": None})
            written.append(target / f"{name}{suffix}")
    return written

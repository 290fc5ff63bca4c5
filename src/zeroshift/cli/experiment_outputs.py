"""What `zeroshift experiment` writes: looked at before anything is run, written at the end."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from zeroshift.cli.console import console, print_warning
from zeroshift.cli.targets import check_folder, check_writable
from zeroshift.experiments import Chapter, Suite

__all__ = ["FEATURES", "Outputs"]

REPORT = "report.html"
FEATURES = "features"


@dataclass(frozen=True)
class Outputs:
    out: Path
    figures: Path | None = None
    markdown: Path | None = None
    latex: Path | None = None
    csv: Path | None = None

    @property
    def report(self) -> Path:
        return self.out / REPORT

    def check(self) -> None:
        """Refuse what could not be written, and files of others. Nothing is left behind."""
        from zeroshift.report.experiments.markdown import check_markdown
        from zeroshift.report.html import is_report

        # os.path takes a name too long for one that is not there; the folder is tried below.
        if os.path.exists(self.report) and (self.report.is_dir() or not is_report(self.report)):
            raise FileExistsError(f"{self.report} exists and is not a report of zeroshift. Fix: --out another folder.")
        if self.markdown is not None:
            check_markdown(self.markdown)
            check_writable(self.markdown)
        _try_folder(self.out, [self.report])
        for inside in ("runs", FEATURES):
            if os.path.exists(self.out / inside):
                check_folder(self.out / inside, [self.out / inside / "any.json"])
        for folder in (self.figures, self.latex, self.csv):
            if folder is not None:
                _try_folder(folder, [folder / "any.csv"])

    def write(self, chapters: Sequence[Chapter], suite: Suite, *, command: str, quiet: bool) -> list[Path]:
        """Everything that was asked for, the report in any case."""
        from zeroshift.benchmarks.machine import machine
        from zeroshift.report.experiments.csv_files import write_csv
        from zeroshift.report.experiments.figure_files import write_figures
        from zeroshift.report.experiments.latex import write_latex
        from zeroshift.report.experiments.markdown import write_markdown
        from zeroshift.report.experiments.page import write_page

        screen = console(stderr=True)
        screen.quiet = quiet
        written: list[Path] = []
        pictures: dict[str, Path] = {}
        self.out.mkdir(parents=True, exist_ok=True)
        if not quiet and not screen.is_terminal:
            typer.echo("drawing the report", err=True)
        with screen.status("drawing the report"):
            if self.figures is not None:
                drawn = _unless_none("figures", self.figures, write_figures, chapters)
                pictures = {path.stem: path for path in drawn if path.suffix == ".svg"}
                written += drawn
            zero_shot = {member.name: member.entry.load().zero_shot_accuracy() for member in suite.members}
            write_page(self.report, chapters, suite, command=command, machine=machine(), zero_shot=zero_shot)
            if self.markdown is not None:
                seen = {name: _seen_from(self.markdown, path) for name, path in pictures.items()}
                write_markdown(self.markdown, chapters, suite, command=command, figures=seen or None)
                written.append(self.markdown)
            if self.latex is not None:
                written += _unless_none("tables", self.latex, write_latex, chapters)
            if self.csv is not None:
                written += _unless_none("findings with numbers", self.csv, write_csv, chapters)
        return [*written, self.report]

    def record(self, chapters: Sequence[Chapter], suite: Suite) -> dict[str, Any]:
        from zeroshift.report.experiments.records import chapters_record

        return {**chapters_record(chapters, suite), "out": str(self.out), "report": str(self.report)}

    def show(self, chapters: Sequence[Chapter], written: Sequence[Path], *, paper: bool) -> None:
        """Tables, and where files are: each that was asked for by name, of folders how many."""
        from zeroshift.report.experiments.terminal import print_chapters
        from zeroshift.report.words import counted

        screen = console()
        print_chapters(screen, chapters, width=screen.width, paper=paper)
        for folder in (self.figures, self.latex, self.csv):
            count = sum(path.parent == folder for path in written)
            if folder is not None and count:
                screen.print(f"written: {counted(count, 'file')} in {folder}", soft_wrap=True)
        if self.markdown is not None:
            screen.print(f"written: {self.markdown}", soft_wrap=True)
        screen.print(f"report: {self.report}", soft_wrap=True)


def _try_folder(folder: Path, files: Sequence[Path]) -> None:
    """As `check_folder`; what it had to make is removed again."""
    missing = [place for place in (folder, *folder.parents) if not os.path.exists(place)]
    try:
        check_folder(folder, files)
    finally:
        _remove_empty(missing)


def _remove_empty(folders: Sequence[Path]) -> None:
    for folder in folders:
        with suppress(OSError):  # not made, or no longer empty
            folder.rmdir()


def _unless_none(what: str, folder: Path, write: Callable[..., list[Path]], chapters: Sequence[Chapter]) -> list[Path]:
    """Files in a folder; where there is nothing to write, no empty one is left, and a line says so."""
    missing = [place for place in (folder, *folder.parents) if not os.path.exists(place)]
    written = write(folder, chapters)
    if not written:
        _remove_empty(missing)
        print_warning(f"there are no {what}, so nothing is written to {folder}")
    return written


def _seen_from(document: Path, picture: Path) -> Path:
    """The way from a document to a picture, so that both can be moved together."""
    return Path(os.path.relpath(picture.resolve(), document.resolve().parent))

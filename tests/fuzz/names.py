"""Names: formulas, markup, control characters, text that runs backwards, over-long and unencodable ones.

Names of classes, samples, sets and prompt modes are data: no output executes them or is broken by them.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import tempfile
import unicodedata
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from fuzz.cases import Stream
from fuzz.commands import call
from fuzz.harness import fuzzed
from fuzz.oracles import assert_our_error
from zeroshift import FeatureSet, OnlineADAPT, ZeroShot
from zeroshift.evaluate import Comparison, compare
from zeroshift.reject import Rejects, class_distances
from zeroshift.report.contact_sheet import contact_sheet
from zeroshift.report.demo_report import render_report
from zeroshift.report.predictions import write_predictions
from zeroshift.report.tables import ReportColumn, ReportTable, write_csv_lines

PIECES = (
    "cat", '=HYPERLINK("http://x/?"&A1,"y")', "@SUM(1)", "+cmd|' /C calc'!A0", "-2+3", "\t=1", "\r=1", "=1", " =1",
    "-", "+", "@", "<fuzzed>", "<script>fuzzed()</script>", '"><img src=x onerror=fuzzed()>', "</style><script>",
    "javascript:fuzzed()", "' onmouseover='fuzzed()", "</svg>", "]]>", "<!--", "-->", "&lt;", "&#60;", "a&b",
    "\\g<9>", "\\1", "\\", "{{7*7}}", "{% raw %}", "{0}", "%s", "$x$", "$\\frac", "[red]", "[/]", "[link=http://x]",
    ":smile:", "\x1b[31m", "\x1b]0;x\x07", "\x9b31m", "\x07", "\x08", "\x7f", "\n", "\r\n", "\r", "\x0b", "\x85",
    "\u2028", "\u2029", "\u202e", "\u2066", "\u200f", "\ufeff", "\u200b", "\ud800", "\udcff", "\ufffe", "\0", "|",
    "||", "`", "```", "*", "_", "#", "---", "![x](y)", "<http://x>", "~", '"', "'", ",", ";", "\t", "Ä", "中文",
    "\U0001f600", "x" * 300, "e\u0301" * 40, "/", "../..", "C:\\x", "con", ".", "..", "~root", "$HOME", "%PATH%",
    "*?", "--out", "-h", "nan", "None", "1e5", "0",
)  # fmt: skip

names = st.one_of(
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=3).map("".join),
    st.text(st.characters(exclude_categories=[]), min_size=1, max_size=6),
)

FORMULA = re.compile(r"[=+\-@\t\r]")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def assert_no_control(text: str, what: str, allowed: str = "\n") -> None:
    """No character that moves a cursor or breaks a line, and nothing that cannot be encoded."""
    for character in text:
        bad = unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") and character not in allowed
        assert not bad, f"{what} contains {character!r}: {text[:300]!r}"


def assert_clean_csv(path: Path, rows: int | None = None) -> None:
    """Equal numbers of cells in every row, and no cell that a spreadsheet computes."""
    content = path.read_bytes().decode("utf-8")
    assert_no_control(content, "the CSV")
    lines = list(csv.reader(io.StringIO(content, newline="")))
    assert rows is None or len(lines) == rows + 1, f"{len(lines)} rows instead of {rows + 1}"
    for line in lines:
        assert len(line) == len(lines[0]), f"{len(line)} cells instead of {len(lines[0])}: {line}"
        for cell in line:
            assert not FORMULA.match(cell) or _is_number(cell), f"a spreadsheet computes the cell {cell!r}"


TEXT_ATTRIBUTES = ("title", "alt", "aria-label")
"""Attributes that a browser shows as text."""


class Page(HTMLParser):
    """What a browser would execute or load."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.active: list[str] = []
        self.policies: list[str] = []
        self._in_script = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._in_script = tag == "script"
        if tag in ("iframe", "object", "embed", "form", "base", "fuzzed", "foreignobject"):
            self.active.append(f"<{tag}>")
        for name, value in attrs:
            address = (value or "").strip().lower()
            loads = name not in TEXT_ATTRIBUTES and address.startswith(("javascript:", "http:", "//"))
            if name.startswith("on") or "fuzzed" in name or loads:
                self.active.append(f"<{tag} {name}={value!r}>")
            if name in ("id", "class") and not re.fullmatch(r"[\w\-.:# ]*", value or ""):
                self.active.append(f"<{tag} {name}={value!r}>")
        attributes = dict(attrs)
        if tag == "meta" and (attributes.get("http-equiv") or "").lower() == "content-security-policy":
            self.policies.append(attributes.get("content") or "")

    def handle_data(self, data: str) -> None:
        if self._in_script:
            self.active.append(f"script: {data[:500]}")

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False


def assert_clean_page(text: str, plain: str) -> None:
    """Nothing active that the same page with plain names does not have."""
    assert_no_control(text, "the page", allowed="\n\t")
    page, reference = Page(text), Page(plain)
    live = [one for one in page.active if one not in reference.active]
    assert not live, f"live markup from a name: {live[:3]}"
    assert page.tags.count("script") == reference.tags.count("script"), "another number of scripts"
    assert page.policies, "the page has no Content-Security-Policy"


def _set(class_names: list[str], **fields: Any) -> FeatureSet | None:
    """A set with three classes and twelve samples; None where a name is refused."""
    stream = Stream(classes=3, dimension=4, samples=12, seed=6)
    known = dict.fromkeys([*class_names, "cat", "dog", "bird"])
    try:
        return FeatureSet(
            stream.features,
            prototypes=fields.pop("prototypes", stream.prototypes),
            labels=np.arange(12) % 3,
            class_names=list(known)[:3],
            logit_scale=20.0,
            **fields,
        )
    except Exception as error:
        assert_our_error(error, "class_names", "sample_names", "prototypes", "provenance")
        return None


def _compared(features: FeatureSet, name: str) -> Comparison:
    prototypes = features.prototypes_for()
    methods = [ZeroShot(prototypes, logit_scale=20.0), OnlineADAPT(prototypes, logit_scale=20.0)]
    return compare(features, methods, name=name)


@fuzzed(
    "names",
    60,
    class_names=st.lists(names, max_size=3, unique=True),
    sample_name=names,
    mode=names,
    title=names,
)
def feature_files_keep_names(class_names: list[str], sample_name: str, mode: str, title: str) -> None:
    given = [*class_names, sample_name, mode, title]
    assume(json.loads(json.dumps(given)) == given)  # two halves of a character that stand together become it in JSON
    prototypes = Stream(classes=3, dimension=4, samples=12, seed=6).prototypes
    made = _set(
        class_names,
        sample_names=[f"{sample_name}{i}" for i in range(12)],
        prototypes={mode: prototypes, "other": prototypes},
        provenance={"title": title, title: [title]},
    )
    if made is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "set.safetensors"
        try:
            made.save(path)
        except Exception as error:
            assert_our_error(error, "class_names", "sample_names", "prototypes", "provenance", "prompt")
            assert not list(Path(folder).iterdir()), "a refused save leaves files"
            return
        again = FeatureSet.load(path, check=False)
    for name in ("class_names", "sample_names", "prompts", "default_prompt", "provenance"):
        assert getattr(again, name) == getattr(made, name), f"{name} changed: {getattr(again, name)!r}"


def _rejects(comparison: Comparison) -> Rejects:
    features = comparison.features
    return Rejects.of(class_distances(features.features, features.prototypes_for()), above=0.1)


@fuzzed(
    "names", 40, class_names=st.lists(names, min_size=1, max_size=3, unique=True), sample_name=names, set_name=names
)
def prediction_files_hold_no_formulas(class_names: list[str], sample_name: str, set_name: str) -> None:
    made = _set(class_names, sample_names=[f"{sample_name}{i}" for i in range(12)])
    if made is None:
        return
    comparison = _compared(made, set_name)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "predictions.csv"
        write_predictions(path, comparison, _rejects(comparison), top_k=2, per_class=True)
        assert_clean_csv(path, rows=12)


@fuzzed(
    "names",
    60,
    titles=st.lists(names, min_size=2, max_size=3, unique=True),
    cells=st.lists(st.tuples(names, names), min_size=1, max_size=3),
    group=names,
    width=st.integers(20, 160),
)
def tables_stay_tables(titles: list[str], cells: list[tuple[str, str]], group: str, width: int) -> None:
    columns = [ReportColumn(title) for title in titles[:2]]
    groups = [group] * len(cells)
    table = ReportTable.from_values(columns, cells, groups=groups, title=group, notes=(group,))
    markdown = table.markdown()
    assert_no_control(markdown, "the Markdown")
    columns_shown = len(table.filled.columns)  # empty columns are left out
    for line in markdown.split("\n"):
        bars = len(re.findall(r"(?<!\\)(?:\\\\)*\|", line))
        assert bars == columns_shown + 1, f"{bars - 1} columns instead of {columns_shown}: {line!r}"
    for piece in ("<script", "<img", "<fuzzed"):
        assert not re.search(rf"(?<!\\){piece}", markdown), f"live markup: {markdown!r}"
    with tempfile.TemporaryDirectory() as folder:
        write_csv_lines(Path(folder) / "table.csv", table.csv_lines(with_group=True))
        assert_clean_csv(Path(folder) / "table.csv", rows=len(cells))
    from rich.console import Console

    shown = io.StringIO()
    Console(file=shown, width=width, markup=False, highlight=False, emoji=False).print(table)
    assert_no_control(shown.getvalue(), "the terminal")
    latex = table.latex("made")
    assert_no_control(latex, "the LaTeX")
    assert _braces(latex) == 0, f"unbalanced braces: {latex!r}"


def _braces(latex: str) -> int:
    plain = re.sub(r"\\[\\{}]", "", re.sub(r"(?m)^%.*$", "", latex))
    return plain.count("{") - plain.count("}")


@cache
def _plain_pages() -> tuple[str, str]:
    made = _set(["cat", "dog", "bird"], sample_names=[f"{i}.jpg" for i in range(12)])
    assert made is not None
    comparison = _compared(made, "made")
    return render_report([comparison], command="zeroshift demo"), _sheet(comparison, "made")


def _sheet(comparison: Comparison, title: str) -> str:
    from PIL import Image

    pictures = [Image.new("RGB", (8, 8)) for _ in range(12)]
    return contact_sheet(comparison, _rejects(comparison), lambda i: pictures[i], title=title, command=title)


@fuzzed(
    "names",
    2,
    class_names=st.lists(names, min_size=1, max_size=3, unique=True),
    set_name=names,
    title=names,
)
def reports_hold_no_live_markup(class_names: list[str], set_name: str, title: str) -> None:
    made = _set(
        class_names,
        provenance={"title": title, "description": title, "licence": title, "encoder": {"statement": title}},
    )
    if made is None:
        return
    text = render_report([_compared(made, set_name)], command=title)
    assert_clean_page(text, _plain_pages()[0])


@fuzzed("names", 15, class_names=st.lists(names, min_size=1, max_size=3, unique=True), sample_name=names, title=names)
def contact_sheets_hold_no_live_markup(class_names: list[str], sample_name: str, title: str) -> None:
    made = _set(class_names, sample_names=[f"{sample_name}{i}" for i in range(12)])
    if made is None:
        return
    assert_clean_page(_sheet(_compared(made, title), title), _plain_pages()[1])


@fuzzed("names", 1, class_names=st.lists(names, min_size=1, max_size=2, unique=True), file_name=names, title=names)
def compared_files_give_clean_output(class_names: list[str], file_name: str, title: str) -> None:
    """`zeroshift compare` and `zeroshift results` on a file of this name: page, Markdown, CSV and terminal."""
    made = _set(class_names, provenance={"title": title})
    name = file_name.replace("/", "").replace("\0", "")[:60]
    if made is None or not name.strip(". ") or name.startswith("-"):
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.safetensors"
        try:
            os.fsencode(path)
            made.save(path)
        except (UnicodeEncodeError, ValueError, OSError):
            return
        out = Path(folder) / "out"
        done = call("compare", str(path), "--methods", "zero_shot,bca", "--orders", "1", "--out", str(out), "--by-set")
        if done.exit_code != 0:
            return
        assert_clean_page((out / "compare.html").read_text(encoding="utf-8"), _plain_compare_page())
        tables = Path(folder) / "table.csv", Path(folder) / "table.md"
        done = call("results", str(out), "--csv", str(tables[0]), "--markdown", str(tables[1]))
        assert done.exit_code == 0, f"results ended with {done.exit_code}: {done.stderr}"
        assert_clean_csv(tables[0])
        assert_no_control(tables[1].read_text(encoding="utf-8"), "the Markdown")


@cache
def _plain_compare_page() -> str:
    made = _set(["cat"])
    assert made is not None
    with tempfile.TemporaryDirectory() as folder:
        made.save(Path(folder) / "plain.safetensors")
        out = Path(folder) / "out"
        call("compare", f"{folder}/plain.safetensors", "--methods", "zero_shot,bca", "--orders", "1", "--out", str(out))
        return (out / "compare.html").read_text(encoding="utf-8")

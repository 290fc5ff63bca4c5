"""Names are data in every output: formulas, markup and control characters are shown, and nothing more."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from fuzz.names import PIECES, assert_clean_csv, assert_clean_page, assert_no_control
from report.classified import rejects
from zeroshift import FeatureSet, OnlineADAPT, ZeroShot
from zeroshift.evaluate import compare
from zeroshift.report.contact_sheet import contact_sheet
from zeroshift.report.demo_report import render_report
from zeroshift.report.page import identifier
from zeroshift.report.predictions import write_predictions
from zeroshift.report.style import new_figure, svg_bytes
from zeroshift.report.tables import ReportColumn, ReportTable, csv_text, write_csv_lines
from zeroshift.testing import make_problem

FEATURES, PROTOTYPES, _ = make_problem(classes=3, dimension=8, samples=12)
POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
)  # fmt: skip


def compared(piece="plain", name="set"):
    features = FeatureSet(
        FEATURES,
        prototypes=PROTOTYPES,
        labels=np.arange(12) % 3,
        class_names=[f"{piece}{i}" for i in range(3)],
        sample_names=[f"{piece}{i}.jpg" for i in range(12)],
        provenance={"title": piece, "description": piece, "licence": piece},
    )
    return compare(features, [ZeroShot(PROTOTYPES), OnlineADAPT(PROTOTYPES)], name=name)


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("=HYPERLINK(A1)", "'=HYPERLINK(A1)"),
        ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
        ("@SUM(1)", "'@SUM(1)"),
        ("-2+3", "'-2+3"),
        ("-", "'-"),
        (" =1", "' =1"),
        ("\N{FULLWIDTH EQUALS SIGN}1", "'\N{FULLWIDTH EQUALS SIGN}1"),
        ("\t=1", r"\t=1"),
        ("\r=1", r"\r=1"),
        ("a\nb", r"a\nb"),
        ("-2.5", "-2.5"),
        ("+1e5", "+1e5"),
        ("-.5", "-.5"),
        ("t-shirt", "t-shirt"),
        ("a=b", "a=b"),
        ("'quoted", "'quoted"),
        ("猫", "猫"),
        ("", ""),
    ],
)
def test_a_cell_that_a_spreadsheet_would_compute_gets_an_apostrophe(given, written):
    assert csv_text(given) == written


@pytest.mark.parametrize("piece", PIECES)
def test_predictions(piece, tmp_path):
    comparison = compared(piece)
    write_predictions(tmp_path / "p.csv", comparison, rejects(np.linspace(0, 1, 12)), per_class=True)
    assert_clean_csv(tmp_path / "p.csv", rows=12)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "p.csv").read_text(encoding="utf-8"), newline="")))
    assert [float(row["reject"]) for row in rows] == pytest.approx(np.linspace(0, 1, 12).tolist(), abs=1e-5)
    write_predictions(tmp_path / "raw.csv", comparison, rejects(np.linspace(0, 1, 12)), raw_csv=True)
    with open(tmp_path / "raw.csv", encoding="utf-8", newline="") as handle:
        names = [row["file"] for row in csv.DictReader(handle)]
    if not re.search("[\ud800-\udfff]", piece):  # which UTF-8 cannot encode
        assert names == [f"{piece}{i}.jpg" for i in range(12)]


@pytest.mark.parametrize("piece", PIECES)
def test_tables(piece, tmp_path):
    columns = (ReportColumn(f"a{piece}"), ReportColumn(piece, is_code=True, detail=piece))
    table = ReportTable.from_values(columns, [(piece, piece)], groups=[piece], title=piece, notes=(piece,))
    shown = io.StringIO()
    Console(file=shown, width=60, markup=False, highlight=False, emoji=False).print(table)
    assert_no_control(shown.getvalue(), "the terminal")
    assert_no_control(table.markdown(), "the Markdown")
    assert_no_control(table.latex("made"), "the LaTeX")
    write_csv_lines(tmp_path / "t.csv", table.csv_lines(with_group=True))
    assert_clean_csv(tmp_path / "t.csv", rows=1)
    assert table.records()[0][columns[0].key] == piece  # JSON has the name itself


@pytest.fixture(scope="module")
def plain_report():
    return render_report([compared()], command="zeroshift demo")


@pytest.mark.parametrize(
    "piece", ["<script>alert(1)</script>", '"><img src=x onerror=fuzzed()>', "\\g<9>", "\x1b[31m\n\u202e\ud800", "$x$"]
)
def test_reports(piece, plain_report):
    """A set's name was an id of its figures, and part of a pattern of a regular expression."""
    page = render_report([compared(piece, name=piece)], command=piece)
    assert_clean_page(page, plain_report)
    assert f'content="{POLICY}"' in page


def test_a_page_with_a_script_allows_this_script_alone():
    scores = rejects(np.linspace(0, 1, 12))
    page = contact_sheet(compared(), scores, lambda i: Image.new("RGB", (8, 8)), title="t", command="c")
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = POLICY.replace("base-uri", f"script-src 'sha256-{digest}'; base-uri")
    assert f'content="{policy}"' in page
    assert page.count("<script") == 1


@pytest.mark.parametrize("piece", ["<script>alert(1)</script>", "</script><img src=x onerror=fuzzed()>", '"}]//'])
def test_contact_sheets(piece):
    scores = rejects(np.linspace(0, 1, 12))
    pages = [
        contact_sheet(compared(name), scores, lambda i: Image.new("RGB", (8, 8)), title=name, command=name)
        for name in (piece, "plain")
    ]
    assert_clean_page(*pages)


def test_figures_show_names_as_text():
    figure = new_figure(2, 2)
    figure.add_subplot().set_title("a\x1b[31m<b>\ud800")
    assert rb"a\x1b[31m&lt;b&gt;\ud800" in svg_bytes(figure)


def test_identifiers_are_plain_and_different():
    found = {identifier(piece) for piece in PIECES}
    assert len(found) == len(PIECES)
    assert all(re.fullmatch(r"[\w.-]+", one, re.ASCII) for one in found)

"""The documentation site: it builds without broken links, has a page per method, and its numbers follow the records."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from statistics import mean

import pytest

from report.browser import browser
from zeroshift.methods import list_methods

ROOT = Path(__file__).parents[1]
METHODS = {method.name: method.cls for method in list_methods()}
COMPARED = json.loads((ROOT / "benchmarks" / "compare.json").read_text())


def gains(method: str) -> dict[str, float]:
    """Points over zero-shot by set."""
    return {
        name: mean(found[method].values()) - mean(found["zero_shot"].values())
        for name, found in COMPARED.items()
        if method in found
    }


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    pytest.importorskip("zensical", reason="the extra `docs` brings it")
    folder = tmp_path_factory.mktemp("docs")
    command = [sys.executable, ROOT / "scripts" / "build_docs.py", "--out", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Could not parse" not in done.stdout + done.stderr
    served = shlex.split(done.stdout.splitlines()[-1])
    assert served[-6:-1] == ["-m", "http.server", "--bind", "127.0.0.1", "--directory"]  # search needs HTTP
    assert Path(served[-1]).resolve() == folder / "site"
    return folder / "site"


class Text(HTMLParser):
    def __init__(self, page: Path) -> None:
        super().__init__()
        self.text, self.ids = "", set()
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.ids |= {value for name, value in attributes if name == "id" and value}

    def handle_data(self, data: str) -> None:
        self.text += data


def test_every_method_has_a_page(site):
    pages = {page.stem for page in (site / "methods").glob("*.html")}
    assert pages == METHODS.keys()
    navigation = (site / "methods.html").read_text("utf-8")
    for name in METHODS:
        assert f'href="methods/{name}.html"' in navigation, f"{name} is not in the navigation"


def test_a_page_of_a_method_states_idea_parameters_cost_and_gains(site):
    page = Text(site / "methods" / "tda.html").text
    cls = METHODS["tda"]
    for name in cls.declared_parameters:
        assert name == "prototypes" or name in page, f"the parameter {name} is missing"
    assert cls.complexity in page
    found = gains("tda")
    assert f"{mean(found.values()):+.1f} points" in page
    rows = [float(value) for value in re.findall(r"[+-]\d+\.\d(?=\s*\n)", page)]
    assert max(rows) == pytest.approx(max(found.values()), abs=0.051)
    assert min(rows) == pytest.approx(min(found.values()), abs=0.051)


def test_the_api_page_documents_what_it_names(site):
    named = set(re.findall(r"^::: ([\w.]+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE))
    assert len(named) > 20
    documented = Text(site / "api.html").ids
    missing = {name for name in named if not any(one == name or one.endswith("." + name) for one in documented)}
    assert not missing


def test_llms_txt_links_to_markdown_that_is_there(site):
    text = (site / "llms.txt").read_text("utf-8")
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) > 15
    for link in links:
        assert (site / link).read_text("utf-8").startswith("#"), link


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_is_a_page_with_its_outputs(site, path):
    page = Text(site / "examples" / f"{path.stem}.html").text
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        for output in cell.get("outputs", ()):
            assert "".join(output.get("text", "")) in page
    assert list((site / "examples").glob(f"{path.stem}_*.png"))
    assert (site / "examples" / path.name).is_file()


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_pages_fit_into_the_window_and_load_nothing_from_elsewhere(site, tmp_path):
    with browser(tmp_path) as chromium:
        pages = ("index.html", "choose.html", "api.html", "methods/tda.html", "examples/classify_images.html")
        for name in pages:
            for width in (1280, 390):
                chromium.open((site / name).as_uri(), width=width)
                assert chromium.evaluate("document.documentElement.scrollWidth") <= width, (name, width)
                assert all(url.startswith(("file:", "data:", "blob:")) for url in chromium.requests), chromium.requests


def test_gains_of_the_decision_table():
    text = (ROOT / "docs" / "choose.md").read_text()
    for method in (
        "anchored_mixture_transductive", "anchored_mixture_online", "t3a", "adapt_transductive", "adapt_online",
        "anchored_mixture_transductive+support", "timo", "gda_clip",
    ):  # fmt: skip
        found = gains(method)
        clip = mean(gain for name, gain in found.items() if "_clip_" in name)
        assert f"{mean(found.values()):+.1f}, {clip:+.1f}" in text, method


def test_costs_of_the_decision_table():
    measured = (ROOT / "benchmarks" / "results" / "comparison.md").read_text()
    rows = re.findall(r"^\| (`\w+`) \| ([+\d.]+) \| ([\d.]+) \| ([\d.,]+) \| ([\d.]+) \|$",
                      (ROOT / "docs" / "choose.md").read_text(), re.MULTILINE)  # fmt: skip
    assert len(rows) == 8
    for method, *values in rows:
        line = next(line for line in measured.splitlines() if line.startswith(f"| {method} |"))
        cells = [cell.strip() for cell in line.split("|")]
        assert values == [cells[5], cells[7], cells[8], cells[10]], method

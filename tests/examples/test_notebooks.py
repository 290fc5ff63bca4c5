"""The notebooks in examples/ run from the first cell to the last, and print what is stored in them."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def execute(path: Path) -> dict:
    found = importlib.util.spec_from_file_location("run_notebooks", ROOT / "scripts" / "run_notebooks.py")
    script = importlib.util.module_from_spec(found)
    found.loader.exec_module(script)
    return script.execute(path)


def cells(notebook: dict) -> list[dict]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def printed(cell: dict) -> str:
    return "".join(line for output in cell["outputs"] for line in output.get("text", ()))


def kinds(cell: dict) -> list[str]:
    return [kind for output in cell["outputs"] for kind in output.get("data", ())]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_outputs_are_complete_and_small(path):
    notebook = json.loads(path.read_text("utf-8"))
    assert path.stat().st_size < 100_000
    assert [cell["execution_count"] for cell in cells(notebook)] == list(range(1, len(cells(notebook)) + 1))
    assert "image/png" in [kind for cell in cells(notebook) for kind in kinds(cell)]
    for cell in cells(notebook):
        ast.parse("".join(cell["source"]))
        assert cell["outputs"], "a cell shows nothing: " + cell["source"][0]
    assert f"({path.name})" in (ROOT / "examples" / "README.md").read_text()


def test_there_is_one_notebook_for_images_and_one_for_features():
    assert [path.stem for path in NOTEBOOKS] == ["adapt_features", "classify_images"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run_and_print_what_is_stored(path, request, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "Agg")
    if "composed" in path.read_text():
        pytest.importorskip("sklearn", reason="the extra `offline` brings it, with two photographs")
        request.getfixturevalue("fitted_text_map")
    stored = json.loads(path.read_text("utf-8"))
    number = re.compile(r"\d+(?:\.\d+)?")
    for cell, again in zip(cells(stored), cells(execute(path)), strict=True):
        assert kinds(again) == kinds(cell)
        found, expected = printed(again), printed(cell)
        assert number.sub("#", found).split() == number.sub("#", expected).split()
        # Another BLAS may break near-ties differently.
        assert list(map(float, number.findall(found))) == pytest.approx(
            list(map(float, number.findall(expected))), abs=2.0
        )

"""Execute the notebooks in examples/ and store what they print and show.

    python scripts/run_notebooks.py [NOTEBOOK ...]

The cells run in this process, in one namespace and in a temporary folder; Jupyter is not needed. As in Jupyter, the
value of the last expression of a cell is shown: images and figures as PNG, everything else as text.
"""

from __future__ import annotations

import argparse
import ast
import base64
import contextlib
import io
import json
import os
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "examples"
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def execute(path: Path) -> dict[str, Any]:
    """The notebook with the outputs of a new run. An exception of a cell ends it."""
    notebook: dict[str, Any] = json.loads(path.read_text("utf-8"))
    namespace: dict[str, Any] = {"__name__": "__main__"}
    count = 0
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for cell in notebook["cells"]:
            if cell["cell_type"] != "code":
                continue
            count += 1
            outputs = run_cell("".join(cell["source"]), f"{path.name}, cell {count}", namespace, count)
            cell |= {"execution_count": count, "metadata": {}, "outputs": outputs}
    return {**notebook, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 4}


def run_cell(source: str, where: str, namespace: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Execute the source of a cell; returns its outputs in the format of notebooks."""
    tree = ast.parse(source, where)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, where, "exec"), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), where, "eval"), namespace)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append(
            {"output_type": "stream", "name": "stdout", "text": printed.getvalue().splitlines(keepends=True)}
        )
    if value is not None:
        outputs.append(
            {"output_type": "execute_result", "execution_count": count, "metadata": {}, "data": shown(value)}
        )
    return outputs


def shown(value: Any) -> dict[str, Any]:
    """A value by the types of data that Jupyter shows."""
    text = {"text/plain": [f"<{type(value).__name__}>"]}
    if hasattr(value, "_repr_png_"):
        return {"image/png": base64.b64encode(value._repr_png_()).decode("ascii"), **text}
    if hasattr(value, "savefig"):
        buffer = io.BytesIO()
        value.savefig(buffer, format="png", dpi=72, bbox_inches="tight")
        return {"image/png": base64.b64encode(buffer.getvalue()).decode("ascii"), **text}
    return {"text/plain": repr(value).splitlines(keepends=True)}


if __name__ == "__main__":
    os.environ.setdefault("MPLBACKEND", "Agg")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", nargs="*", type=Path, default=sorted(FOLDER.glob("*.ipynb")), metavar="NOTEBOOK")
    for notebook in parser.parse_args().notebooks:
        text = json.dumps(execute(notebook.resolve()), indent=1, ensure_ascii=False) + "\n"
        notebook.write_text(text, "utf-8")
        print(f"{notebook.name}: {len(text) / 1000:.0f} kB")

"""The measurements of `zeroshift bench` as a section of results/engines.md.

zeroshift bench --out benchmarks/engines.json
python benchmarks/engines.py
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from sections import replace_section

from zeroshift.benchmarks.tables import LEGEND, cases_markdown, growth, growth_table

RECORDS = Path(__file__).parent / "engines.json"


def section(cases: dict[str, Any]) -> str:
    """The section as Markdown, from the records alone; cases in the order of their sizes."""
    ordered = dict(sorted(cases.items(), key=lambda item: _order(item[1]["settings"])))
    where = sorted({_where(case) for case in cases.values()})
    parts = [
        cases_markdown(ordered),
        LEGEND,
        growth_table(growth(ordered)).markdown(),
        f"Measured on: {'; '.join(where)}.",
    ]
    return "\n\n".join(parts)


def _order(settings: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(settings[name] for name in ("competitors", "source", "classes", "dimension", "samples"))


def _where(case: dict[str, Any]) -> str:
    found = case["surroundings"]
    library = f"torch {found['torch']}" if "torch" in found else f"NumPy {found['numpy']}"
    return f"{found.get('device', found['machine'])}, {library}, {case['threads']} threads"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="?", type=Path, default=RECORDS, help="file written by zeroshift bench")
    parser.add_argument("--print", action="store_true", help="print the section and leave the page unchanged")
    arguments = parser.parse_args()
    text = section(json.loads(arguments.records.read_text())["cells"])
    if arguments.print:
        print(text)
    else:
        replace_section("engines", text)


if __name__ == "__main__":
    main()

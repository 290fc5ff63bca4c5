"""View-based and prompt-tuning methods beside ADAPT on the two sets of features with views: the table in RESULTS.md.

python benchmarks/views.py [--again]          needs ../shared/packs; goes on where it was stopped
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from results import RESULTS, replace_section

HERE = Path(__file__).parent
SETS = ("pack:views_cifar10c_fog_5", str(HERE.parents[1] / "shared/packs/eval/views_pacs_art_painting.npz"))
BOTH = ("adapt_online", "adapt_transductive", "tda", "dmn", "dota", "bca", "dpe")
"""Those that take views and do without: a row for each."""

VIEWS = ("mta", "zero", "awt", "ratta", "tps")
TEXT = ("tpt", "ctpt", "difftpt", "dynaprompt", "histpt", "b2tpt", "swapprompt")


def main() -> None:
    methods = ["zero_shot", *(f"{name}{more}" for name in BOTH for more in ("", "+views")), *VIEWS, *TEXT]
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "views.md"
        command = [sys.executable, "-m", "zeroshift", "compare", *SETS, "--encoder", "composed"]
        command += ["--methods", ",".join(methods), "--out", str(HERE / "compare_views"), "--markdown", str(table)]
        subprocess.run([*command, *sys.argv[1:]], check=True)
        replace_section("views", table.read_text().strip())
    print(f"written: {RESULTS}")


if __name__ == "__main__":
    main()

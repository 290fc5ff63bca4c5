"""How long `import zeroshift` and quick commands take, compared with `import numpy`, in fresh processes."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from sections import machine, replace_section

RUNS = 11
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import numpy": ["-c", "import numpy"],
    "import zeroshift": ["-c", "import zeroshift"],
    "zeroshift --version": ["-m", "zeroshift", "--version"],
    "zeroshift --help": ["-m", "zeroshift", "--help"],
    "zeroshift methods": ["-m", "zeroshift", "methods"],
}


def seconds(arguments: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> None:
    # In turn, so that a busy moment of the machine affects all of them.
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(RUNS):
        for name, arguments in COMMANDS.items():
            times[name].append(seconds(arguments))
    reference = statistics.median(times["import numpy"])
    lines = ["| command | best | median | median against `import numpy` |", "|---|---|---|---|"]
    for name, taken in times.items():
        median = statistics.median(taken)
        lines.append(f"| `{name}` | {min(taken):.3f} s | {median:.3f} s | {median / reference:.2f} |")
    table = "\n".join([*lines, "", f"{RUNS} fresh processes each, in turn; {machine()}."])
    print(table)
    replace_section("startup", table)


if __name__ == "__main__":
    main()

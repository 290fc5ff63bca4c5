"""How long `import zeroshift`, quick commands and `classify` on a cached folder take, in fresh processes.

    git worktree add /tmp/before COMMIT
    python benchmarks/startup.py [--before /tmp/before/src] [--repeats 11] [--images 200]
    python benchmarks/startup.py --before /tmp/before/src --whole

With `--before`, the same commands are run with another source tree, in turn with this one. Reported: median and range
of the wall-clock time and of the processor time, and the latter relative to `import numpy`. `classify` is given drawn
images, which a run that is not measured encodes with the composed encoder. `--whole` measures `compare` and `experiment
all` on the bundled packs instead, each in a new folder; that takes about 20 minutes.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from sections import machine, replace_section

SOURCE = Path(__file__).parents[1] / "src"
CLASSIFY = "zeroshift classify, all cached"
QUICK = {
    "python -c pass": ["-c", "pass"],
    "import numpy": ["-c", "import numpy"],
    "import zeroshift": ["-c", "import zeroshift"],
    "zeroshift.OnlineADAPT": ["-c", "import zeroshift; zeroshift.OnlineADAPT"],
    "zeroshift --version": ["-m", "zeroshift", "--version"],
    "zeroshift --help": ["-m", "zeroshift", "--help"],
    "zeroshift methods": ["-m", "zeroshift", "methods"],
}
COMPARED = (
    "zero_shot,adapt_online,anchored_mixture_online,bca,dmn,dota,dpe,ecalp,oga,t3a,tca,tda,zlap_inductive,"
    "adapt_transductive,anchored_mixture_transductive,frolic,gda_pseudo,histo_transclip,stata,transclip,zlap,"
    "gda_clip,timo,timo_s,tip_adapter"
)
WHOLE = {
    "zeroshift compare, 25 methods, 6 packs": ["-m", "zeroshift", "compare", "--quiet", "--methods", COMPARED],
    "zeroshift experiment all": ["-m", "zeroshift", "experiment", "all", "--quiet"],
}
OF_PYTHON = ("python -c pass", "import numpy")
SLOW_REPEATS = 5
"""Repeats of `classify`."""


def run(arguments: list[str], source: Path, folder: Path) -> tuple[float, float]:
    """Seconds of wall clock and of processor time."""
    # Compiled modules are kept, as in an installation, in a place of their own.
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env=environment, cwd=folder,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - began, processor


def draw_images(folder: Path, count: int) -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    folder.mkdir()
    for i in range(count):
        image = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).resize((256, 256))
        image.save(folder / f"{i:04d}.jpg")
    # A file that is seconds old could still change, and is read again.
    for path in folder.iterdir():
        os.utime(path, (1_000_000_000, 1_000_000_000))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="source tree to compare with")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--images", type=int, default=200, help="images of the cached folder; 0 leaves it out")
    parser.add_argument("--whole", action="store_true", help="measure compare and experiment all")
    options = parser.parse_args()
    trees = {**({"before": options.before.resolve()} if options.before else {}), "now": SOURCE}
    if options.whole:
        return measure_whole(trees, min(2, options.repeats))
    times: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        commands = dict.fromkeys(QUICK, options.repeats)
        arguments = dict(QUICK)
        if options.images:
            draw_images(folder / "photos", options.images)
            classify = ["-m", "zeroshift", "classify", "photos", "--classes", "cat,dog,horse", "--force", "--quiet"]
            arguments[CLASSIFY] = [*classify, "--encoder", "composed"]
            commands[CLASSIFY] = min(SLOW_REPEATS, options.repeats)
        for repeat in range(-1, options.repeats):  # the first, which compiles and encodes, does not count
            for command, repeats in commands.items():
                # In turn, so that a busy moment of the machine affects all of them.
                for tree, source in trees.items():
                    if repeat < repeats and (tree == "now" or command not in OF_PYTHON):
                        taken = run(arguments[command], source, folder)
                        if repeat >= 0:
                            times.setdefault((command, tree), []).append(taken)
    reference = statistics.median(processor for _, processor in times["import numpy", "now"])
    lines = ["| command | wall clock | processor | processor against `import numpy` |", "|---|---|---|---|"]
    for (command, tree), taken in times.items():
        wall, processor = zip(*taken, strict=True)
        label = f"`{command}`" if command in OF_PYTHON or len(trees) == 1 else f"`{command}`, {tree}"
        ratio = statistics.median(processor) / reference
        lines.append(f"| {label} | {spread(wall)} | {spread(processor)} | {ratio:.2f} |")
    images = f" `classify`: {options.images} images, {commands[CLASSIFY]} processes." if options.images else ""
    note = f"{options.repeats} fresh processes each, in turn: median, and the range.{images} {machine()}."
    table = "\n".join([*lines, "", note])
    print(table)
    replace_section("startup", table)


def measure_whole(trees: dict[str, Path], repeats: int) -> None:
    """Long commands with each tree in turn."""
    lines = ["| command | wall clock | processor |", "|---|---|---|"]
    for command, arguments in WHOLE.items():
        times: dict[str, list[tuple[float, float]]] = {tree: [] for tree in trees}
        for _ in range(repeats):
            for tree, source in trees.items():
                with tempfile.TemporaryDirectory() as folder:
                    times[tree].append(run(arguments, source, Path(folder)))
        for tree, taken in times.items():
            wall, processor = zip(*taken, strict=True)
            lines.append(f"| `{command}`, {tree} | {spread(wall)} | {spread(processor)} |")
            print(lines[-1], flush=True)
    replace_section(
        "whole", "\n".join([*lines, "", f"{repeats} runs each, in turn: median, and the range. {machine()}."])
    )


def spread(seconds: tuple[float, ...]) -> str:
    return f"{statistics.median(seconds):.3f} s ({min(seconds):.3f}-{max(seconds):.3f})"


if __name__ == "__main__":
    main()

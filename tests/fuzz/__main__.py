"""`make fuzz MINUTES=n`: search for failures on every core until the time is over, and report them.

Each worker process takes the next property in turn, runs random cases of it for some seconds, and writes one line about
it. A finding is saved to a file with the command that reproduces it. Ctrl-C ends the search early; the table is printed
all the same. The exit code is 1 if there are findings.
"""

from __future__ import annotations

import argparse
import ast
import faulthandler
import hashlib
import json
import os
import queue
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from fuzz.harness import CATEGORIES, PROPERTIES, Search, failure_signature
from fuzz.properties import load_all

ROUND_SECONDS = 8.0
"""How long a worker stays with a property."""

SILENT_SECONDS = 300.0
"""A worker without a word for so long hangs; it is ended, and that is a finding."""

PROGRESS_SECONDS = 10.0

MEMORY_BYTES = 12 * 2**30
"""Address space of a worker, so that a runaway case does not take the machine with it."""

BLOB = re.compile(r"@reproduce_failure\('([^']+)', (b'[^\n]*')\)")


# Workers


def work(options: argparse.Namespace) -> int:
    """Rounds of properties, one JSON line each: property, cases, seconds, and the finding if there was one."""
    faulthandler.enable()
    if sys.platform.startswith("linux"):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    warnings.simplefilter("ignore")
    say, sys.stdout = sys.stdout, sys.stderr
    names = chosen_properties(options)
    deadline = time.monotonic() + options.seconds
    known = set(json.loads(options.known)) if options.known else set()
    number, speeds = options.first_round, dict[str, float]()
    while time.monotonic() < deadline:
        # Worker w of n takes every n-th (property, round): no two ever do the same.
        at = number * options.workers + options.worker
        name, turn = names[at % len(names)], at // len(names)
        number += 1
        print(json.dumps({"begins": name, "round": turn}), file=say, flush=True)
        began = time.monotonic()
        search = Search(deadline=min(deadline, began + ROUND_SECONDS), known=known)
        finding = None
        try:
            PROPERTIES[name].search(
                search, seed=seed_of(options.seed, name, turn), cases=int(20 + 2 * ROUND_SECONDS * speeds.get(name, 20))
            )
        except KeyboardInterrupt:
            break
        except BaseException as error:
            finding = describe(name, error, options.seed, turn)
            known.add(finding["signature"])
        elapsed = max(time.monotonic() - began, 1e-3)
        speeds[name] = search.cases / elapsed
        line = {
            "property": name,
            "cases": search.cases,
            "repeated": search.repeated,
            "seconds": elapsed,
            "round": number,
        }
        print(json.dumps({**line, "finding": finding}), file=say, flush=True)
    return 0


def seed_of(seed: int, name: str, turn: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {name} {turn}".encode()).digest()[:8], "big")


def describe(name: str, error: BaseException, seed: int, turn: int) -> dict[str, Any]:
    """A finding as JSON values. `blob` reproduces the case, where hypothesis could."""
    notes = "\n".join(getattr(error, "__notes__", []))
    found = BLOB.search(notes)
    return {
        "property": name,
        "signature": failure_signature(name, error),
        "seed": seed,
        "round": turn,
        "hypothesis": found[1] if found else None,
        "blob": found[2] if found else None,
        "case": BLOB.sub("", notes).split("You can reproduce")[0].strip(),
        "error": "".join(traceback.format_exception(error))[-6000:],
    }


# The process that starts them


class Runner:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.names = chosen_properties(options)
        self.folder = Path(options.findings)
        self.cases: Counter[str] = Counter()
        self.seconds: Counter[str] = Counter()
        self.findings: dict[str, dict[str, Any]] = {}
        self.lines: queue.Queue[tuple[int, dict[str, Any] | None]] = queue.Queue()
        self.workers: dict[int, subprocess.Popen[str]] = {}
        self.begun: dict[int, tuple[float, str, int]] = {}
        """By worker: when it last reported, the property it works on, and the round."""
        self.rounds = [0] * options.workers
        self.end = 0.0

    def run(self) -> int:
        print(f"seed {self.options.seed}, {len(self.names)} properties, {self.options.workers} processes", flush=True)
        self.retry_findings()
        self.rounds = self.earlier_rounds()
        self.end = time.monotonic() + 60 * self.options.minutes
        try:
            for worker in range(self.options.workers):
                self.start(worker)
            self.follow()
        except KeyboardInterrupt:
            print("\ninterrupted: this is what was found so far")
        finally:
            for process in self.workers.values():
                process.kill()
        self.save_rounds()
        return self.report()

    def retry_findings(self) -> None:
        """Findings of earlier runs: those that no longer fail are removed, the others count."""
        for path in sorted(self.folder.glob("*.json")) if self.folder.is_dir() else []:
            if path.name == "rounds.json":
                continue
            finding = json.loads(path.read_text())
            if finding["property"] not in self.names:
                continue
            error = reproduce(finding)
            if error is None:
                print(f"fixed since the last run: {path.name}", flush=True)
                path.unlink()
            else:
                print(f"still fails: {path.name}", flush=True)
                self.findings[finding["signature"]] = finding

    def earlier_rounds(self) -> list[int]:
        """Where a run with this seed stopped, so that another one continues there."""
        try:
            saved = json.loads((self.folder / "rounds.json").read_text())
        except (OSError, ValueError):
            return self.rounds
        same = saved.get("seed") == self.options.seed and len(saved["rounds"]) == self.options.workers
        return list(saved["rounds"]) if same and saved.get("properties") == self.names else self.rounds

    def save_rounds(self) -> None:
        self.folder.mkdir(exist_ok=True)
        state = {"seed": self.options.seed, "properties": self.names, "rounds": self.rounds}
        (self.folder / "rounds.json").write_text(json.dumps(state))

    def start(self, worker: int) -> None:
        seconds = self.end - time.monotonic()
        if seconds <= 1:
            return
        command = [
            sys.executable, "-m", "fuzz", "--work", "--worker", str(worker), "--seconds", str(seconds),
            "--first-round", str(self.rounds[worker]), "--known", json.dumps(sorted(self.findings)),
            "--workers", str(self.options.workers), "--seed", str(self.options.seed), "--only", ",".join(self.names),
        ]  # fmt: skip
        # The errors of a worker go to a file: they are read only if it dies.
        self.logs = getattr(self, "logs", {})
        self.logs[worker] = tempfile.NamedTemporaryFile("w+", suffix=".log", delete=False)  # noqa: SIM115
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.logs[worker], text=True,
            start_new_session=True,
        )  # fmt: skip
        self.workers[worker] = process
        self.begun[worker] = (time.monotonic(), "", 0)
        threading.Thread(target=self.read, args=(worker, process), daemon=True).start()

    def read(self, worker: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.lines.put((worker, json.loads(line)))
        process.wait()
        self.lines.put((worker, None))

    def follow(self) -> None:
        shown = time.monotonic()
        while self.workers:
            try:
                worker, line = self.lines.get(timeout=1.0)
            except queue.Empty:
                pass
            else:
                if line is None:
                    self.ended(worker)
                elif "begins" in line:
                    self.begun[worker] = (time.monotonic(), line["begins"], line["round"])
                else:
                    self.cases[line["property"]] += line["cases"]
                    self.seconds[line["property"]] += line["seconds"]
                    self.rounds[worker] = line["round"]
                    self.begun[worker] = (time.monotonic(), "", 0)
                    if line["finding"]:
                        self.add(line["finding"])
            for worker, (since, name, _) in list(self.begun.items()):
                if worker in self.workers and time.monotonic() - since > SILENT_SECONDS:
                    print(f"{name} hangs; its process is ended", flush=True)
                    self.workers[worker].kill()
                    self.begun[worker] = (time.monotonic(), name, -1)
            if time.monotonic() - shown > PROGRESS_SECONDS:
                shown = time.monotonic()
                print(self.progress(), flush=True)

    def ended(self, worker: int) -> None:
        """A worker that ends early has crashed: that is a finding, and another one takes its place."""
        process = self.workers.pop(worker)
        _, name, turn = self.begun[worker]
        if process.returncode and time.monotonic() < self.end and name:
            log = Path(self.logs[worker].name).read_text(errors="replace")[-6000:]
            what = "hangs" if turn == -1 else f"ended the process with code {process.returncode}"
            self.add(
                {
                    "property": name, "signature": f"{name} | {what}", "seed": self.options.seed, "round": turn,
                    "hypothesis": None, "blob": None, "case": f"round {turn} of seed {self.options.seed}", "error": log,
                }
            )  # fmt: skip
            self.rounds[worker] += 1
        Path(self.logs[worker].name).unlink(missing_ok=True)
        if time.monotonic() < self.end - 2:
            self.rounds[worker] += not name
            self.start(worker)

    def add(self, finding: dict[str, Any]) -> None:
        if finding["signature"] in self.findings:
            return
        self.findings[finding["signature"]] = finding
        self.folder.mkdir(exist_ok=True)
        digest = hashlib.sha256(finding["signature"].encode()).hexdigest()[:8]
        path = self.folder / f"{finding['property']}-{digest}.json"
        finding["command"] = f"PYTHONPATH=src:tests .venv/bin/python -m fuzz --again {path}"
        path.write_text(json.dumps(finding, indent=1))
        print(f"\nFINDING {finding['signature']}\n{finding['case']}\n  {finding['command']}\n", flush=True)

    def progress(self) -> str:
        by_category = Counter(dict.fromkeys(CATEGORIES, 0))
        for name, cases in self.cases.items():
            by_category[PROPERTIES[name].category] += cases
        left = max(0, int(self.end - time.monotonic()))
        counts = ", ".join(f"{category} {cases:,}" for category, cases in by_category.items() if cases)
        return f"{left // 60}:{left % 60:02d} left, {len(self.findings)} findings; cases: {counts}"

    def report(self) -> int:
        print(f"\n{'category':<12} {'property':<52} {'cases':>10} {'minutes':>8} {'findings':>9}")
        totals = Counter[str]()
        for category in CATEGORIES:
            rows = [name for name in self.names if PROPERTIES[name].category == category]
            for name in rows:
                found = sum(finding["property"] == name for finding in self.findings.values())
                print(f"{category:<12} {name:<52} {self.cases[name]:>10,} {self.seconds[name] / 60:>8.1f} {found:>9}")
                totals[category] += self.cases[name]
        total, found = sum(totals.values()), len(self.findings)
        print(f"{'all':<12} {'':<52} {total:>10,} {sum(self.seconds.values()) / 60:>8.1f} {found:>9}")
        print("cases per category: " + ", ".join(f"{category} {totals[category]:,}" for category in CATEGORIES))
        for finding in self.findings.values():
            print(f"  {finding['signature']}\n    {finding.get('command', '')}")
        print(f"seed {self.options.seed}: the same seed in the same folder continues where this run stopped")
        return 1 if self.findings else 0


def reproduce(finding: dict[str, Any]) -> BaseException | None:
    """The exception of a finding, or None if it does not fail any more."""
    chosen = PROPERTIES[finding["property"]]
    try:
        if finding["blob"] is not None:
            chosen.reproduce(finding["hypothesis"], ast.literal_eval(finding["blob"]))
        else:
            search = Search(deadline=time.monotonic() + 4 * ROUND_SECONDS)
            chosen.search(search, seed=seed_of(finding["seed"], chosen.name, max(0, finding["round"])), cases=2000)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # The strategies have changed since: the case does not exist any more.
        return None if "DidNotReproduce" in type(error).__name__ else error
    return None


def chosen_properties(options: argparse.Namespace) -> list[str]:
    wanted = options.only.split(",") if options.only else list(CATEGORIES)
    names = [name for name, one in PROPERTIES.items() if one.category in wanted or name in wanted]
    if not names:
        sys.exit(f"--only must name categories ({', '.join(CATEGORIES)}) or properties; got {options.only!r}.")
    return names


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None, help="by default another one each time")
    parser.add_argument("--only", default="", help="categories or properties, separated by commas")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--findings", default="fuzz-findings", help="folder for findings")
    parser.add_argument("--again", type=Path, help="reproduce the finding in this file")
    for hidden, kind in (("--worker", int), ("--seconds", float), ("--first-round", int), ("--known", str)):
        parser.add_argument(hidden, type=kind, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    load_all()
    if options.again is not None:
        error = reproduce(json.loads(options.again.read_text()))
        if error is None:
            print("does not fail any more")
            return 0
        traceback.print_exception(error)
        return 1
    if options.work:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        return work(options)
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(10**6)
    return Runner(options).run()


if __name__ == "__main__":
    sys.exit(main())

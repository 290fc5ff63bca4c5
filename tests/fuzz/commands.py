"""Command lines: valid commands with hostile values of their options, run in this process.

A command ends with 0, or with 1 or 2 and an error message of one line. It never shows a traceback, leaves no temporary
file, keeps the files it does not replace, and prints no control character.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import itertools
import os
import re
import signal
import sys
import tempfile
import traceback
import typing
import unicodedata
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from fuzz.cases import Stream
from fuzz.harness import PACKAGE, fuzzed, memory_limit
from fuzz.oracles import assert_our_error
from zeroshift import FeatureSet, OnlineADAPT
from zeroshift.cli import app
from zeroshift.cli.app import load_command

MEGABYTES = 2000
"""What a command on a few samples may take, with all libraries that it imports."""

WALL_SECONDS = 60
"""A command that takes longer hangs: it waits for something that never comes."""


@dataclass(frozen=True)
class Done:
    exit_code: int
    stdout: str
    stderr: str
    error: BaseException | None


class HangsError(BaseException):
    """Not an Exception, so that nothing in between catches it."""


def call(*arguments: str) -> Done:
    """Run `zeroshift ARGUMENTS` in this process."""

    def stop(number: int, frame: Any) -> None:
        raise HangsError

    out, err = io.StringIO(), io.StringIO()
    code, raised = 0, None
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(WALL_SECONDS)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), memory_limit(MEGABYTES):
            app(list(arguments), prog_name="zeroshift")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except HangsError as error:
        raise AssertionError(f"hangs: zeroshift {' '.join(arguments)}") from error
    except Exception as error:
        code, raised = 1, error
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return Done(code, out.getvalue(), err.getvalue(), raised)


NUMBERS = (
    "0",
    "-1",
    "1",
    "2",
    "0.5",
    "1e20",
    "1e400",
    "nan",
    "inf",
    "-inf",
    "9" * 30,
    "0x10",
    "1_0",
    "١",
    "",
    " ",
    "1,2",
    "None",
)

TEXTS = (
    "", " ", "x", "no_such", "../..", "a,b", ",", "=1", "a=b", "a==b", "bank_size=8", "bank_size=-1", "bank_size=nan",
    "bank_size=99999999999999999999", "alpha=2", "alpha=", "=", "engine=direct", "engine=x", "adapt_online.alpha=0.5",
    "adapt_online.alpha=7", "zero_shot.logit_scale=1e400", "all", "online", "tda", "adapt_online",
    "anchored_mixture_online", "zero_shot", "bca", "bca,bca", "TDA", "adapt-online", "tda+views", "tip_adapter",
    "tip_adapter+support", "vanilla", "ensemble", "default", "\x1b[31mred", "a\nb", "a\rb", "\u202eabc", "<script>",
    "[red]", "%s", "{0}", "\\g<9>", "x" * 3000, "--out", "-", "--", "é", "\U0001f600", "'; rm -rf x", "$(touch x)",
    "`x`", "*", "?", "~", "\udcff", "features", "gain", "features,job", "accuracy>0.5", "accuracy>x", "seed=none",
    "job=", "stream.kind", "-gain", "gain,", "fog", "1-5", "5-1", "all,all", "dtd", "imagenet_c", "pack:cifar10",
    "pack:", "pack:../x", "pack:no_such", "cuda", "cuda:99", "mps", "float8", "random", "demo:x", "http://x/y",
)  # fmt: skip

FILES = (
    "bytes.txt", "deep.json", "digits.json", "long.txt", "set.safetensors", "state.safetensors", "set.npz",
    "features.npy", "prototypes.npy", "labels.npy", "names.txt", "out.csv", "out.npz", "out.parquet", "new.csv",
    "new.safetensors", "new.html", "new.md", "missing.npy", "missing/new.csv", "folder", "runs", "empty", "empty.npy",
    "empty.safetensors", "empty.npz", "text.csv", "random.npy", "random.safetensors", "random.npz", "fifo",
    "fifo.npy", "fifo.safetensors", "link", "dangling.csv", "loop.npy", "private.npy", "images", "images/a.png",
    "/dev/null", "/dev/zero", "/dev/stdin", "/dev/full", "", ".", "..", "/", "x" * 300 + ".csv", "~/x.csv",
    "\x1b[31m.csv", "a\nb.csv", "\udcff.csv", "new", "new.CSV", "new.txt", ".csv", "set.safetensors/x.csv",
    "out.csv/",
)  # fmt: skip


def _make(folder: Path) -> None:
    """The files that `FILES` names."""
    for name, content in _contents().items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    (folder / "folder").mkdir()
    (folder / "images").mkdir(exist_ok=True)
    for name in ("fifo", "fifo.npy", "fifo.safetensors"):
        os.mkfifo(folder / name)
    (folder / "link").symlink_to("set.safetensors")
    (folder / "dangling.csv").symlink_to("nowhere.csv")
    (folder / "loop.npy").symlink_to("loop.npy")


@cache
def _contents() -> dict[str, bytes]:
    stream = Stream(classes=3, dimension=4, samples=12, seed=6)
    labels = np.arange(12) % 3
    made = FeatureSet(stream.features, prototypes=stream.prototypes, labels=labels, class_names=["cat", "dog", "bird"])
    method = OnlineADAPT(stream.prototypes)
    method.adapt(stream.features)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made.save(folder / "set.safetensors")
        method.save(folder / "state.safetensors")
        np.savez(folder / "set.npz", features=stream.features, prototypes=stream.prototypes)
        np.save(folder / "features.npy", stream.features)
        np.save(folder / "prototypes.npy", stream.prototypes)
        np.save(folder / "labels.npy", labels)
        (folder / "names.txt").write_text("cat\ndog\nbird\n")
        (folder / "text.csv").write_text("=1,2\n")
        (folder / "bytes.txt").write_bytes(b"cat\xff\x00\x1b[31m\ndog\r\n\xed\xa0\x80")
        (folder / "deep.json").write_text("[" * 100_000 + "]" * 100_000)
        (folder / "digits.json").write_text('{"cat": [' + "9" * 10_000 + "]}")
        (folder / "long.txt").write_text("x" * 10**6)
        for empty in ("empty", "empty.npy", "empty.safetensors", "empty.npz"):
            (folder / empty).touch()
        noise = np.random.default_rng(0).bytes(600)
        for random in ("random.npy", "random.safetensors", "random.npz"):
            (folder / random).write_bytes(noise)
        for old in ("out.csv", "out.npz", "out.parquet"):
            (folder / old).write_bytes(b"old")
        done = call(
            "compare", str(folder / "set.safetensors"), "--methods", "bca", "--orders", "1", "--out", str(folder / "r")
        )
        assert done.exit_code == 0, done
        contents = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}
        records = {f"runs/{path.name}": path.read_bytes() for path in (folder / "r" / "runs").iterdir()}
        return {**contents, **records, "images/a.png": _picture()}


def _picture() -> bytes:
    from PIL import Image

    target = io.BytesIO()
    Image.new("RGB", (16, 12), (200, 10, 30)).save(target, "PNG")
    return target.getvalue()


COMMANDS = {
    "adapt": ["set.safetensors", "--out", "new.csv", "--quiet"],
    "compare": ["set.safetensors", "--methods", "bca", "--orders", "1", "--out", "compared"],
    "results": ["runs"],
    "data corrupt": ["images", "--kind", "fog", "--out", "corrupted", "--quiet"],
    "data check": ["folder"],
    "data list": [],
    "methods": [],
    "prompts": [],
    "packs": [],
    "encoders": [],
    "extract": ["images", "--encoder", "no_such", "--out", "new.safetensors"],
    "classify": ["images", "--encoder", "no_such", "--classes", "cat,dog", "--out", "new.csv"],
    "experiment": ["no_such"],
    "bench": ["--no-such"],
    "demo": ["--no-such"],
}
"""A valid command line each; of commands that take long, one that is refused."""

BAD_NAMES = ("", ",", "no_such", "../x", "\x1b[31m", "x" * 3000, "a\nb")

LIMITED = {
    "--packs": BAD_NAMES,
    "--encoder": BAD_NAMES,
    "--encoders": BAD_NAMES,
    "--methods": tuple(text for text in TEXTS if text not in ("all", "online", "all,all")),
    "--jobs": ("0", "-1", "x", "nan", "1e9"),
    "--workers": ("0", "-1", "x", "nan", "1e9"),
}
"""Options with values of which some, for good reasons, take long or need a network."""

REPEATED = ("--set", "--where")


def _options(command: str) -> dict[str, tuple[str, ...]]:
    """The options of a command with values for each. ARGUMENT stands for its first argument; a flag has no values."""
    first, *rest = command.split()
    loaded = load_command(first)
    for name in rest:
        loaded = loaded.commands[name]
    kinds = {name: str(kind) for name, kind in typing.get_type_hints(inspect.unwrap(loaded.callback)).items()}
    options: dict[str, tuple[str, ...]] = {"--no-such": TEXTS}
    for parameter in loaded.params:
        kind = kinds.get(parameter.name, "")
        values = FILES if "Path" in kind else NUMBERS if "int" in kind or "float" in kind else (*TEXTS, *FILES)
        if parameter.param_type_name == "argument":
            options.setdefault("ARGUMENT", values)
        elif parameter.name not in ("help", "version"):
            name = max(parameter.opts, key=len)
            options[name] = LIMITED.get(name, () if parameter.is_flag else values)
    return options


OPTIONS = {command: _options(command) for command in COMMANDS}


@st.composite
def command_lines(draw: Any) -> tuple[str, tuple[tuple[str, str | None], ...]]:
    command = draw(st.sampled_from(list(COMMANDS)))
    options = OPTIONS[command]
    chosen = draw(st.lists(st.sampled_from(sorted(options)), min_size=1, max_size=3, unique=True))
    return command, tuple((name, draw(st.sampled_from(options[name])) if options[name] else None) for name in chosen)


def _arguments(command: str, changes: tuple[tuple[str, str | None], ...]) -> list[str]:
    arguments = list(COMMANDS[command])
    for name, value in changes:
        if name == "ARGUMENT":
            arguments[:1] = [str(value)]
            continue
        if name in arguments and name not in REPEATED:
            at = arguments.index(name)
            del arguments[at : at + (1 if value is None else 2)]
        arguments += [name] if value is None else [name, value]
    return [*command.split(), *arguments]


def snapshot(folder: Path) -> dict[str, Any]:
    """Every file of a folder with its content."""
    found: dict[str, Any] = {}
    for root, _, names in os.walk(folder):
        for name in names:
            path = Path(root) / name
            regular = path.is_file() and not path.is_symlink()
            found[str(path.relative_to(folder))] = (
                path.read_bytes() if regular else path.is_symlink() and os.readlink(path)
            )
    return found


@contextmanager
def working_folder() -> Iterator[Path]:
    """A new folder with the files that commands read, as the current folder."""
    with tempfile.TemporaryDirectory() as name, chdir(name):
        _make(Path(name))
        yield Path(name)


@fuzzed("commands", 40, line=command_lines())
def commands_end_with_a_result_or_an_error(line: tuple[str, tuple[tuple[str, str | None], ...]]) -> None:
    command, changes = line
    arguments = _arguments(command, changes)
    with working_folder() as folder:
        before = snapshot(folder)
        done = call(*arguments)
        _check(done, arguments, before, snapshot(folder))
        if done.exit_code == 2:
            _check_message(arguments)


def _check(done: Done, arguments: list[str], before: dict[str, Any], after: dict[str, Any]) -> None:
    if done.error is not None:
        trace = "".join(traceback.format_exception(done.error)[-4:])
        raise AssertionError(f"a traceback: {type(done.error).__name__}: {done.error}\n{trace}") from done.error
    assert done.exit_code in (0, 1, 2), f"exit code {done.exit_code}"
    for text in (done.stdout, done.stderr):
        plain = re.sub(r"\x1b\[[0-9;]*m|\x1b\[\?25[hl]|\r|\x1b\[[0-9]*[AK]|\x1b\[2K", "", text)  # styles of our own
        bad = next((c for c in plain if unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t"), None)
        assert bad is None, f"prints {bad!r}: {plain[:500]!r}"
        assert "Traceback" not in text, f"a traceback: {text[-500:]}"
    if done.exit_code == 2 and arguments:
        assert "rror" in done.stderr, f"no error message: {done.stderr!r}"
    new = set(after) - set(before) - set(arguments)
    named = {part for argument in arguments for part in Path(argument).parts}
    left = [path for path in new if any(part.startswith(".") and part not in named for part in Path(path).parts)]
    assert not left, f"leaves {left}"
    if not {"--force", "--again"} & set(arguments):
        replaced = {value for name, value in itertools.pairwise(arguments) if name in ("--save-state", "--markdown")}
        changed = [path for path, content in before.items() if after.get(path, "removed") != content]
        assert set(changed) <= {os.path.normpath(path) for path in replaced}, f"{changed} changed or removed"


def _check_message(arguments: list[str]) -> None:
    """The error that the message came from is one of ours, or names its file."""
    os.environ["ZEROSHIFT_DEBUG"] = "1"
    try:
        error = call(*arguments).error
    finally:
        del os.environ["ZEROSHIFT_DEBUG"]
    if error is None or (isinstance(error, OSError) and error.filename is not None):
        return
    assert_our_error(error, kinds=(ValueError, TypeError, OSError, ImportError, MemoryError))


INTERRUPTED = (
    ["adapt", "set.safetensors", "--out", "new.csv", "--save-state", "new.safetensors", "--quiet"],
    ["adapt", "set.safetensors", "--out", "out.csv", "--force", "--method", "adapt_online"],
    ["adapt", "set.safetensors", "--out", "out.npz", "--force", "--method", "tda"],
    ["adapt", "set.safetensors", "--out", "new.parquet", "--method", "bca"],
    [
        "compare",
        "set.safetensors",
        "--methods",
        "bca,t3a",
        "--orders",
        "1",
        "--out",
        "compared",
        "--markdown",
        "new.md",
    ],
    ["results", "runs", "--csv", "new.csv", "--markdown", "new.md"],
    ["data", "corrupt", "images", "--kind", "fog", "--out", "corrupted"],
)


@fuzzed(
    "commands",
    4,
    arguments=st.sampled_from(INTERRUPTED),
    place=st.floats(0, 1),
    number=st.sampled_from([signal.SIGINT, signal.SIGTERM, signal.SIGHUP]),
)
def stopped_commands_leave_nothing_behind(arguments: list[str], place: float, number: int) -> None:
    """A signal at any line of a command, if the command handles it there: files are complete or as before."""
    if sys.gettrace() is not None:
        return
    lines = _count_lines(tuple(arguments))
    with working_folder() as folder:
        before = snapshot(folder)
        done = _call_with_signal(arguments, 1 + int(place * lines), number)
        after = snapshot(folder)
    assert done.error is None, f"a traceback: {''.join(traceback.format_exception(done.error)[-4:])}"
    assert done.exit_code in (0, 128 + number), f"exit code {done.exit_code}: {done.stderr}"
    left = [path for path in set(after) - set(before) if any(part.startswith(".") for part in Path(path).parts)]
    assert not left, f"leaves {left}"
    complete = _complete(tuple(arguments))
    for path, content in after.items():
        if content != before.get(path) and path in complete and Path(path).suffix in (".csv", ".npz", ".png"):
            assert content == complete[path], f"{path} is neither the old file nor the complete one"
    assert set(before) <= set(after), f"removed: {set(before) - set(after)}"


def _call_with_signal(arguments: list[str], stop: int, number: int) -> Done:
    """`stop` counts the lines of the command line, the reports and the files; 0 sends no signal."""
    begun = 0

    def follow(frame: Any, event: str, argument: Any) -> Any:
        return count if frame.f_code.co_filename.startswith(TRACED) else None

    def count(frame: Any, event: str, argument: Any) -> Any:
        nonlocal begun
        if event == "line":
            begun += 1
            # Before the command handles it, and after, the signal ends the process as it ends any other.
            if begun == stop and callable(signal.getsignal(number)) and _is_inside(frame):
                signal.raise_signal(number)
        return count

    sys.settrace(follow)
    try:
        done = call(*arguments)
    finally:
        sys.settrace(None)
    _LINES[tuple(arguments)] = begun
    return done


_LINES: dict[tuple[str, ...], int] = {}
TRACED = tuple(str(PACKAGE / name) for name in ("cli", "report", "files.py", "tensor_files.py", "evaluate", "data"))


def _is_inside(frame: Any) -> bool:
    """Whether the command itself is running, not the code that ends it."""
    names = []
    while frame is not None:
        names.append((Path(frame.f_code.co_filename).name, frame.f_code.co_name))
        frame = frame.f_back
    ending = {"_signals_raise", "__exit__", "release_claims", "print_error", "_temporary_file"}
    return ("errors.py", "invoke") in names and not any(name in ending for _, name in names)


@cache
def _complete(arguments: tuple[str, ...]) -> dict[str, Any]:
    """What the command leaves when nothing stops it."""
    with working_folder() as folder:
        done = _call_with_signal(list(arguments), 0, signal.SIGINT)
        assert done.exit_code == 0, done
        return snapshot(folder)


def _count_lines(arguments: tuple[str, ...]) -> int:
    _complete(arguments)
    return _LINES[arguments]

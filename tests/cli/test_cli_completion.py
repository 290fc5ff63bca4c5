"""`zeroshift completion`: what is offered, in bash, zsh and fish as they are used, quickly and without errors."""

import importlib.util
import os
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from zeroshift.cli.completion import PATHS, SCRIPTS, _load, answer, offer

ROOT = Path(__file__).parents[2]

SCRIPT = ROOT / "scripts" / "write_completion.py"


def load_script():
    found = importlib.util.spec_from_file_location("write_completion", SCRIPT)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_the_stored_words_are_those_of_the_commands():
    script = load_script()
    stored = script.TARGET.read_text(encoding="utf-8")
    assert stored == script.dumps(script.describe()) + "\n", "Fix: python scripts/write_completion.py"


NOT_OFFERED = {"N", "K", "D", "NUMBER", "SECONDS", "TEMPLATE", "ADDRESS", "REVISION", "NAME", "FIELD", "FIELD=VALUE"}
"""Placeholders of values that only the user knows."""

MADE = {"METHOD", "PRESET", "NAME=VALUE", "METHOD.NAME=VALUE"}


def commands(group=None, path=()):
    for name, one in (_load() if group is None else group)["commands"].items():
        if "commands" in one:
            yield from commands(one, (*path, name))
        else:
            yield (*path, name), one


def test_every_placeholder_is_known():
    data = _load()
    for path, command in commands():
        takes = [*command["arguments"], *(one["takes"] for one in command["options"].values() if "takes" in one)]
        for placeholder in takes:
            for kind in re.sub(r"(?<!,)\.\.\.$", "", placeholder).split("|"):
                base = kind.removesuffix(",...")
                is_word = base != base.upper() or not re.search("[A-Z]", base)
                assert is_word or base in {*PATHS, *data["words"], *NOT_OFFERED, *MADE}, (path, placeholder)


def test_every_option_can_be_completed():
    for path, command in commands():
        for name, one in command["options"].items():
            assert name in offer(path, name).words
            for also in (name, *one.get("also", ())):
                offered = offer([*path, also], "")
                if "takes" in one and not offered.words and not offered.paths:
                    assert set(re.split(r"\||,\.\.\.", one["takes"])) <= {*NOT_OFFERED, "PRESET", ""}, (path, also)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("ada", ["adapt"]),
        ("nonsense ", []),
        ("data ", ["list", "check", "corrupt"]),
        ("data corrupt photos --kind fo", ["fog"]),
        ("completion ", ["bash", "zsh", "fish"]),
        ("adapt --cla", ["--classes"]),
        ("adapt --class-names names.txt --cla", []),
        ("adapt --set a=1 --se", ["--set", "--second"]),
        ("adapt -- --cla", []),
        ("adapt pack:fm", ["pack:fmnist"]),
        ("adapt x -m trans", ["transclip"]),
        ("adapt x --method=trans", ["--method=transclip"]),
        ("adapt x -m nonsense", []),
        ("adapt x -m tda+", ["tda+filter"]),
        ("adapt x -m anchored_mixture_online+", []),
        ("compare --methods tda,trans", ["tda,transclip", "tda,transductive"]),
        ("compare --methods tda,td", []),
        ("compare --methods zero_shot,tda+", ["zero_shot,tda+filter", "zero_shot,tda+views"]),
        ("compare --methods tda+filter+", ["tda+filter+views"]),
        ("compare --packs cifar10,fm", ["cifar10,fmnist"]),
        ("compare --packs al", ["all"]),
        ("compare one.npz pack:fm", ["pack:fmnist"]),
        ("compare -m tda,zero --set ", ["tda.", "zero."]),
        ("compare -m tda --set tda.positive_c", ["tda.positive_capacity="]),
        ("compare -m tda --set tda.released=", ["tda.released=true", "tda.released=false"]),
        ("adapt x -m tda --set positive_c", ["positive_capacity="]),
        ("adapt x -m tda --set positive_capacity=2 --set positive_c", []),
        ("adapt x -m adapt_online --set covariance=", ["covariance=shared", "covariance=per_class"]),
        ("adapt x -m adapt_online --set beta=", ["beta=none"]),
        ("adapt x -m tda+filter --set la", ["lag="]),
        ("adapt x --online --set half", ["half_life="]),
        ("adapt x --set half", []),
        ("adapt x -m tca --preset euro", ["eurosat"]),
        ("adapt x --preset euro", []),
        ("adapt x --prompts vani", ["vanilla"]),
        ("extract x --prompts vanilla,cust", ["vanilla,custom"]),
        ("extract x -e compo", ["composed"]),
        ("extract dt", ["dtd"]),
        ("extract x --severity ", ["1", "2", "3", "4", "5"]),
        ("extract x --on-error ", ["skip", "stop"]),
        ("extract x --device cu", ["cuda"]),
        ("experiment abl", ["ablation"]),
        ("experiment ablation,figure-4,bank", ["ablation,figure-4,bank-size"]),
        ("experiment ablation pack:fm", ["pack:fmnist"]),
        ("experiment ablation --data-sets dtd,euro", ["dtd,eurosat"]),
        ("methods --needs noth", ["nothing"]),
        ("methods timo", ["timo", "timo_s"]),
        ("prompts clip", ["clip_template"]),
        ("bench --engines direct,re", ["direct,replay"]),
        ("adapt x --logit-scale ", []),
    ],
)
def test_what_is_offered(line, words):
    *before, typed = line.split(" ")
    assert list(offer(before, typed).words) == words


@pytest.mark.parametrize(
    ("line", "paths"),
    [
        ("adapt ", "file"),
        ("adapt pack:", ""),
        ("adapt x --out ", "file"),
        ("adapt x --out=", "file"),
        ("adapt x --method ", ""),
        ("results ", "folder"),
        ("results one ", "folder"),
        ("extract x -e ", "folder"),
        ("demo ", ""),
    ],
)
def test_files_are_offered_where_files_are_expected(line, paths):
    *before, typed = line.split(" ")
    assert offer(before, typed).paths == paths


def test_no_space_follows_what_goes_on():
    assert offer(["adapt", "x", "--set"], "").goes_on
    assert offer(["compare", "-m"], "td").goes_on
    assert not offer(["adapt", "x", "-m"], "td").goes_on
    assert not offer(["adapt", "x", "-m", "tda", "--set"], "released=t").goes_on
    assert not offer([], "ad").goes_on


def test_options_follow_when_there_are_enough_arguments():
    assert {"--out", "--help"} <= set(offer(["adapt", "x"], "").words)
    assert "--out" not in offer(["adapt", "x", "-o", "p.csv"], "").words


def test_plug_ins_are_offered(monkeypatch):
    found = [SimpleNamespace(name="running_prior")]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: found if group == "zeroshift.methods" else [])
    assert "running_prior" in offer(["adapt", "x", "-m"], "run").words


def test_what_cannot_be_answered_prints_nothing(capsys, monkeypatch):
    monkeypatch.delenv("ZEROSHIFT_LINE", raising=False)
    answer("bash", [])
    answer("zsh", [])
    assert capsys.readouterr() == ("", "")


def test_it_is_quick(environment):
    """It imports neither NumPy nor the commands; see docs/guide.md for the time."""
    code = (
        "import sys; sys.argv[1:] = ['adapt', 'x', '--method', 'tda+']\n"
        "from zeroshift.cli import main\n"
        "main()\n"
        "slow = {'numpy', 'scipy', 'torch', 'rich', 'zeroshift.cli.adapt', 'zeroshift.methods'} & set(sys.modules)\n"
        "sys.exit(f'imported {slow}' if slow else 0)\n"
    )
    asked = {**environment, "ZEROSHIFT_COMPLETE": "zsh"}
    done = subprocess.run([sys.executable, "-c", code], env=asked, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == "none space"
    assert [line.split("\t")[0] for line in done.stdout.splitlines()[1:]] == ["tda+filter"]


def test_the_scripts_are_printed(call):
    for shell, script in SCRIPTS.items():
        assert call("completion", shell).stdout == script
    done = call("completion", "tcsh")
    assert (done.exit_code, "there is no completion for 'tcsh'. Fix: one of bash, zsh, fish" in done.stderr) == (
        2,
        True,
    )


# In the shells themselves. A key prints the line that is being edited.

START = {
    "bash": (
        ["bash", "--norc", "--noprofile", "-i"],
        """bind -x '"\\C-t": printf "{%s}" "$READLINE_LINE"'; bind 'set bell-style none'""",
    ),
    "zsh": (["zsh", "-f", "-i"], """show() { print -rn -- "{$BUFFER}" }; zle -N show; bindkey '^T' show"""),
    "fish": (["fish", "--no-config", "-i"], """bind \\ct 'echo \\{(commandline)\\}'"""),
}

IN_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"
)
"""Start a shell that its terminal controls: it would not be interactive otherwise."""

LINES = [
    ("zeroshift ada", "zeroshift adapt "),
    ("zeroshift adapt pack:cifar10c_f", "zeroshift adapt pack:cifar10c_fog_5 "),
    ("zeroshift adapt 'pack:fm", "zeroshift adapt 'pack:fmnist' "),
    ("zeroshift adapt x --method=transcl", "zeroshift adapt x --method=transclip "),
    ("zeroshift adapt x -m tda+", "zeroshift adapt x -m tda+filter "),
    ("zeroshift adapt x -m tda --set positive_c", "zeroshift adapt x -m tda --set positive_capacity="),
    ("zeroshift adapt x -m tda --set released=t", "zeroshift adapt x -m tda --set released=true "),
    ("zeroshift compare -m tda --set tda.positive_c", "zeroshift compare -m tda --set tda.positive_capacity="),
    ("zeroshift extract x -e open_cl", "zeroshift extract x -e open_clip:ViT-B-32/laion2b_s34b_b79k "),
    ("zeroshift classify x --classes 'hot dog,a:b' --met", "zeroshift classify x --classes 'hot dog,a:b' --method "),
    ("zeroshift adapt fea", "zeroshift adapt features.npz "),
    ("zeroshift adapt x --prototypes=fea", "zeroshift adapt x --prototypes=features.npz "),
    ("zeroshift adapt x --classes my\\ folder/cl", "zeroshift adapt x --classes my\\ folder/class\\ names.txt "),
    ("zeroshift adapt x --classes 'my folder/cl", "zeroshift adapt x --classes 'my folder/class names.txt' "),
    ("zeroshift adapt x --method fea", "zeroshift adapt x --method fea"),
    ("zeroshift nonsense fea", "zeroshift nonsense fea"),
]


@pytest.mark.parametrize("shell", START)
def test_in_the_shell(shell, environment, tmp_path):
    pty = pytest.importorskip("pty", reason="there are no pseudo-terminals on Windows")
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "features.npz").touch()
    (tmp_path / "my folder").mkdir()
    (tmp_path / "my folder" / "class names.txt").touch()
    program = tmp_path / "bin" / "zeroshift"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m zeroshift "$@"\n')
    program.chmod(0o755)
    script = tmp_path / "bin" / f"completion.{shell}"
    script.write_text(SCRIPTS[shell])
    arguments, show = START[shell]
    env = {**environment, "TERM": "dumb", "COLUMNS": "200", "PATH": f"{program.parent}:{os.environ['PATH']}"}
    env.pop("ZEROSHIFT_COMPLETE", None)
    terminal, its_end = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", IN_TERMINAL, *arguments],
        stdin=its_end, stdout=its_end, stderr=its_end, cwd=tmp_path, env=env, start_new_session=True,
    )  # fmt: skip
    os.close(its_end)
    try:
        # Two quotation marks, so that the echo of this line is not taken for its output.
        os.write(terminal, f"source {script}; {show}; echo rea''dy\n".encode())
        read_until(terminal, r"ready\r?\n")
        for typed, completed in LINES:
            os.write(terminal, f"{typed}\t\x14".encode())
            found, shown = read_until(terminal, r"\{([^{}]*)\}")
            assert found[1] == completed
            assert not re.search("rror|not found|Traceback", shown)
            os.write(terminal, b"\x15")  # empties the line
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


def read_until(terminal, pattern, seconds=60):
    shown, end = "", time.monotonic() + seconds
    while time.monotonic() < end:
        if select.select([terminal], [], [], 0.1)[0]:
            shown += os.read(terminal, 65536).decode(errors="replace")
            if found := re.search(pattern, shown):
                return found, shown
    raise AssertionError(f"no {pattern!r} within {seconds} seconds in {shown!r}")

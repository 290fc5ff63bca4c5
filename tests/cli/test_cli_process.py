"""The command as a process: exit codes, output streams, Ctrl-C, imports; and messages for the terminal."""

import json
import signal
import subprocess
import sys

import pytest

import zeroshift
from zeroshift.cli.console import console, print_warning
from zeroshift.report.formatting import visible


def test_a_whole_run(shell, small_file, small, tmp_path):
    done = shell("adapt", small_file, "--out", "p.csv", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["zero_shot_accuracy"] == pytest.approx(small.zero_shot_accuracy())
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 121


def test_an_error_is_one_line_without_a_traceback(shell, small_file):
    done = shell("adapt", small_file, "--out", "p.xyz")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is sent as a POSIX signal")
def test_ctrl_c_exits_with_130_and_leaves_nothing(environment, tmp_path):
    # It says when it has begun to learn, so that the signal comes neither too early nor too late.
    code = (
        "import signal, sys\n"
        # A test run started in the background hands on an ignored Ctrl-C; a terminal does not.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from zeroshift import OnlineADAPT\n"
        "from zeroshift.cli import main\n"
        "adapt = OnlineADAPT.adapt\n"
        "def summary(self, features):\n"
        "    print('learning', file=sys.stderr, flush=True)\n"
        "    return adapt(self, features)\n"
        "OnlineADAPT.adapt = summary\n"
        "sys.argv = ['zeroshift', 'adapt', 'pack:cifar10', '-m', 'adapt_online', '--out', 'p.csv']\n"
        "main()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr.readline() == "learning\n"
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in stderr
    assert "interrupted" in stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "slow"),
    [
        (["--version"], {"numpy", "matplotlib", "jinja2", "rich", "torch", "pyarrow", "transformers", "PIL", "scipy"}),
        (["--help"], {"numpy", "matplotlib", "jinja2", "torch", "pyarrow", "transformers", "PIL", "scipy"}),
        (["methods"], {"matplotlib", "jinja2", "torch", "pyarrow", "transformers"}),
    ],
)
def test_quick_commands_import_nothing_slow(environment, arguments, slow):
    code = (
        "import sys\n"
        "from zeroshift.cli import app\n"
        "try:\n"
        f"    app({arguments!r})\n"
        "except SystemExit:\n"
        "    pass\n"
        f"slow = {slow!r} & set(sys.modules)\n"
        "sys.exit(f'imported {slow}' if slow else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    if arguments == ["--version"]:
        assert done.stdout == f"zeroshift {zeroshift.__version__}\n"


def test_importing_zeroshift_imports_nothing_that_prints_or_plots(environment):
    code = "import sys, zeroshift; print(sorted({'typer', 'rich', 'matplotlib', 'jinja2', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("photos/cat.jpg: is empty", "photos/cat.jpg: is empty"),
        ("Köln/猫.jpg", "Köln/猫.jpg"),
        ("\x1b[2Jgone.jpg", r"\x1b[2Jgone.jpg"),
        ("two\nlines", r"two\nlines"),
        ("caf\udce9.jpg", r"caf\udce9.jpg"),  # a name that is not UTF-8, as Python holds it
        ("cat\u202egpj.exe", r"cat\u202egpj.exe"),
        ("nul\0l", r"nul\x00l"),
    ],
)
def test_file_names_cannot_control_the_terminal(given, shown, capsys):
    assert visible(given) == shown
    print_warning(given)
    assert capsys.readouterr().err == f"warning: {shown}\n"
    console().print(given.replace("\n", ""), soft_wrap=True)
    assert capsys.readouterr().out == shown.replace(r"\n", "") + "\n"

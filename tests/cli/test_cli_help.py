"""`--help` of every command, and errors in how a command is called."""

import re

import pytest

from zeroshift.cli._help import documented_names, documented_parameters
from zeroshift.cli.app import COMMANDS, PANELS, load_command


def commands():
    for name in COMMANDS:
        yield from _leaves((name,), load_command(name))


def _leaves(path, command):
    if not hasattr(command, "commands"):
        yield path, command
    for name, one in getattr(command, "commands", {}).items():
        yield from _leaves((*path, name), one)


EVERY = [pytest.param(path, command, id=" ".join(path)) for path, command in commands()]


def test_every_command_is_in_a_panel(call):
    assert sorted(name for names in PANELS.values() for name in names) == sorted(COMMANDS)
    shown = call("--help", env={"COLUMNS": "80"}).stdout
    for title, names in PANELS.items():
        assert f"─ {title} ─" in shown
        assert all(re.search(rf"^│ {name} ", shown, re.MULTILINE) for name in names)


@pytest.mark.parametrize(("path", "command"), EVERY)
def test_help_of_a_command(call, path, command):
    done = call(*path, "--help", env={"COLUMNS": "80"})
    assert done.exit_code == 0
    shown, example = re.split(r"^Examples?$", done.stdout, flags=re.MULTILINE)
    assert all(line.startswith(f"  zeroshift {' '.join(path)}") for line in example.strip("\n").splitlines())
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.startswith(f"Usage: zeroshift {' '.join(path)}")
    # Types of Python and click are no words for people.
    assert not re.search(r"<(bool|str|int|float|path|list)|TEXT|INTEGER|FLOAT|RANGE|BOOLEAN|DIRECTORY", shown)
    text = re.sub(r"[│\s]+", " ", shown)
    for one in documented_parameters(command):
        assert one.help.endswith((".", "'")), one.help
        assert " ".join(one.help.split()) in text
        is_argument = one.param_type_name == "argument"
        assert is_argument or one.is_flag or one.metavar, f"{one.opts} needs a placeholder: metavar="
        for name in [one.metavar] if is_argument else documented_names(one):
            assert name in shown


@pytest.mark.parametrize(("path", "command"), EVERY)
def test_many_options_are_grouped_by_purpose(path, command):
    options = [one for one in command.params if one.param_type_name == "option"]
    panels = {one.rich_help_panel for one in options}
    assert len(options) <= 8 or None not in panels


@pytest.mark.parametrize(
    ("command", "name", "documented"),
    [
        ("adapt", "--class-names", "--classes"),
        ("classify", "--class-names", "--classes"),
        ("extract", "--class-names", "--classes"),
        ("prompts", "--class-names", "--classes"),
        ("adapt", "--prompts", "--prompt"),
        ("compare", "--prompts", "--prompt"),
        ("classify", "--prompt", "--prompts"),
        ("extract", "--prompt", "--prompts"),
        ("experiment", "--prompt", "--prompts"),
        ("compare", "--method", "--methods"),
        ("extract", "--kind", "--corruption"),
    ],
)
def test_names_of_other_commands_are_accepted_and_one_is_documented(command, name, documented):
    (option,) = [one for one in load_command(command).params if name in one.opts]
    assert documented in documented_names(option)
    assert name not in documented_names(option)


def test_both_names_of_class_names_work(call):
    answers = {call("prompts", "vanilla", option, "cat,dog").stdout for option in ("--classes", "--class-names", "-c")}
    assert answers == {"a photo of a cat.\na photo of a dog.\n"}


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["adaptt"], "zeroshift has no command 'adaptt'. Did you mean 'adapt'? Fix: one of demo, "),
        (["nonsense"], "zeroshift has no command 'nonsense'. Fix: one of demo, "),
        (["data", "chekc"], "zeroshift data has no command 'chekc'. Did you mean 'check'? Fix: one of list, "),
        (["--verison"], "zeroshift has no option --verison. Did you mean '--version'? Fix: see zeroshift --help."),
        (["adapt", "x", "--mehtod", "tda"], "zeroshift adapt has no option --mehtod. Did you mean '--method'? Fix: "),
        (["adapt", "x", "--nonsense"], "zeroshift adapt has no option --nonsense. Fix: see zeroshift adapt --help."),
        (["adapt"], "Missing argument 'FEATURES'. Fix: see zeroshift adapt --help."),
        (["adapt", "x"], "Missing option '--out'"),
        (["adapt", "x", "--out"], "Option '--out' requires an argument. Fix: see zeroshift adapt --help."),
        (["packs", "a"], "zeroshift packs takes no argument; got more: a. Fix: leave that out"),
        (
            ["classify", "x", "--classes", "cat,", "dog"],
            "with --stream, a video); got more: dog. Fix: leave that out, or put quotes around a value that contains",
        ),
        (["classify", *(f"photos/{i}.jpg" for i in range(99))], "got more: photos/1.jpg photos/2.jpg photos/3.jpg"),
        (["compare", "--orders", "few"], "got 'few'. Fix: see zeroshift compare --help."),
    ],
)
def test_a_wrong_call_is_one_line(call, arguments, line):
    done = call(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert line in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["data"]])
def test_without_a_command_the_help_is_shown(call, arguments):
    done = call(*arguments)
    assert done.exit_code == 2
    assert done.stdout == call(*arguments, "--help").stdout

"""`zeroshift methods`, `zeroshift packs`, `zeroshift --version`."""

import json
import re

import numpy as np
import pytest

import zeroshift
from zeroshift import methods
from zeroshift.cli.app import COMMANDS, load_command
from zeroshift.cli.console import print_json
from zeroshift.data import packs
from zeroshift.report.formatting import describe_needs


def test_version(call):
    assert call("--version").stdout == f"zeroshift {zeroshift.__version__}\n"


def test_methods_are_listed(call):
    done = call("methods", env={"COLUMNS": "160"})
    for method in methods.list_methods():
        assert method.name in done.stdout


def test_names_and_numbers_are_never_cut_in_a_terminal_of_80_columns(call):
    listed = call("packs", env={"COLUMNS": "80"}).stdout
    for pack in packs.list():
        views = pack.n_views or "-"
        row = rf" {pack.name} +{pack.n_samples} +{pack.n_classes} +{pack.dimension} +{views} "
        assert re.search(row, listed), pack.name
    shown = call("methods", env={"COLUMNS": "80"}).stdout
    for method in methods.list_methods():
        assert f" {method.name} " in shown
        one = call("methods", method.name, env={"COLUMNS": "80"}).stdout
        assert all(f" {parameter.name} " in one for parameter in method.parameters)
        assert "…" not in one
    assert "…" not in listed + shown


def test_methods_wrap_at_words_and_drop_columns_where_there_is_no_room(call):
    for width, columns in [(80, ["needs", "state", "cost"]), (62, ["needs", "state"]), (50, ["needs"])]:
        lines = call("methods", env={"COLUMNS": str(width)}).stdout.splitlines()
        assert lines[1].split() == ["name", *columns]
        assert max(map(len, lines)) <= width
        shown = set(" ".join(lines).split())
        for method in methods.list_methods():
            words = [*describe_needs(method).split()]
            words += method.state_size.split() if "state" in columns else []
            words += method.complexity.split() if "cost" in columns else []
            assert shown.issuperset(words), method.name


def test_names_stay_whole_in_a_narrow_terminal(call):
    for command, names in [("packs", packs.list()), ("methods", methods.list_methods())]:
        shown = call(command, env={"COLUMNS": "50"}).stdout
        assert all(f" {listed.name} " in shown for listed in names)


def test_numpy_values_are_printed_as_json(capsys):
    print_json({"default": np.float32(0.5), "pair": np.array([1, 2])})
    assert json.loads(capsys.readouterr().out) == {"default": 0.5, "pair": [1, 2]}


def test_methods_as_json(call):
    record = json.loads(call("methods", "--json").stdout)
    assert [entry["name"] for entry in record] == [method.name for method in methods.list_methods()]
    online = next(entry for entry in record if entry["name"] == "adapt_online")
    assert online["class"] == "zeroshift.adapt.online.OnlineADAPT"
    bank_size = next(entry for entry in online["parameters"] if entry["name"] == "bank_size")
    meaning = bank_size.pop("meaning")
    assert bank_size == {"name": "bank_size", "allowed": "an integer of at least 0", "required": False, "default": 16}
    assert "per class" in meaning


def test_methods_of_one_protocol(call):
    record = json.loads(call("methods", "--protocol", "transductive", "--json").stdout)
    assert {entry["protocol"] for entry in record} == {"transductive"}
    wrong = call("methods", "--protocol", "offline")
    assert (wrong.exit_code, "protocol must be one of" in wrong.stderr) == (2, True)


def test_one_method_with_its_parameters(call):
    done = call("methods", "adapt_released_online", env={"COLUMNS": "160"})
    for parameter in methods.get("adapt_released_online").parameters:
        assert parameter.name in done.stdout
        assert parameter.allowed in done.stdout
    assert "required" in done.stdout
    assert json.loads(call("methods", "zero_shot", "--json").stdout)["name"] == "zero_shot"


def test_a_misspelt_name_gets_a_suggestion(call):
    done = call("methods", "zero-shot")
    assert done.exit_code == 2
    assert "Did you mean 'zero_shot'?" in done.stderr


def test_name_and_protocol_cannot_be_combined(call):
    assert call("methods", "zero_shot", "--protocol", "online").exit_code == 2


@pytest.mark.parametrize("command", [["packs", "--json"]])
def test_packs_as_json(call, command):
    record = json.loads(call(*command).stdout)
    assert [entry["name"] for entry in record] == [pack.name for pack in packs.list()]
    assert all(entry["licence"] and entry["n_samples"] and entry["title"] for entry in record)


def test_packs_are_listed_with_their_origin(call):
    done = call("packs", env={"COLUMNS": "160"})
    for pack in packs.list():
        assert pack.name in done.stdout
        assert pack.title in done.stdout
    assert "not CLIP" in done.stdout


def test_a_wrong_command_is_a_usage_error(call):
    done = call("adaptt")
    assert done.exit_code == 2
    assert "adapt" in done.stderr


def test_the_listed_summaries_are_those_of_the_commands():
    for name, summary in COMMANDS.items():
        command = load_command(name)
        assert command.name == name
        assert " ".join(command.help.split("\n\n")[0].split()) == summary


def test_over_confident_methods_say_so(call):
    assert "over-confident: use them only to rank classes" in call("methods", "adapt_online").stdout
    assert "over-confident" not in call("methods", "anchored_mixture_online").stdout
    assert json.loads(call("methods", "gda_clip", "--json").stdout)["overconfident"] is True

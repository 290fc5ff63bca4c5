"""`zeroshift methods`, `zeroshift packs`, `zeroshift --version`."""

import json

import pytest

import zeroshift
from zeroshift import methods
from zeroshift.data import packs


def test_version(call):
    assert call("--version").stdout == f"zeroshift {zeroshift.__version__}\n"


def test_methods_are_listed(call):
    done = call("methods", env={"COLUMNS": "160"})
    for method in methods.list_methods():
        assert method.name in done.stdout


def test_methods_as_json(call):
    record = json.loads(call("methods", "--json").stdout)
    assert [entry["name"] for entry in record] == [method.name for method in methods.list_methods()]
    online = next(entry for entry in record if entry["name"] == "adapt_online")
    assert online["class"] == "zeroshift.adapt.online.OnlineADAPT"
    bank_size = next(entry for entry in online["parameters"] if entry["name"] == "bank_size")
    assert bank_size == {"name": "bank_size", "allowed": "an integer of at least 0", "required": False, "default": 16}


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


def test_a_near_miss_is_answered_with_the_name(call):
    done = call("methods", "zero-shot")
    assert done.exit_code == 2
    assert "Did you mean 'zero_shot'?" in done.stderr


def test_name_and_protocol_do_not_go_together(call):
    assert call("methods", "zero_shot", "--protocol", "online").exit_code == 2


@pytest.mark.parametrize("command", [["packs", "--json"]])
def test_packs_as_json(call, command):
    record = json.loads(call(*command).stdout)
    assert [entry["name"] for entry in record] == [pack.name for pack in packs.list()]
    assert all(entry["licence"] and entry["n_samples"] and entry["title"] for entry in record)


def test_packs_are_listed_with_the_plain_statement(call):
    done = call("packs", env={"COLUMNS": "160"})
    for pack in packs.list():
        assert pack.name in done.stdout
        assert pack.title in done.stdout
    assert "not CLIP" in done.stdout


def test_a_wrong_command_is_a_usage_error(call):
    done = call("adaptt")
    assert done.exit_code == 2
    assert "adapt" in done.stderr

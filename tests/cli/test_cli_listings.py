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
from zeroshift.encode.registry import list_families
from zeroshift.methods.inputs import method_inputs
from zeroshift.report.formatting import describe_needs, format_setting


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
        assert all(f"  {parameter.name} = " in one for parameter in method.parameters)
        assert "…" not in one
    assert "…" not in listed + shown


def test_methods_lead_with_where_to_start_and_take_a_line_each(call):
    lines = call("methods", env={"COLUMNS": "80"}).stdout.splitlines()
    assert lines[0] == "Start with"
    assert [line.split()[0] for line in lines[1:3]] == [
        "anchored_mixture_transductive", "anchored_mixture_online",
    ]  # fmt: skip
    assert "to reproduce the ADAPT paper" in lines[3]
    for method in methods.list_methods():
        assert len(method.headline) <= 47, method.name
        assert any(re.fullmatch(rf" {method.name} +{re.escape(method.headline)} *", line) for line in lines)


def test_a_method_without_a_headline_is_listed_with_its_first_sentence():
    info = methods.get("tda+filter")
    assert info.headline == "`tda` with answers that use the order of the samples"
    for method in methods.list_methods():
        assert vars(method.cls)["headline"], method.name


def test_details_of_methods_wrap_at_words_and_drop_columns_where_there_is_no_room(call):
    for width, columns in [(80, ["needs", "state", "cost"]), (62, ["needs", "state"]), (50, ["needs"])]:
        lines = call("methods", "--details", env={"COLUMNS": str(width)}).stdout.splitlines()
        assert lines[1].split() == ["name", *columns]
        assert max(map(len, lines)) <= width
        shown = set(" ".join(lines).split())
        for method in methods.list_methods():
            words = [*describe_needs(method).split()]
            words += method.state_size.split() if "state" in columns else []
            words += method.complexity.split() if "cost" in columns else []
            assert shown.issuperset(words), method.name


@pytest.mark.parametrize(
    ("options", "keeps"),
    [
        (["--needs", "nothing"], lambda method: not method_inputs(method).required),
        (["--needs", "views"], lambda method: "views" in method.needs),
        (["--takes", "views"], lambda method: "views" in (*method.needs, *method.takes)),
        (["--takes", "text", "--protocol", "episodic"],
         lambda method: "text" in method.needs and method.protocol == "episodic"),
    ],
)  # fmt: skip
def test_methods_by_their_inputs(call, options, keeps):
    record = json.loads(call("methods", *options, "--json").stdout)
    expected = [method.name for method in methods.list_methods() if keeps(method)]
    assert [entry["name"] for entry in record] == expected
    assert expected


def test_filters_of_methods_are_checked(call):
    near, far = call("methods", "--needs", "view"), call("methods", "--takes", "nonsense")
    assert "--needs: no method takes 'view'. Did you mean 'views'? Fix: one of views, " in near.stderr
    assert "--takes: no method takes 'nonsense'. Fix: one of views, " in far.stderr
    assert "No method fits" in call("methods", "--needs", "nothing", "--protocol", "few-shot").stdout


def test_ids_of_encoders_are_never_broken(call):
    shown = call("encoders", env={"COLUMNS": "80"}).stdout
    for family in list_families():
        assert f" {family.example} " in shown
        assert not family.missing or family.fix in shown


def test_experiments_and_prompts_take_few_lines(call):
    assert len(call("experiment", "list", env={"COLUMNS": "80"}).stdout.splitlines()) < 50
    assert len(call("prompts", env={"COLUMNS": "80"}).stdout.splitlines()) < 25


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
    done = call("methods", "adapt_released_online", env={"COLUMNS": "80"})
    shown = " ".join(done.stdout.split())
    for parameter in methods.get("adapt_released_online").parameters:
        value = "required" if parameter.required else format_setting(parameter.default)
        assert f"{parameter.name} = {value} {parameter.meaning} [{parameter.allowed}]" in shown
    assert "required" in shown
    assert json.loads(call("methods", "zero_shot", "--json").stdout)["name"] == "zero_shot"


def test_optional_inputs_of_a_method_are_called_so(call):
    assert "needs text, support (optional: order, initial)" in " ".join(call("methods", "coop").stdout.split())


@pytest.mark.parametrize("name", ["mint", "tnt", "batclip", "tent", "promptsrc", "dpcore", "promptalign"])
def test_a_method_on_images_says_where_it_runs(call, name):
    shown = " ".join(call("methods", name).stdout.split())
    where = "(not by classify, adapt or compare), on images, with an encoder that has CLIP's vision transformer"
    assert f"runs in Python only {where}" in shown


def test_other_methods_do_not_say_where_they_run(call):
    shown = " ".join(call("methods", "selftpt").stdout.split())
    assert "runs in Python only (not by classify, adapt or compare) state" in shown
    for name in ("tda", "tpt", "b2tpt", "coop"):
        assert "in Python only" not in call("methods", name).stdout


def test_a_method_that_learns_from_no_sample_is_scored_neither_before_nor_after(call):
    shown = {name: call("methods", name).stdout for name in ("selftpt", "zero_shot", "zlap_inductive", "tda", "tent")}
    assert [name for name in shown if "the method learns from it" in shown[name]] == ["tda", "tent"]


def test_a_misspelt_name_gets_a_suggestion(call):
    done = call("methods", "zero-shot")
    assert done.exit_code == 2
    assert "Did you mean 'zero_shot'?" in done.stderr
    for command in ("methods", "compare"):
        options = ["--methods"] if command == "compare" else []
        misspelt = call(command, *options, "adapt_onlin").stderr
        assert "Did you mean 'adapt_online'? Fix: see `zeroshift methods`." in " ".join(misspelt.split())
        assert "adapt_transductive" not in misspelt
        assert "adapt_transductive" in call(command, *options, "qqq").stderr


def test_numbers_and_models_are_described_in_plain_words(call):
    shown = " ".join(call("methods", "promptsrc").stdout.split())
    assert "any number" in shown
    assert "[an IndependentPrompts, as" in shown
    for name in [info.name for info in methods.list_methods()]:
        shown = " ".join(call("methods", name).stdout.split())
        assert "inf" not in [word.strip("[]-.,") for word in shown.split()], name


@pytest.mark.parametrize("options", [["--protocol", "online"], ["--needs", "views"], ["--details"], ["--markdown"]])
def test_a_name_and_options_of_the_list_cannot_be_combined(call, options):
    assert call("methods", "zero_shot", *options).exit_code == 2


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


def test_piped_tables_have_every_column_and_do_not_wrap(call, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    shown = call("methods", "--details").stdout
    assert shown.splitlines()[1].split() == ["name", "needs", "state", "cost"]
    for method in methods.list_methods():
        (row,) = [line for line in shown.splitlines() if line.startswith(f" {method.name} ")]
        assert row.rstrip().endswith(method.complexity)
    assert "widen the terminal" not in shown

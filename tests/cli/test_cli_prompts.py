"""`zeroshift prompts`: the modes, and the sentences they make."""

from __future__ import annotations

import json

import pytest

from zeroshift.encode.prompts import MODES, Prompts


def error_message(done) -> str:
    assert done.exit_code == 2, (done.stdout, done.exception)
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


@pytest.mark.parametrize("columns", ["50", "80", "160"])
def test_the_modes_are_listed_with_what_they_need(call, columns):
    shown = call("prompts", env={"COLUMNS": columns}).stdout
    for mode in MODES.values():
        assert f" {mode.name} " in shown
    text = " ".join(shown.split())
    assert "main results; needs --template and --descriptions (in the paper: GPT) descriptions_ensemble " in text
    assert "7 templates, averaged; needs --descriptions (in the paper: GPT & Ensemble) " in text


def test_the_modes_as_json(call):
    listed = json.loads(call("prompts", "--json").stdout)
    assert [entry["name"] for entry in listed] == list(MODES)
    assert listed[4] == {
        "name": "descriptions",
        "title": "GPT",
        "summary": MODES["descriptions"].summary,
        "needs": ["template", "descriptions"],
    }


def test_every_sentence_of_a_mode(call):
    assert call("prompts", "vanilla", "--classes", "hot_dog,cat").stdout == "a photo of a hot dog.\na photo of a cat.\n"
    lines = call("prompts", "ensemble", "--classes", "cat,dog").stdout.splitlines()
    assert len(lines) == 14
    assert lines[0] == "itap of a cat."
    assert lines[7] == "itap of a dog."


def test_sentences_as_json_with_their_hash(call):
    summary = json.loads(call("prompts", "ensemble", "--classes", "cat,dog", "--json").stdout)
    made = Prompts.named("ensemble")
    assert summary["prompts"] == {"cat": made.for_class("cat"), "dog": made.for_class("dog")}
    assert summary["hash"] == made.hash(["cat", "dog"])
    assert summary["mode"] == "ensemble"


def test_a_template_and_descriptions(call, tmp_path):
    done = call("prompts", "custom", "--classes", "cat,dog", "--template", "a {}, a type of pet.")
    assert done.stdout == "a cat, a type of pet.\na dog, a type of pet.\n"
    (tmp_path / "descriptions.json").write_text(json.dumps({"cat": ["It purrs."], "dog": ["It barks."]}))
    options = ("--template", "a {}.", "--descriptions", tmp_path / "descriptions.json")
    done = call("prompts", "descriptions", "--classes", "cat,dog", *options)
    assert done.stdout == "a cat, It purrs.\na dog, It barks.\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ensembel", "--classes", "cat,dog"], "got 'ensembel'. Did you mean 'ensemble'? Fix: use one of them"),
        (["ensemble"], "--classes is missing. Fix: zeroshift prompts ensemble --classes cat,dog."),
        (["--classes", "cat,dog"], "--classes needs a mode. Fix: zeroshift prompts ensemble --classes cat,dog."),
        (["--template", "a {}."], "--template needs a mode."),
        (["custom", "--classes", "cat,dog"], "the mode custom needs --template. Fix: add it; see `zeroshift prompts`"),
        (["vanilla", "--template", "a {}."], "the mode vanilla takes no --template. Fix: leave it out"),
        (["descriptions", "--template", "a {}."], "the mode descriptions needs --descriptions. Fix: add it"),
        (["vanilla", "--descriptions", "x.json"], "the mode vanilla takes no --descriptions"),
        (["vanilla", "--classes", "cat,cat"], "--classes has 'cat' twice (names 1 and 2)"),
        (["custom", "--classes", "cat,dog", "--template", "a pet."], "'a pet.'"),
    ],
)
def test_errors(call, arguments, message):
    assert message in error_message(call("prompts", *arguments))


def test_descriptions_that_lack_a_class_are_named_by_their_file(call, tmp_path):
    (tmp_path / "descriptions.json").write_text(json.dumps({"cat": ["It purrs."]}))
    done = call(
        "prompts", "descriptions_ensemble", "--classes", "cat,dog", "--descriptions", tmp_path / "descriptions.json"
    )
    assert f"{tmp_path / 'descriptions.json'} lacks 1 of 2 classes: 'dog'" in error_message(done)

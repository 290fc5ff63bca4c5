"""`Prompts`: counts, lazy iteration, the hash, and invalid arguments."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pickle
import subprocess
import sys

import pytest

from zeroshift.encode.prompts.prompts import MODES, Prompts
from zeroshift.encode.prompts.templates import ENSEMBLE

PETS = {
    "american_bulldog": ["It is large.", "It is white..."],
    "sphynx": ["It has no fur."],
}
PET = "a photo of a {}, a type of pet."


def test_modes_are_the_rows_of_the_papers_table():
    assert {name: (mode.title, mode.needs) for name, mode in MODES.items()} == {
        "vanilla": ("Vanilla", ()),
        "ensemble": ("Ensemble", ()),
        "clip_template": ("CLIP Template", ()),
        "custom": ("Custom", ("template",)),
        "descriptions": ("GPT", ("template", "descriptions")),
        "descriptions_ensemble": ("GPT & Ensemble", ("descriptions",)),
        "descriptions_clip_template": ("GPT & CLIP Template", ("descriptions",)),
    }
    assert all(mode.name == name for name, mode in MODES.items())


def prompts_of(mode: str, **changes) -> Prompts:
    """`mode`, with what it needs."""
    given = {"template": PET, "descriptions": PETS}
    return Prompts.named(mode, **{need: given[need] for need in MODES[mode].needs}, **changes)


@pytest.mark.parametrize(
    ("mode", "bulldog", "sphynx"),
    [
        ("vanilla", 1, 1),
        ("ensemble", 7, 7),
        ("clip_template", 80, 80),
        ("custom", 1, 1),
        ("descriptions", 2, 1),
        ("descriptions_ensemble", 14, 7),
        ("descriptions_clip_template", 160, 80),
    ],
)
def test_counts(mode, bulldog, sphynx):
    prompts = prompts_of(mode)
    assert len(prompts.for_class("american_bulldog")) == bulldog
    assert [len(of_class) for of_class in prompts.for_classes(["sphynx", "american_bulldog"])] == [sphynx, bulldog]
    assert prompts.count(["sphynx", "american_bulldog", "sphynx"]) == bulldog + 2 * sphynx
    assert prompts.count([]) == 0


def test_user_templates():
    prompts = Prompts.from_templates(template for template in ["a {}", "{} b"])
    assert prompts.mode == "templates"
    assert list(prompts.for_classes(["x_y", "z"])) == [["a x y", "x y b"], ["a z", "z b"]]
    assert Prompts.from_templates(["a {}"], clean_names=False).for_class("x_y") == ["a x_y"]


def test_for_classes_is_lazy():
    class Names(list):
        taken = 0

        def __iter__(self):
            for name in super().__iter__():
                self.taken += 1
                yield name

    names = Names(["cat"] * 10**6)
    stream = prompts_of("vanilla").for_classes(names)
    assert names.taken == 0
    assert next(stream) == ["a photo of a cat."]
    assert names.taken == 1


def test_hash_is_of_a_line_of_json_for_each_class():
    expected = hashlib.sha256(b'["a photo of a cat."]\n["a photo of a h\\u00f6t dog."]\n').hexdigest()
    assert Prompts.named("vanilla").hash(["cat", "h\u00f6t_dog"]) == expected


def test_hash_changes_with_every_character_and_with_the_classes():
    def hash_of(templates=("a {}.", "b {}."), names=("cat", "dog")) -> str:
        return Prompts.from_templates(templates).hash(names)

    hashes = [
        hash_of(),
        hash_of(names=("cat", "dot")),
        hash_of(names=("dog", "cat")),
        hash_of(names=("cat", "dog ")),
        hash_of(templates=("a {}.", "b {}")),
        hash_of(templates=("b {}.", "a {}.")),
        # The same strings in the same order, otherwise divided among classes.
        hash_of(templates=("{}",), names=("a cat.", "b cat.", "a dog.", "b dog.")),
        hash_of(names=()),
    ]
    assert len(set(hashes)) == len(hashes)


def test_hash_is_of_the_strings_and_not_of_how_they_were_made():
    assert Prompts.from_templates(ENSEMBLE).hash(["cat"]) == Prompts.named("ensemble").hash(["cat"])
    assert Prompts.named("vanilla").hash(["hot_dog"]) == Prompts.named("vanilla").hash(["hot dog"])


def test_hash_does_not_depend_on_the_process():
    code = (
        "from zeroshift.encode.prompts.prompts import Prompts\n"
        "descriptions = {name: [name, 'x.'] for name in 'abc'}\n"
        "print(Prompts.named('descriptions_ensemble', descriptions=descriptions).hash(list('cab')))"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(hashes) == 1
    assert len(hashes.pop().strip()) == 64


def test_prompts_are_frozen_and_keep_a_copy():
    descriptions = {"cat": ["It purrs."]}
    prompts = Prompts.named("descriptions_ensemble", descriptions=descriptions)
    before = prompts.for_class("cat")
    descriptions["cat"].append("It sleeps.")
    assert prompts.for_class("cat") == before
    with pytest.raises(dataclasses.FrozenInstanceError):
        prompts.mode = "vanilla"
    twin = pickle.loads(pickle.dumps(prompts))
    assert (twin, hash(twin)) == (prompts, hash(prompts))
    assert prompts != Prompts.named("descriptions_ensemble", descriptions=descriptions)


def test_describe_is_json():
    described = prompts_of("descriptions").describe()
    assert json.loads(json.dumps(described)) == described
    assert described == {
        "mode": "descriptions",
        "templates": [PET],
        "clean_names": False,
        "descriptions": {"classes": 2, "sentences": 3},
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "ensembel"}, "mode must be one of 'vanilla', .*got 'ensembel'. Did you mean 'ensemble'\\? Fix: "),
        ({"mode": "templates"}, "got 'templates'.*Prompts.from_templates for your own templates"),
        ({"mode": "custom"}, "'custom' needs template, and got none. Fix: pass template=, or .*'vanilla', 'ensemble'"),
        ({"mode": "descriptions", "template": PET}, "'descriptions' needs descriptions, and got none. Fix: "),
        (
            {"mode": "vanilla", "template": PET},
            "'vanilla' takes no template, and got 'a photo of a {}, a type of pet.'. "
            "Fix: omit template=, or use a mode with it: 'custom', 'descriptions'.$",
        ),
        ({"mode": "clip_template", "descriptions": PETS}, "takes no descriptions, and got {'american_b.* Fix: omit"),
        ({"mode": "custom", "template": ""}, "template must have {} exactly once; '' has it 0 times. Fix: put {}"),
        ({"mode": "custom", "template": "a {} or {}"}, "'a {} or {}' has it 2 times. Fix: keep only one {}"),
        ({"mode": "custom", "template": "a {c}."}, "'a {c}.' has it 0 times. Fix: write {} for {c}: 'a {}.'"),
    ],
)
def test_refused_modes(arguments, message):
    with pytest.raises(ValueError, match=message):
        Prompts.named(**arguments)


@pytest.mark.parametrize(
    ("templates", "error", "message"),
    [
        ([], ValueError, "templates is empty; at least one template is needed. Fix: "),
        ("a {}", TypeError, r"templates must be a list of strings; got the string 'a {}'. Fix: \['a {}'\]"),
        (["a {}", "a"], ValueError, r"templates\[1\] must have {} exactly once; 'a' has it 0 times. Fix: "),
        (["a {}", 3], TypeError, r"templates\[1\] must be a string; got 3. Fix: "),
    ],
)
def test_refused_templates(templates, error, message):
    with pytest.raises(error, match=message):
        Prompts.from_templates(templates)
    with pytest.raises(error, match=message):
        Prompts("mine", templates)


def test_a_class_without_descriptions_is_refused_before_the_first_is_encoded():
    prompts = prompts_of("descriptions_ensemble")
    for use in (prompts.for_classes, prompts.count, prompts.hash):
        with pytest.raises(ValueError, match=r"descriptions lacks 1 of 2 classes: 'sphinx'. Did you mean 'sphynx'"):
            use(["american_bulldog", "sphinx"])
    with pytest.raises(ValueError, match="lacks 1 of 1 classes: 'pug'"):
        prompts.for_class("pug")


def test_one_string_is_not_a_list_of_classes():
    for use in (prompts_of("vanilla").for_classes, prompts_of("vanilla").count, prompts_of("vanilla").hash):
        with pytest.raises(
            TypeError, match=r"names must be a sequence of class names; got the string 'cat'. Fix: \['cat'\]"
        ):
            use("cat")

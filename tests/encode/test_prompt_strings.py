"""Prompts equal those of published results exactly."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from zeroshift.data import catalogue
from zeroshift.encode.prompts.prompts import AWT_TEMPLATES, Prompts, awt_prompts
from zeroshift.encode.prompts.templates import CLIP_TEMPLATE, ENSEMBLE, VANILLA
from zeroshift.encode.prompts.user_text import read_descriptions

ADAPT_TEMPLATES = {info.id: info.template for info in catalogue.list()}

SHARED = Path(__file__).resolve().parents[3] / "shared" / "prompts"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"the published lists are not at {SHARED}")

PETS = {
    "american_bulldog": ["It is large.", "It is white..."],
    "sphynx": ["It has no fur."],
}
PET = "a photo of a {}, a type of pet."


def sha256(texts) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


@pytest.fixture(scope="module")
def published():
    return json.loads((SHARED / "classnames_templates.json").read_text(encoding="utf-8"))["templates"]


@needs_shared
def test_template_lists_are_the_published_ones(published):
    assert list(VANILLA) == published["vanilla"]
    assert list(ENSEMBLE) == published["ensemble7"]
    assert sha256(CLIP_TEMPLATE) == sha256(published["imagenet80"])
    assert {**published["custom_adapt"], "imagenet_c": "a photo of a {}."} == ADAPT_TEMPLATES
    assert {name: published["custom_awt"][name] for name in published["custom_adapt"]} == AWT_TEMPLATES


def test_first_last_and_number_of_templates():
    assert (len(VANILLA), len(ENSEMBLE), len(CLIP_TEMPLATE)) == (1, 7, 80)
    assert (ENSEMBLE[0], ENSEMBLE[-1]) == ("itap of a {}.", "a photo of the small {}.")
    assert (CLIP_TEMPLATE[0], CLIP_TEMPLATE[-1]) == ("a bad photo of a {}.", "a tattoo of the {}.")
    assert len(set(CLIP_TEMPLATE)) == 80
    assert set(ENSEMBLE) < set(CLIP_TEMPLATE)
    assert all(template.count("{}") == 1 for template in [*CLIP_TEMPLATE, *AWT_TEMPLATES.values()])
    assert ADAPT_TEMPLATES.keys() - AWT_TEMPLATES.keys() == {"imagenet_c"}


def test_names_are_cleaned_in_modes_without_descriptions():
    assert Prompts.named("vanilla").for_class("american_bulldog") == ["a photo of a american bulldog."]
    assert Prompts.named("custom", template=PET).for_class("american_bulldog") == [
        "a photo of a american bulldog, a type of pet."
    ]
    assert Prompts.named("ensemble").for_class("Apply_Lipstick") == [
        "itap of a Apply Lipstick.",
        "a bad photo of the Apply Lipstick.",
        "a origami Apply Lipstick.",
        "a photo of the large Apply Lipstick.",
        "a Apply Lipstick in a video game.",
        "art of the Apply Lipstick.",
        "a photo of the small Apply Lipstick.",
    ]
    assert Prompts.named("vanilla", clean_names=False).for_class("a_b") == ["a photo of a a_b."]


@pytest.mark.parametrize(
    ("data_set", "name", "description", "prompt"),
    [
        (
            "imagenet_r",
            "great white shark",
            "The art piece may showcase the great white shark's distinct pointed snout and large, sharp teeth.",
            "a rendition photo of a great white shark, The art piece may showcase the great white shark's distinct "
            "pointed snout and large, sharp teeth.",
        ),
        (
            "oxford_flowers",
            "hard-leaved pocket orchid",
            "The petals of the hard-leaved pocket orchid are primarily shades of green.",
            "a photo of a hard-leaved pocket orchid, The petals of the hard-leaved pocket orchid are primarily shades "
            "of green., a type of flower.",
        ),
        (
            "oxford_pets",
            "american_bulldog",
            "The American Bulldog is a large and muscular breed of dog.",
            "a photo of a american_bulldog, The American Bulldog is a large and muscular breed of dog., a type of pet.",
        ),
        (
            "fgvc_aircraft",
            "727-200",
            "The 727-200 Advanced has an extended range and improved performance over earlier models.",
            "a photo of a 727-200, The 727-200 Advanced has an extended range and improved performance over earlier "
            "models. from Fine-Grained Visual Classification of Aircraft.",
        ),
        ("food101", "baby_back_ribs", "They are red.", "a photo of baby_back_ribs, They are red., a type of food."),
        # Two full stops become one and nothing else is touched: not three, not those a space keeps apart, not a blank.
        ("imagenet_c", "St. Bernard", "Big...", "a photo of a St. Bernard, Big.."),
        ("sun397", "abbey", "Old. ", "a photo of a abbey, Old. ."),
        ("dtd", "braided", "", "braided,  texture."),
        ("eurosat", "forest", "Two\nlines", "satellite photo of the forest, Two\nlines."),
    ],
)
def test_descriptions_are_spliced_in_at_the_class_name(data_set, name, description, prompt):
    descriptions = {name: [description, "."]}
    prompts = Prompts.named("descriptions", template=ADAPT_TEMPLATES[data_set], descriptions=descriptions)
    assert prompts.for_class(name)[0] == prompt


@needs_shared
@pytest.mark.filterwarnings("ignore:.*blank sentences")
@pytest.mark.parametrize(
    ("data_set", "name", "n", "first", "last"),
    [
        (
            "dtd",
            "blotchy",
            51,
            "blotchy, Blotchy patterns often feature irregular, uneven splotches of color. texture.",
            "blotchy, Blotchy textures can exhibit a dappled or spotted look. texture.",
        ),
        (
            "eurosat",
            "forest",
            52,
            "satellite photo of the forest, In the satellite image of a forest, one can see a dense canopy of trees.",
            "satellite photo of the forest, A few patches of deforested or degraded areas are visible in the "
            "satellite image.",
        ),
    ],
)
def test_published_descriptions(data_set, name, n, first, last):
    descriptions = read_descriptions(SHARED / "descriptions" / f"{data_set}.json")
    assert list(descriptions)[1] == name
    prompts = Prompts.named("descriptions", template=ADAPT_TEMPLATES[data_set], descriptions=descriptions)
    of_class = prompts.for_class(name)
    assert (len(of_class), of_class[0], of_class[-1]) == (n, first, last)


def test_descriptions_outside_templates_inside():
    prompts = Prompts.named("descriptions_ensemble", descriptions=PETS).for_class("american_bulldog")
    assert prompts[0] == "itap of a american_bulldog, It is large."
    assert prompts[1] == "a bad photo of the american_bulldog, It is large."
    assert prompts[4] == "a american_bulldog, It is large. in a video game."
    assert prompts[7] == "itap of a american_bulldog, It is white.."


def test_clean_names_with_descriptions():
    prompts = Prompts.named("descriptions", template=PET, descriptions=PETS, clean_names=True)
    assert prompts.for_class("american_bulldog")[0] == "a photo of a american bulldog, It is large., a type of pet."


def test_braces_are_only_characters():
    assert Prompts.from_templates(["{a {}}"]).for_class("{0}{}{{") == ["{a {0}{}{{}"]
    prompts = Prompts.named("descriptions", template="a {}.", descriptions={"{}": ["{} {x}"]})
    assert prompts.for_class("{}") == ["a {}, {} {x}."]


def test_awt_appends_the_first_descriptions_to_the_class():
    descriptions = [f"Fact {i}." for i in range(60)]
    prompts = awt_prompts("baby_back_ribs", AWT_TEMPLATES["food101"], descriptions)
    assert len(prompts) == 51
    assert prompts[0] == "a photo of a baby back ribs from Food101."
    assert prompts[1] == "a photo of a baby back ribs from Food101. Fact 0."
    assert prompts[-1] == "a photo of a baby back ribs from Food101. Fact 49."
    assert awt_prompts("cat", "a {}", descriptions, limit=0) == ["a cat."]
    assert awt_prompts("cat", "a {}", ["One.", "Two."]) == ["a cat.", "a cat. One.", "a cat. Two."]
    with pytest.raises(ValueError, match=r"limit must be 0 or more; got -1. Fix: 50"):
        awt_prompts("cat", "a {}", descriptions, limit=-1)
    with pytest.raises(ValueError, match=r"template must have {} exactly once"):
        awt_prompts("cat", "a cat", descriptions)

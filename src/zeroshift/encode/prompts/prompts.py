"""The prompt modes by name: the six ways the paper compares of making a prototype from text, and one it leaves out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zeroshift.encode.prompts.templates import CLIP_TEMPLATE, ENSEMBLE, VANILLA, check_template, check_templates, fill
from zeroshift.encode.prompts.user_text import checked_sentences, clean, refuse_missing
from zeroshift.suggest import did_you_mean

__all__ = ["AWT_TEMPLATES", "MODES", "USER_TEMPLATES", "Mode", "Prompts", "awt_prompts", "get_mode"]


@dataclass(frozen=True)
class Mode:
    """One way of making prompts from a class name."""

    name: str
    """What `Prompts.named` takes."""
    title: str
    """The row of the paper's table "Mean initialization comparison"; "Custom" is not in it."""
    summary: str
    templates: tuple[str, ...] | None
    """None where the template is the data set's own, or the user's."""
    needs: tuple[str, ...] = ()
    """What `Prompts.named` must be given: `"template"`, `"descriptions"`."""


_ALL = (
    Mode("vanilla", "Vanilla", "'a photo of a {}.'", VANILLA),
    Mode("ensemble", "Ensemble", "7 templates, averaged", ENSEMBLE),
    Mode("clip_template", "CLIP Template", "CLIP's 80 templates for ImageNet, averaged", CLIP_TEMPLATE),
    Mode("custom", "Custom", "the data set's own template", None, ("template",)),
    Mode(
        "descriptions",
        "GPT",
        "each description of the class in the data set's own template, averaged; the paper's main results",
        None,
        ("template", "descriptions"),
    ),
    Mode(
        "descriptions_ensemble",
        "GPT & Ensemble",
        "each description of the class in each of the 7 templates, averaged",
        ENSEMBLE,
        ("descriptions",),
    ),
    Mode(
        "descriptions_clip_template",
        "GPT & CLIP Template",
        "each description of the class in each of CLIP's 80 templates, averaged",
        CLIP_TEMPLATE,
        ("descriptions",),
    ),
)

MODES: Mapping[str, Mode] = {mode.name: mode for mode in _ALL}
"""Every mode by name, in the order of the paper's table."""


def get_mode(name: str) -> Mode:
    """The mode called `name`; a near miss is answered with the name that was probably meant.

    >>> get_mode("descriptions").needs
    ('template', 'descriptions')
    """
    if name in MODES:
        return MODES[name]
    raise ValueError(
        f"mode must be one of {', '.join(map(repr, MODES))}; got {name!r}. {did_you_mean(name, MODES)}"
        "Fix: take one of them; templates of your own go to Prompts.from_templates."
    )


# From class names to the sentences a text encoder reads, to the character as the published numbers were made.


USER_TEMPLATES = "templates"
"""The mode of prompts made from a user's own templates."""


@dataclass(frozen=True)
class Prompts:
    """What is said of each class; a class's prototype is the mean of its prompts' unit vectors, scaled to unit length.

    `Prompts.named` and `Prompts.from_templates` make one.

    Attributes
    ----------
    mode : name of the prompt mode; one of `MODES`, or "templates" for a user's own.
    templates : sentences with one `{}` each.
    descriptions : sentences by class name, each of which goes into every template behind the class name; None in the
        modes without. They are looked up by the class name to the character.
    clean_names : whether underscores in class names become spaces. Published numbers have them cleaned where there are
        no descriptions, and as they are ("american_bulldog") where there are.

    >>> prompts = Prompts.named("ensemble")
    >>> prompts.for_class("hot_dog")[:2]
    ['itap of a hot dog.', 'a bad photo of the hot dog.']
    >>> prompts.count(["hot_dog", "pizza"])
    14
    """

    mode: str
    templates: tuple[str, ...]
    # Left out of Python's own hash, because a dict has none; two that are equal still hash alike.
    descriptions: Mapping[str, Sequence[str]] | None = field(default=None, hash=False, repr=False)
    clean_names: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "templates", check_templates(self.templates))
        if self.descriptions is not None:
            # A copy: what the caller does to the mapping or its lists afterwards changes nothing here.
            object.__setattr__(self, "descriptions", checked_sentences(self.descriptions))

    @classmethod
    def named(
        cls,
        mode: str,
        *,
        template: str | None = None,
        descriptions: Mapping[str, Sequence[str]] | None = None,
        clean_names: bool | None = None,
    ) -> Prompts:
        """The prompts of one of `MODES`; `template` and `descriptions` are given where the mode needs them.

        `clean_names` None is what the published numbers have: True without descriptions, False with them.

        >>> pets = {"american_bulldog": ["It is a large breed."]}
        >>> prompts = Prompts.named("descriptions", template="a photo of a {}, a type of pet.", descriptions=pets)
        >>> prompts.for_class("american_bulldog")
        ['a photo of a american_bulldog, It is a large breed., a type of pet.']
        """
        chosen = get_mode(mode)
        for need, value in (("template", template), ("descriptions", descriptions)):
            if need in chosen.needs and value is None:
                raise ValueError(
                    f"mode {mode!r} needs {need}, and got none. "
                    f"Fix: pass {need}=, or take a mode without: {_modes(need, False)}."
                )
            if need not in chosen.needs and value is not None:
                raise ValueError(
                    f"mode {mode!r} takes no {need}, and got {value!r:.60}. "
                    f"Fix: leave {need}= out, or take a mode with it: {_modes(need, True)}."
                )
        templates = chosen.templates if template is None else (check_template(template),)
        assert templates is not None  # a mode without templates of its own needs one, which was checked
        return cls(mode, templates, descriptions, descriptions is None if clean_names is None else clean_names)

    @classmethod
    def from_templates(cls, templates: Iterable[str], *, clean_names: bool = True) -> Prompts:
        """Prompts from a user's own templates, each with exactly one `{}`.

        >>> Prompts.from_templates(["a sketch of a {}.", "a {} in the snow."]).for_class("fox")
        ['a sketch of a fox.', 'a fox in the snow.']
        """
        return cls(USER_TEMPLATES, check_templates(templates), clean_names=clean_names)

    def for_class(self, name: str) -> list[str]:
        """Every prompt of one class: description by description, and within each, template by template."""
        if not isinstance(name, str) or not name.strip():
            raise ValueError(
                f"a class name must be a string that is not blank; got {name!r}. Fix: give every class one."
            )
        text = clean(name) if self.clean_names else name
        if self.descriptions is None:
            return [fill(template, text) for template in self.templates]
        refuse_missing(self.descriptions, [name])
        return [
            # A description ends in a full stop, and so may the template behind it; the released code merges the two.
            fill(template, f"{text}, {description}").replace("..", ".")
            for description in self.descriptions[name]
            for template in self.templates
        ]

    def for_classes(self, names: Sequence[str]) -> Iterator[list[str]]:
        """The prompts of one class after the other. Lazy: a thousand classes with descriptions in the eighty templates
        are 4.2 million sentences. A class without descriptions is refused here, before the first is yielded."""
        self._check(names)
        return map(self.for_class, names)

    def count(self, names: Sequence[str]) -> int:
        """How many prompts `names` have together."""
        self._check(names)
        if self.descriptions is None:
            return len(self.templates) * len(names)
        return len(self.templates) * sum(len(self.descriptions[name]) for name in names)

    def hash(self, names: Sequence[str]) -> str:
        """SHA-256, in hexadecimal, of every prompt of every class in order: equal where the prototypes must be.

        It is of one line of JSON a class, a list of its prompts, so that it also tells where one class ends.
        """
        digest = hashlib.sha256()
        for prompts in self.for_classes(names):
            digest.update(json.dumps(prompts).encode("ascii") + b"\n")
        return digest.hexdigest()

    def describe(self) -> dict[str, Any]:
        """What can be said of the prompts in JSON, for a file's provenance; descriptions are counted, not repeated.

        >>> Prompts.named("vanilla").describe()
        {'mode': 'vanilla', 'templates': ['a photo of a {}.'], 'clean_names': True, 'descriptions': None}
        """
        described = None
        if self.descriptions is not None:
            sentences = sum(map(len, self.descriptions.values()))
            described = {"classes": len(self.descriptions), "sentences": sentences}
        return {
            "mode": self.mode,
            "templates": list(self.templates),
            "clean_names": self.clean_names,
            "descriptions": described,
        }

    def _check(self, names: Sequence[str]) -> None:
        if isinstance(names, str):
            raise TypeError(f"names must be a sequence of class names; got the string {names!r}. Fix: [{names!r}].")
        if self.descriptions is not None:
            refuse_missing(self.descriptions, names)


def _modes(need: str, needing: bool) -> str:
    """The modes that need, or do not need, something: what to take instead."""
    return ", ".join(repr(mode.name) for mode in MODES.values() if (need in mode.needs) is needing)


# AWT's prompts: its one template for each data set, and how it puts descriptions behind the class.


AWT_TEMPLATES = {
    "oxford_pets": "a photo of a {} from OxfordPets",
    "oxford_flowers": "a photo of a {}, a type of flower",
    "fgvc_aircraft": "a photo of a {} from Fine-Grained Visual Classification of Aircraft",
    "dtd": "a photo of a {}, which is a type of texture, or a type of pattern",
    "eurosat": "satellite photo of the {}",
    "stanford_cars": "a photo of a {}",
    "food101": "a photo of a {} from Food101",
    "sun397": "a photo of a {}",
    "caltech101": "a photo of a {}",
    "ucf101": "a photo of a person doing {}",
    "imagenet": "a photo of a {}",
    "imagenet_sketch": "a sketch photo of a {}",
    "imagenetv2": "a photo of a {}",
    "imagenet_a": "a photo of a {}",
    "imagenet_r": "a rendition photo of a {}",
}
"""By data set, from AWT's released code; the full stop is added by `awt_prompts`. ImageNet-C has none. (Those of ADAPT
are in the catalogue, `zeroshift.data.catalogue.get(name).template`.)"""

AWT_DESCRIPTIONS = 50
"""How many descriptions of a class AWT uses, the first ones; every class in its files has as many or more."""


def awt_prompts(name: str, template: str, descriptions: Sequence[str], limit: int = AWT_DESCRIPTIONS) -> list[str]:
    """The prompts of one class as AWT composes them: the class alone, then the class with each of the first `limit`
    descriptions behind it. AWT keeps their vectors apart; it does not average them.

    Where ADAPT puts the whole description into the slot, AWT appends it; see `zeroshift.encode.prompts.Prompts`.

    >>> awt_prompts("hot_dog", "a photo of a {}", ["It lies in a bun.", "Mustard is on top."], limit=1)
    ['a photo of a hot dog.', 'a photo of a hot dog. It lies in a bun.']
    """
    if limit < 0:
        raise ValueError(f"limit must be 0 or more; got {limit}. Fix: {AWT_DESCRIPTIONS}, as AWT has it.")
    alone = fill(check_template(template), clean(name)) + "."
    return [alone, *(f"{alone} {description}" for description in descriptions[:limit])]

"""`Prompts`: sentences for class names, exactly as in published results; the prompt modes; AWT's prompts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zeroshift.encode.prompts.templates import (
    CLIP_TEMPLATE,
    ENSEMBLE,
    VANILLA,
    check_template,
    check_templates,
    fill_template,
)
from zeroshift.encode.prompts.user_text import check_described, clean_name, validate_descriptions
from zeroshift.suggest import did_you_mean

__all__ = ["AWT_TEMPLATES", "MODES", "USER_TEMPLATES", "PromptMode", "Prompts", "awt_prompts", "get_mode"]


@dataclass(frozen=True)
class PromptMode:
    """A prompt mode: a way of making prompts from a class name."""

    name: str
    """The argument of `Prompts.named`."""
    title: str
    """The row of the paper's table "Mean initialization comparison", which does not have "Custom"."""
    summary: str
    templates: tuple[str, ...] | None
    """None if the template is that of the data set or the user."""
    needs: tuple[str, ...] = ()
    """Required arguments of `Prompts.named`: `"template"`, `"descriptions"`."""


_ALL = (
    PromptMode("vanilla", "Vanilla", "'a photo of a {}.'", VANILLA),
    PromptMode("ensemble", "Ensemble", "7 templates, averaged", ENSEMBLE),
    PromptMode("clip_template", "CLIP Template", "CLIP's 80 templates for ImageNet, averaged", CLIP_TEMPLATE),
    PromptMode(
        "custom", "Custom", "the data set's own template; not in the paper's table of prompts", None, ("template",)
    ),
    PromptMode(
        "descriptions",
        "GPT",
        "each description of the class in the data set's own template, averaged; the paper's main results",
        None,
        ("template", "descriptions"),
    ),
    PromptMode(
        "descriptions_ensemble",
        "GPT & Ensemble",
        "each description of the class in each of the 7 templates, averaged",
        ENSEMBLE,
        ("descriptions",),
    ),
    PromptMode(
        "descriptions_clip_template",
        "GPT & CLIP Template",
        "each description of the class in each of CLIP's 80 templates, averaged",
        CLIP_TEMPLATE,
        ("descriptions",),
    ),
)

MODES: Mapping[str, PromptMode] = {mode.name: mode for mode in _ALL}
"""The modes by name, in the order of the paper's table."""


def get_mode(name: str) -> PromptMode:
    """The mode with this name.

    >>> get_mode("descriptions").needs
    ('template', 'descriptions')
    """
    if name in MODES:
        return MODES[name]
    raise ValueError(
        f"mode must be one of {', '.join(map(repr, MODES))}; got {name!r}. {did_you_mean(name, MODES)}"
        "Fix: use one of them, or Prompts.from_templates for your own templates."
    )


USER_TEMPLATES = "templates"
"""The mode of prompts from a user's own templates."""


@dataclass(frozen=True)
class Prompts:
    """The prompts of each class. A prototype is the normalised mean of the unit features of its prompts.

    Created by `Prompts.named` or `Prompts.from_templates`.

    Attributes
    ----------
    mode : name of the prompt mode: one of `MODES`, or "templates" for a user's own.
    templates : sentences with one `{}` each.
    descriptions : sentences by class name; each is put into each template after the class name. None for modes without
        descriptions. Keys must equal the class names exactly.
    clean_names : whether underscores in class names become spaces. In published results they do without descriptions,
        and do not ("american_bulldog") with descriptions.

    >>> prompts = Prompts.named("ensemble")
    >>> prompts.for_class("hot_dog")[:2]
    ['itap of a hot dog.', 'a bad photo of the hot dog.']
    >>> prompts.count(["hot_dog", "pizza"])
    14
    """

    mode: str
    templates: tuple[str, ...]
    # Not part of Python's hash, because a dict is not hashable.
    descriptions: Mapping[str, Sequence[str]] | None = field(default=None, hash=False, repr=False)
    clean_names: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "templates", check_templates(self.templates))
        if self.descriptions is not None:
            # A copy, so that later changes by the caller have no effect.
            object.__setattr__(self, "descriptions", validate_descriptions(self.descriptions))

    @classmethod
    def named(
        cls,
        mode: str,
        *,
        template: str | None = None,
        descriptions: Mapping[str, Sequence[str]] | None = None,
        clean_names: bool | None = None,
    ) -> Prompts:
        """The prompts of one of `MODES`, with `template` and `descriptions` if the mode needs them.

        `clean_names` None is as in published results: True without descriptions, False with them.

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
                    f"Fix: pass {need}=, or use a mode without: {_modes(need, False)}."
                )
            if need not in chosen.needs and value is not None:
                raise ValueError(
                    f"mode {mode!r} takes no {need}, and got {value!r:.60}. "
                    f"Fix: omit {need}=, or use a mode with it: {_modes(need, True)}."
                )
        templates = chosen.templates if template is None else (check_template(template),)
        assert templates is not None  # a mode without templates requires one, as checked above
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
                f"a class name must be a string that is not blank; got {name!r}. Fix: give every class a name."
            )
        text = clean_name(name) if self.clean_names else name
        if self.descriptions is None:
            return [fill_template(template, text) for template in self.templates]
        check_described(self.descriptions, [name])
        return [
            # Both the description and the template may end in a full stop; the released code merges the two.
            fill_template(template, f"{text}, {description}").replace("..", ".")
            for description in self.descriptions[name]
            for template in self.templates
        ]

    def for_classes(self, names: Sequence[str]) -> Iterator[list[str]]:
        """The prompts of one class after the other.

        Lazy, because a thousand classes with descriptions in eighty templates have 4.2 million prompts. Raises for a
        class without descriptions before the first prompts are made.
        """
        self._check(names)
        return map(self.for_class, names)

    def count(self, names: Sequence[str]) -> int:
        """The total number of prompts of `names`."""
        self._check(names)
        if self.descriptions is None:
            return len(self.templates) * len(names)
        return len(self.templates) * sum(len(self.descriptions[name]) for name in names)

    def hash(self, names: Sequence[str]) -> str:
        """SHA-256, in hexadecimal, of all prompts in order. Equal hashes mean equal prototypes.

        The hashed text has one line of JSON per class, a list of its prompts.
        """
        digest = hashlib.sha256()
        for prompts in self.for_classes(names):
            digest.update(json.dumps(prompts).encode("ascii") + b"\n")
        return digest.hexdigest()

    def describe(self) -> dict[str, Any]:
        """A JSON-serialisable summary for provenance; descriptions are only counted.

        >>> Prompts.named("vanilla").describe()
        {'mode': 'vanilla', 'templates': ['a photo of a {}.'], 'clean_names': True, 'descriptions': None}
        """
        description_counts = None
        if self.descriptions is not None:
            sentences = sum(map(len, self.descriptions.values()))
            description_counts = {"classes": len(self.descriptions), "sentences": sentences}
        return {
            "mode": self.mode,
            "templates": list(self.templates),
            "clean_names": self.clean_names,
            "descriptions": description_counts,
        }

    def _check(self, names: Sequence[str]) -> None:
        if isinstance(names, str):
            raise TypeError(f"names must be a sequence of class names; got the string {names!r}. Fix: [{names!r}].")
        if self.descriptions is not None:
            check_described(self.descriptions, names)


def _modes(need: str, required: bool) -> str:
    """The modes that do, or do not, require `need`."""
    return ", ".join(repr(mode.name) for mode in MODES.values() if (need in mode.needs) is required)


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
"""AWT's templates by data set, from its released code; `awt_prompts` adds the full stop. ImageNet-C has none. ADAPT's
templates are in the catalogue, `zeroshift.data.catalogue.get(name).template`."""

AWT_DESCRIPTIONS = 50
"""Number of descriptions per class in AWT, the first ones; every class in its files has at least as many."""


def awt_prompts(name: str, template: str, descriptions: Sequence[str], limit: int = AWT_DESCRIPTIONS) -> list[str]:
    """AWT's prompts of one class: the class alone, then the class followed by each of the first `limit` descriptions.

    AWT does not average their features. ADAPT puts descriptions into the slot of the template (see `Prompts`); AWT
    appends them.

    >>> awt_prompts("hot_dog", "a photo of a {}", ["It lies in a bun.", "Mustard is on top."], limit=1)
    ['a photo of a hot dog.', 'a photo of a hot dog. It lies in a bun.']
    """
    if limit < 0:
        raise ValueError(f"limit must be 0 or more; got {limit}. Fix: {AWT_DESCRIPTIONS}, as in AWT.")
    alone = fill_template(check_template(template), clean_name(name)) + "."
    return [alone, *(f"{alone} {description}" for description in descriptions[:limit])]

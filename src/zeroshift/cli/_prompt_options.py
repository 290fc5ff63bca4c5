"""`--prompts`, `--template`, `--templates` and `--descriptions`: the prompts a command makes of the class names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from zeroshift.data.image_set import ImageSet
from zeroshift.encode.prompts import MODES, PromptMode, Prompts, check_descriptions, read_descriptions, read_templates
from zeroshift.suggest import did_you_mean

__all__ = ["find_mode", "make_prompts", "split_modes"]

DEFAULT_MODE = "ensemble"


def make_prompts(
    modes: str | None,
    images: ImageSet,
    *,
    template: str | None = None,
    templates: Path | None = None,
    descriptions: Path | None = None,
) -> list[Prompts]:
    """One `Prompts` per mode; the user's own templates are one more mode."""
    if images.class_names is None:
        raise ValueError(
            f"{images.name} does not say what its classes are. Fix: --classes cat,dog,horse, or a text file with one "
            "name per line."
        )
    names = split_modes(modes)
    chosen = [find_mode(name) for name in names]
    own = [Prompts.from_templates(read_templates(templates))] if templates is not None else []
    if not names and not own:
        chosen = [MODES[DEFAULT_MODE if descriptions is None else "descriptions_ensemble"]]
    needed = {need for mode in chosen for need in mode.needs}
    if template is not None and "template" not in needed:
        raise ValueError(
            f"--template is for the modes {_modes_that_need('template')}; the chosen modes are {_join_names(chosen)}. "
            "Fix: --prompts custom, or --templates FILE."
        )
    if descriptions is not None and "descriptions" not in needed:
        raise ValueError(
            f"--descriptions is for the modes {_modes_that_need('descriptions')}; the chosen modes are "
            f"{_join_names(chosen)}. Fix: add one of them to --prompts."
        )
    sentences = None
    if "descriptions" in needed:
        if descriptions is None:
            file = f" ({images.descriptions} for {images.name})" if images.descriptions else ""
            raise ValueError(f"--prompts {modes} needs --descriptions FILE{file}. Fix: add the JSON file.")
        sentences = read_descriptions(descriptions)
        check_descriptions(sentences, images.class_names, descriptions)
    single_template = template or images.template
    if "template" in needed and single_template is None:
        raise ValueError(
            f"--prompts {modes} needs the data set's template, and {images.name} has none. "
            "Fix: --template 'a photo of a {}, a type of pet.'."
        )
    named = [
        Prompts.named(
            mode.name,
            template=single_template if "template" in mode.needs else None,
            descriptions=sentences if "descriptions" in mode.needs else None,
        )
        for mode in chosen
    ]
    return named + own


def split_modes(modes: str | None) -> list[str]:
    """The names in `--prompts`, each at most once."""
    names = [mode.strip() for mode in modes.split(",")] if modes is not None else []
    if len(set(names)) < len(names):
        raise ValueError(f"--prompts names a mode twice; got {modes}. Fix: keep one of each.")
    return names


def find_mode(name: str) -> PromptMode:
    """The mode `name`; an unknown name is an error that lists the modes."""
    if name not in MODES:
        raise ValueError(
            f"the prompt modes are {', '.join(MODES)}; got {name!r}. {did_you_mean(name, MODES)}"
            "Fix: use one of them; your own templates go to --templates FILE."
        )
    return MODES[name]


def _modes_that_need(need: str) -> str:
    return ", ".join(mode.name for mode in MODES.values() if need in mode.needs)


def _join_names(modes: Sequence[PromptMode]) -> str:
    return ", ".join(mode.name for mode in modes) or "templates"

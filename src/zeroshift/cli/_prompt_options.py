"""The prompts a command asks for, from its options and what the data set brings."""

from __future__ import annotations

from pathlib import Path

from zeroshift.data.image_set import ImageSet
from zeroshift.encode.prompts import MODES, Mode, Prompts, check_descriptions, read_descriptions, read_templates
from zeroshift.suggest import did_you_mean

__all__ = ["asked_mode", "chosen_prompts"]

DEFAULT_MODE = "ensemble"


def chosen_prompts(
    modes: str | None,
    images: ImageSet,
    *,
    template: str | None = None,
    templates: Path | None = None,
    descriptions: Path | None = None,
) -> list[Prompts]:
    """One `Prompts` for each mode asked for; templates of the user's own are a mode beside them."""
    if images.class_names is None:
        raise ValueError(f"{images.name} does not say what its classes are. Fix: --classes cat,dog,horse.")
    asked = [mode.strip() for mode in modes.split(",")] if modes is not None else []
    chosen = [asked_mode(mode) for mode in asked]
    if len(set(asked)) < len(asked):
        raise ValueError(f"--prompts has a mode twice; got {modes}. Fix: keep one of each.")
    own = [Prompts.from_templates(read_templates(templates))] if templates is not None else []
    if not asked and not own:
        chosen = [MODES[DEFAULT_MODE if descriptions is None else "descriptions_ensemble"]]
    needed = {need for mode in chosen for need in mode.needs}
    if template is not None and "template" not in needed:
        raise ValueError(
            f"--template is for the modes {_needing('template')}; asked for are {_named(chosen)}. "
            "Fix: --prompts custom, or --templates FILE."
        )
    if descriptions is not None and "descriptions" not in needed:
        raise ValueError(
            f"--descriptions is for the modes {_needing('descriptions')}; asked for are {_named(chosen)}. "
            "Fix: add one of them to --prompts."
        )
    sentences = None
    if "descriptions" in needed:
        if descriptions is None:
            file = f" ({images.descriptions} for {images.name})" if images.descriptions else ""
            raise ValueError(f"--prompts {modes} needs --descriptions FILE{file}. Fix: give the JSON file.")
        sentences = read_descriptions(descriptions)
        check_descriptions(sentences, images.class_names, descriptions)
    single = template or images.template
    if "template" in needed and single is None:
        raise ValueError(
            f"--prompts {modes} needs the data set's template, and {images.name} has none. "
            "Fix: --template 'a photo of a {}, a type of pet.'."
        )
    named = [
        Prompts.named(
            mode.name,
            template=single if "template" in mode.needs else None,
            descriptions=sentences if "descriptions" in mode.needs else None,
        )
        for mode in chosen
    ]
    return named + own


def asked_mode(name: str) -> Mode:
    """The mode called `name`, or an error in words of the command line."""
    if name not in MODES:
        raise ValueError(
            f"the prompt modes are {', '.join(MODES)}; got {name!r}. {did_you_mean(name, MODES)}"
            "Fix: take one of them; templates of your own go to --templates FILE."
        )
    return MODES[name]


def _needing(need: str) -> str:
    return ", ".join(mode.name for mode in MODES.values() if need in mode.needs)


def _named(modes: list[Mode]) -> str:
    return ", ".join(mode.name for mode in modes) or "templates"

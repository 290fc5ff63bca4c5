"""The prompt modes by name: the six ways the paper compares of making a prototype from text, and one it leaves out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zeroshift.encode.prompts.template_lists import CLIP_TEMPLATE, ENSEMBLE, VANILLA
from zeroshift.suggest import did_you_mean

__all__ = ["MODES", "Mode", "get_mode"]


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

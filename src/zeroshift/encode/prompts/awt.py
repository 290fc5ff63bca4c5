"""AWT's prompts: its one template for each data set, and how it puts descriptions behind the class."""

from __future__ import annotations

from collections.abc import Sequence

from zeroshift.encode.prompts.class_names import clean
from zeroshift.encode.prompts.templates import check_template, fill

__all__ = ["AWT_TEMPLATES", "awt_prompts"]

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

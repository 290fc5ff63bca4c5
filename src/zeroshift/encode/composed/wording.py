"""What ImageNet's names are in a given wording: the sentences that fit the bridge, and those that centre others.

"a photo of a cat." lies nearer to "a photo of a car." than to "the origami cat.": the wording moves every sentence the
same way, which the mean over ImageNet's names in that wording takes away again.
"""

from __future__ import annotations

from collections.abc import Sequence

from zeroshift.data.catalogue.class_lists import class_list
from zeroshift.encode.prompts.template_lists import ENSEMBLE
from zeroshift.encode.prompts.templates import fill

__all__ = ["BRIDGE_TEMPLATES", "imagenet_prompts", "imagenet_sample"]

BRIDGE_TEMPLATES = ENSEMBLE
"""The wording the bridge is fitted in: the seven templates, averaged."""

MOST_WHOLE = len(ENSEMBLE)
"""The most templates for which all thousand names are encoded; for more, the sample below."""

SAMPLE = (
    459, 206, 222, 162, 711, 814, 350, 890, 518, 264, 683, 674, 511, 391, 329, 325, 81, 201, 582, 380,
    945, 970, 813, 734, 652, 509, 25, 584, 36, 651, 583, 144, 209, 8, 467, 164, 494, 768, 388, 158,
    631, 926, 898, 84, 907, 694, 421, 954, 106, 69, 451, 973, 245, 299, 522, 762, 273, 853, 920, 334,
)  # fmt: skip
"""Sixty of ImageNet's classes: the first of NumPy's default_rng(0).permutation(1000), with which the `clip_template`
prototypes of the bundled packs were centred. Written out, because NumPy may come to draw others."""


def imagenet_sample(n_templates: int) -> tuple[str, ...]:
    """The names that say where a wording of this many templates lies.

    >>> len(imagenet_sample(1)), len(imagenet_sample(7)), len(imagenet_sample(80))
    (1000, 1000, 60)
    """
    names = class_list("imagenet").names
    return names if n_templates <= MOST_WHOLE else tuple(names[label] for label in SAMPLE)


def imagenet_prompts(templates: Sequence[str]) -> list[str]:
    """Every name in every template, name by name.

    >>> imagenet_prompts(["a photo of a {}.", "the {}."])[:3]
    ['a photo of a tench.', 'the tench.', 'a photo of a goldfish.']
    """
    return [fill(template, name) for name in imagenet_sample(len(templates)) for template in templates]

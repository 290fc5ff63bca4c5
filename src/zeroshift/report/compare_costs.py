"""What an image takes of the encoder, in the tables of a comparison: columns that stand where they say something."""

from __future__ import annotations

from collections.abc import Sequence

from zeroshift.evaluate import Standing
from zeroshift.evaluate.costs import COSTS

__all__ = ["COST_COLUMNS", "cost_legend", "costs_shown"]

COST_COLUMNS = {
    "views": "image_passes",
    "steps": "gradient_steps",
    "prompts": "prompt_passes",
    "grads": "prompt_gradients",
}
"""What a column is called, and what it shows."""

MEANING = {
    "views": "views of it that are encoded",
    "steps": "steps along a gradient",
    "prompts": "prompts encoded, beside those encoded once for all images",
    "grads": "prompts a gradient is carried through, each encoded once more for it",
}


def costs_shown(standings: Sequence[Standing]) -> list[str]:
    """The columns in which some method differs from one that is given a feature an image and does nothing more."""
    return [
        name
        for name, cost in COST_COLUMNS.items()
        if any(standing.costs[cost] != COSTS[cost] for standing in standings)
    ]


def cost_legend(shown: Sequence[str]) -> str:
    """
    >>> cost_legend(["views", "steps"])
    'For each image: views of it that are encoded (views); steps along a gradient (steps).'
    >>> cost_legend([])
    ''
    """
    return f"For each image: {'; '.join(f'{MEANING[name]} ({name})' for name in shown)}." if shown else ""

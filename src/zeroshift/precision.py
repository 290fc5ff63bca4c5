"""The precision of matrix products: the parameter `precision`, and what a method reports about it.

A method with this parameter gets its rows in the precision of the products (`Method._rows`) and multiplies in the
precision of its rows. Statistics and factorisations are float64 in any case, and whatever decides (which class a sample
is counted for, whether it enters a bank) is decided as in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from zeroshift.parameters import Choice, parameter

__all__ = ["FLOAT32_TOLERANCE", "ProductDiagnostics", "precision_parameter"]

FLOAT32_TOLERANCE = 1e-4
"""Largest error of a probability that float32 products may cause. If a check finds more, products are float64."""


def precision_parameter() -> Any:
    """Declare the parameter: `precision: str = precision_parameter()` in the body of a class."""
    return parameter(
        Choice(("auto", "float32", "float64")),
        'Precision of the large matrix products. `"auto"`: float32 for float32 and half-precision features, float64 '
        "for float64 features. Statistics are float64 in any case, and float32 products change no probability by more "
        "than 1e-4. See docs/engines.md.",
        default="auto",
        reload=True,
    )


@dataclass
class ProductDiagnostics:
    """The precision of the products, and what the checks of float32 products found.

    `products`: their precision in the last call, "float32" or "float64".
    `float32_checks`: rows that were scored in float64 as well.
    `largest_float32_error`: the largest difference of a probability between the two.
    `float64_fallbacks`: how often products became float64 although float32 was selected, because a check or the bound
    on the error exceeded `FLOAT32_TOLERANCE`.
    """

    products: str = "float64"
    float32_checks: int = 0
    largest_float32_error: float = 0.0
    float64_fallbacks: int = 0

"""Numbers in one form, however they were typed: what a key is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["one_form"]


def one_form(value: Any) -> Any:
    """1, 1.0 and NumPy's 1 as the same, in lists and mappings too; True stays True, and what is no number stays.

    >>> one_form({"bank_size": np.int64(16), "alpha": 1.0, "prune": (4, 0.5), "moving": True})
    {'bank_size': 16, 'alpha': 1, 'prune': [4, 0.5], 'moving': True}
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, Mapping):
        return {name: one_form(one) for name, one in value.items()}
    return [one_form(one) for one in value] if isinstance(value, (list, tuple)) else value

"""Names of files from words."""

from __future__ import annotations

import re

__all__ = ["slug"]


def slug(words: str) -> str:
    """Lower-case letters, digits and hyphens.

    >>> slug("CLIP ViT-B/16")
    'clip-vit-b-16'
    """
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-") or "unnamed"

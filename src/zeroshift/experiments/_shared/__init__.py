"""What the experiments share: the sets they run on, the paper's numbers, and the shapes of what they find."""

from __future__ import annotations

"""TCA on images: a CLIP vision transformer whose tokens are condensed on the way, guided by what was learned."""

from zeroshift.encode.condensation.adapting import adapt_images
from zeroshift.encode.condensation.vision import CondensedVision

__all__ = ["CondensedVision", "adapt_images"]

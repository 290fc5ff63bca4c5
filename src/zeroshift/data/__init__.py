"""Images and features to work on: data sets and folders on the disk, corruptions, and the bundled packs."""

from zeroshift.data import catalogue, corruptions, packs
from zeroshift.data.image_set import ImageSet
from zeroshift.data.readers import open_images

__all__ = ["ImageSet", "catalogue", "corruptions", "open_images", "packs"]

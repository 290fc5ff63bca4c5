"""Data: image folders, tables and arrays, a catalogue of data sets, corruptions, and bundled feature packs."""

from zeroshift.data import catalogue, corruptions, packs
from zeroshift.data.image_set import ImageSet
from zeroshift.data.readers import open_images

__all__ = ["ImageSet", "catalogue", "corruptions", "open_images", "packs"]

"""Data: image folders, tables and arrays, videos, a catalogue of data sets, corruptions, and bundled feature packs."""

from zeroshift.data import catalogue, corruptions, packs
from zeroshift.data.image_set import ImageSet
from zeroshift.data.readers import open_images
from zeroshift.data.video import open_video, video_frames

__all__ = ["ImageSet", "catalogue", "corruptions", "open_images", "open_video", "packs", "video_frames"]

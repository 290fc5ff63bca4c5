"""The sixteen data sets ADAPT is evaluated on: descriptions, and the folders where they may be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["DATA_SETS", "FINE_GRAINED", "IMAGENET_FAMILY", "DataSetInfo", "Layout", "Reader"]


Reader = Literal["class folders", "corrupted class folders", "split file", "aircraft"]
"""How a data set is stored: one folder per class; the same for each corruption and severity; with CoOp's JSON file that
lists the images of each split; with FGVC-Aircraft's own text files."""


@dataclass(frozen=True)
class Layout:
    """A folder below the root where a data set may be."""

    folder: str
    """The data set's own folder."""
    images: str = ""
    """Folder of the images in it; {corruption} and {severity} are replaced by the requested ones."""

    def image_folder(self, **variant: object) -> str:
        """
        >>> Layout("dtd", "images").image_folder()
        'dtd/images'
        >>> Layout("imagenet-c", "{corruption}/{severity}").image_folder(corruption="fog", severity=5)
        'imagenet-c/fog/5'
        """
        return f"{self.folder}/{self.images}".rstrip("/").format(**variant)


@dataclass(frozen=True)
class DataSetInfo:
    """Description of a data set."""

    id: str
    """The argument of `load`."""
    title: str
    description: str
    reader: Reader
    n_classes: int
    counts: dict[str, int]
    """Published number of images by split; for ImageNet-C, per corruption and severity."""
    layouts: tuple[Layout, ...]
    """Where it may be: in ADAPT's layout, in that of CoOp and AWT, in that of TPT and MTA."""
    class_lists: dict[str, str]
    """Its lists of class names (see `class_list`) by origin; "adapt" is the default."""
    template: str
    """Its own prompt template in ADAPT."""
    descriptions: str
    """Name of its file of class descriptions in ADAPT and AWT."""
    aliases: tuple[str, ...] = ()
    """Other names of the data set."""
    split_file: str | None = None
    """Name of CoOp's file that lists the images of each split."""

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self.counts)

    def split_files(self, layout: Layout) -> tuple[str, ...]:
        """Where the split file may be: in the data set's folder or, as in TPT's layout, with all others."""
        return tuple(f"{folder}/{self.split_file}" for folder in (layout.folder, "data_splits", "data/data_splits"))


def _fine_grained(folder: str, images: str, *tpt: Layout) -> tuple[Layout, ...]:
    """ADAPT's layout is CoOp's inside one more folder; TPT's has other names."""
    return Layout(f"fine-grained/{folder}", images), Layout(folder, images), *tpt


FINE_GRAINED = (
    DataSetInfo(
        id="oxford_flowers",
        title="Oxford Flowers 102",
        description="Flowers common in the United Kingdom, 102 kinds.",
        reader="split file",
        n_classes=102,
        counts={"train": 4_093, "val": 1_633, "test": 2_463},
        layouts=_fine_grained("oxford_flowers", "jpg", Layout("Flower102", "jpg")),
        class_lists={"adapt": "oxford_flowers"},
        template="a photo of a {}, a type of flower.",
        descriptions="oxford_flowers.json",
        aliases=("flowers", "flower102", "flowers102", "oxford_flowers102"),
        split_file="split_zhou_OxfordFlowers.json",
    ),
    DataSetInfo(
        id="dtd",
        title="Describable Textures (DTD)",
        description="Textures by the adjective that describes them, 47 of them.",
        reader="split file",
        n_classes=47,
        counts={"train": 2_820, "val": 1_128, "test": 1_692},
        layouts=_fine_grained("dtd", "images", Layout("DTD", "images")),
        class_lists={"adapt": "dtd"},
        template="{} texture.",
        descriptions="dtd.json",
        aliases=("textures", "describable_textures"),
        split_file="split_zhou_DescribableTextures.json",
    ),
    DataSetInfo(
        id="oxford_pets",
        title="Oxford-IIIT Pets",
        description="Cats and dogs of 37 breeds.",
        reader="split file",
        n_classes=37,
        counts={"train": 2_944, "val": 736, "test": 3_669},
        layouts=_fine_grained("oxford_pets", "images", Layout("OxfordPets")),
        class_lists={"adapt": "oxford_pets"},
        template="a photo of a {}, a type of pet.",
        descriptions="oxford_pets.json",
        aliases=("pets", "oxford_iiit_pets"),
        split_file="split_zhou_OxfordPets.json",
    ),
    DataSetInfo(
        id="stanford_cars",
        title="Stanford Cars",
        description="Cars of 196 makes, models and years.",
        reader="split file",
        n_classes=196,
        counts={"train": 6_509, "val": 1_635, "test": 8_041},
        # The paths in its split file begin with cars_train/ or cars_test/.
        layouts=_fine_grained("stanford_cars", "", Layout("StanfordCars")),
        class_lists={"adapt": "stanford_cars"},
        template="a photo of a {}.",
        descriptions="stanford_cars.json",
        aliases=("cars",),
        split_file="split_zhou_StanfordCars.json",
    ),
    DataSetInfo(
        id="ucf101",
        title="UCF101",
        description="Human actions, 101 of them; the middle frame of each video.",
        reader="split file",
        n_classes=101,
        counts={"train": 7_639, "val": 1_898, "test": 3_783},
        layouts=_fine_grained("ucf101", "UCF-101-midframes", Layout("UCF101")),
        class_lists={"adapt": "ucf101"},
        template="a photo of a person doing {}.",
        descriptions="ucf101.json",
        aliases=("ucf", "ucf_101"),
        split_file="split_zhou_UCF101.json",
    ),
    DataSetInfo(
        id="caltech101",
        title="Caltech-101",
        description="Objects of 100 classes; without the background class and the second set of faces.",
        reader="split file",
        n_classes=100,
        counts={"train": 4_128, "val": 1_649, "test": 2_465},
        layouts=_fine_grained("caltech-101", "101_ObjectCategories", Layout("Caltech101")),
        class_lists={"adapt": "caltech101"},
        template="a photo of a {}.",
        descriptions="caltech101.json",
        aliases=("caltech", "caltech_101"),
        split_file="split_zhou_Caltech101.json",
    ),
    DataSetInfo(
        id="food101",
        title="Food-101",
        description="Photographs of 101 dishes.",
        reader="split file",
        n_classes=101,
        counts={"train": 50_500, "val": 20_200, "test": 30_300},
        layouts=_fine_grained("food-101", "images", Layout("Food101", "images")),
        class_lists={"adapt": "food101"},
        template="a photo of {}, a type of food.",
        descriptions="food101.json",
        aliases=("food", "food_101"),
        split_file="split_zhou_Food101.json",
    ),
    DataSetInfo(
        id="sun397",
        title="SUN397",
        description="Scenes, indoors and outdoors, of 397 kinds.",
        reader="split file",
        n_classes=397,
        counts={"train": 15_880, "val": 3_970, "test": 19_850},
        layouts=_fine_grained("sun397", "SUN397", Layout("SUN397")),
        class_lists={"adapt": "sun397"},
        template="a photo of a {}.",
        descriptions="sun397.json",
        aliases=("sun", "sun_397"),
        split_file="split_zhou_SUN397.json",
    ),
    DataSetInfo(
        id="fgvc_aircraft",
        title="FGVC-Aircraft",
        description="Aircraft of 100 variants.",
        reader="aircraft",
        n_classes=100,
        counts={"train": 3_334, "val": 3_333, "test": 3_333},
        layouts=_fine_grained("fgvc_aircraft", "images"),
        class_lists={"adapt": "fgvc_aircraft"},
        template="a photo of a {} from Fine-Grained Visual Classification of Aircraft.",
        descriptions="fgvc_aircraft.json",
        aliases=("aircraft",),
    ),
    DataSetInfo(
        id="eurosat",
        title="EuroSAT",
        description="Satellite images of 10 kinds of land use.",
        reader="split file",
        n_classes=10,
        counts={"train": 13_500, "val": 5_400, "test": 8_100},
        layouts=_fine_grained("eurosat", "2750", Layout("eurosat")),
        class_lists={"adapt": "eurosat", "coop": "eurosat_coop"},
        template="satellite photo of the {}.",
        descriptions="eurosat.json",
        aliases=("euro_sat",),
        split_file="split_zhou_EuroSAT.json",
    ),
)
"""The ten fine-grained data sets, with the splits and counts CoOp published."""


SHIFTS = "domain_shift_datastes"
"""The folder of the ImageNet family in ADAPT's layout, misspelt there."""
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
        description="A second test set for ImageNet; the variant called matched frequency.",
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
"""ImageNet and its shifted variants: one folder per class, only test images."""

DATA_SETS = (*IMAGENET_FAMILY, *FINE_GRAINED)

"""Miniature data sets on disk, one for each of the sixteen, written by hand from the published layouts.

Written independently of the library's own layouts and class numbers, which the tests compare with it.
"""

import io
import json
from pathlib import Path

from PIL import Image

SHIFTS = "domain_shift_datastes"
MATCHED = "imagenetv2-matched-frequency-format-val"

CLASS_FOLDERS = {
    # id: (folder in ADAPT's layout, {folder of a class: its label})
    "imagenet": (f"{SHIFTS}/imagenet/images/val", {"n01440764": 0, "n01443537": 1, "n03773504": 657, "n04008634": 744}),
    "imagenet_a": (f"{SHIFTS}/imagenet-a/imagenet-a", {"n01498041": 0, "n01531178": 1, "n12267677": 199}),
    "imagenet_r": (f"{SHIFTS}/imagenet-r/imagenet-r", {"n01443537": 0, "n01484850": 1, "n12267677": 199}),
    # Sorted as strings: "0", then "1" with "10".."19" and "100".."199" (111 names), then "2".
    "imagenetv2": (f"{SHIFTS}/{MATCHED}/{MATCHED}", {"0": 0, "1": 1, "10": 2, "2": 112, "999": 999}),
    "imagenet_sketch": (f"{SHIFTS}/ImageNet-Sketch/images", {"n01440764": 0, "n15075141": 999}),
    "imagenet_c": ("corruption/imagenet-c/fog/5", {"n01440764": 0, "n01443537": 1}),
}

SPLIT_FILES = {
    # id: (folder in CoOp's layout, folder of images in it, name of the split file, classes, how images are called)
    "oxford_flowers": ("oxford_flowers", "jpg", "OxfordFlowers", 102, "image_{:05d}.jpg"),
    "dtd": ("dtd", "images", "DescribableTextures", 47, "banded/banded_{:04d}.jpg"),
    "oxford_pets": ("oxford_pets", "images", "OxfordPets", 37, "Abyssinian_{}.jpg"),
    "stanford_cars": ("stanford_cars", "", "StanfordCars", 196, "cars_test/{:05d}.jpg"),
    "ucf101": ("ucf101", "UCF-101-midframes", "UCF101", 101, "Archery/v_Archery_g{:02d}_c01.jpg"),
    "caltech101": ("caltech-101", "101_ObjectCategories", "Caltech101", 100, "accordion/image_{:04d}.jpg"),
    "food101": ("food-101", "images", "Food101", 101, "apple_pie/{}.jpg"),
    "sun397": ("sun397", "SUN397", "SUN397", 397, "a/abbey/sun_{}.jpg"),
    "eurosat": ("eurosat", "2750", "EuroSAT", 10, "AnnualCrop/AnnualCrop_{}.jpg"),
}

SPLITS = {"train": (3, 4), "val": (5,), "test": (0, 1, 2)}
"""Numbers of the images in each split of the fine-grained sets."""

AIRCRAFT_IDS = {"train": ("0034309",), "val": ("0034958",), "test": ("1514522", "0481847")}


def image(shade: int) -> bytes:
    """A small JPEG of one colour."""
    buffer = io.BytesIO()
    Image.new("RGB", (12, 8), (shade % 256, 128, 64)).save(buffer, "JPEG")
    return buffer.getvalue()


def put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def class_folders(folder: Path, labels: dict[str, int], per_class: int = 2) -> None:
    """Two images in each class folder, and a file that is none."""
    for name, label in labels.items():
        for number in range(per_class):
            put(folder / name / f"image_{number}.JPEG", image(label))
    put(folder / "README.txt", b"not an image")


def labels_of(id: str, split: str = "test") -> list[int]:
    """The labels a miniature's images have, in order: two a class folder; the first class, the second, the last."""
    if id in CLASS_FOLDERS:
        return sorted(2 * list(CLASS_FOLDERS[id][1].values()))
    if id == "fgvc_aircraft":
        return {"train": [73], "val": [0], "test": [99, 37]}[split]
    last = SPLIT_FILES[id][3] - 1
    return [(0, 1, last, 0, 1, 0)[number] for number in SPLITS[split]]


def split_file(id: str, folder: Path, images: Path, file: Path | None = None) -> Path:
    """Images of a fine-grained set and the file that lists them, in `folder` unless `file` says where."""
    _, _, name, _, pattern = SPLIT_FILES[id]
    listed = {}
    for split, numbers in SPLITS.items():
        listed[split] = [
            [pattern.format(number), label, "a name"]
            for number, label in zip(numbers, labels_of(id, split), strict=True)
        ]
        for path, label, _ in listed[split]:
            put(images / path, image(label))
    file = file or folder / f"split_zhou_{name}.json"
    put(file, json.dumps(listed).encode())
    return file


VARIANT_OF = {"0034309": "F/A-18", "0034958": "707-320", "1514522": "Yak-42", "0481847": "BAE 146-200"}
"""Lines 74, 1, 100 and 38 of variants.txt."""


def aircraft(folder: Path, variants: list[str]) -> None:
    """FGVC-Aircraft; `variants` are all its 100 classes, because the file that lists them is never a part."""
    put(folder / "variants.txt", "".join(f"{name}\n" for name in variants).encode())
    for split, ids in AIRCRAFT_IDS.items():
        put(folder / f"images_variant_{split}.txt", "".join(f"{id} {VARIANT_OF[id]}\n" for id in ids).encode())
        for id in ids:
            put(folder / "images" / f"{id}.jpg", image(int(id)))


def build(root: Path, id: str) -> None:
    """The miniature of data set `id` in ADAPT's layout below `root`."""
    if id in CLASS_FOLDERS:
        class_folders(root / CLASS_FOLDERS[id][0], CLASS_FOLDERS[id][1])
    elif id == "fgvc_aircraft":
        from zeroshift.data.catalogue.files import class_list

        aircraft(root / "fine-grained" / "fgvc_aircraft", list(class_list("fgvc_aircraft").names))
    else:
        folder = root / "fine-grained" / SPLIT_FILES[id][0]
        split_file(id, folder, folder / SPLIT_FILES[id][1])


ALL = (*CLASS_FOLDERS, *SPLIT_FILES, "fgvc_aircraft")


def build_all(root: Path) -> None:
    """All sixteen, in ADAPT's layout."""
    for id in ALL:
        build(root, id)

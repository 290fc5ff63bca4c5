"""Folders of drawings and photographs with strangers in `none/`, from Debian's tuxpaint-stamps-default and
openclipart-png.

    apt-get install tuxpaint-stamps-default openclipart-png
    python benchmarks/stamp_folders.py FOLDER

Each folder FOLDER/NAME has a sub-folder per class, and `none` with the images of other categories.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

STAMPS = Path("/usr/share/tuxpaint/stamps")
CLIP_ART = Path("/usr/share/openclipart/png")
MOST = 40
"""Images taken of a category of clip art."""

BIRDS, FISH, FRUIT, FLOWERS = "animals/birds", "animals/fish", "food/fruit", "plants/flowers"
SIGNS, MONEY, TOOLS, CHESS = "town/roadsigns", "symbols/money", "household/tools", "symbols/chess"
FOLDERS = {
    "stamps_a": (STAMPS, {"bird": BIRDS, "fruit": FRUIT, "flower": FLOWERS, "fish": FISH, "vehicle": "vehicles"},
                 (TOOLS, CHESS, "symbols/music", "sports")),
    "stamps_b": (STAMPS, {"vegetable": "food/vegetables", "insect": "animals/insects", "house": "town/houses",
                          "cow": "animals/mammals/bovines"}, (SIGNS, "clothes")),
    "stamps_c": (STAMPS, {"bird": BIRDS, "fish": FISH, "insect": "animals/insects", "fruit": FRUIT,
                          "vegetable": "food/vegetables", "flower": FLOWERS, "cow": "animals/mammals/bovines",
                          "tree": "plants/trees"}, (SIGNS, MONEY, TOOLS, CHESS, "household/dishes")),
    "stamps_d": (STAMPS, {"house": "town/houses", "planet": "space/planets", "insect": "animals/insects",
                          "mammal": "animals/mammals", "easter egg": "seasonal/easter", "hat": "clothes/hats",
                          "train": "vehicles/locomotive", "mushroom": "plants/mushrooms"},
                 ("symbols/alphabets/asl", MONEY, "medical")),
    "clip_art_a": (CLIP_ART, {"bird": BIRDS, "fish": FISH, "insect": "animals/bugs", "fruit": FRUIT,
                              "vegetable": "food/vegetables", "flower": FLOWERS, "tree": "plants/trees",
                              "vehicle": "transportation/vehicles", "house": "buildings/homes",
                              "furniture": "buildings/furniture"},
                   ("signs_and_symbols/flags", "transportation/roadsigns", "recreation/games")),
    "clip_art_b": (CLIP_ART, {"musical instrument": "recreation/music", "weapon": "tools/weapons",
                              "dinosaur": "animals/dinosaurs", "computer": "computer", "cake": "food/desserts",
                              "drink": "food/beverages", "bird": BIRDS, "fish": FISH},
                   ("signs_and_symbols/flags", "geography", "people")),
}  # fmt: skip
"""Name: where the images are, the categories of the classes, and those of the strangers."""


def images(category: Path, most: int | None) -> list[Path]:
    """PNG files in the order of their names, without mirrored copies; of more than `most`, equally spaced ones."""
    found = sorted(path for path in category.rglob("*.png") if "_mirror" not in path.name)
    return found if most is None or len(found) <= most else [found[i * len(found) // most] for i in range(most)]


def main(out: Path) -> None:
    for name, (source, classes, strangers) in FOLDERS.items():
        most = MOST if source == CLIP_ART else None
        for label, category in [*classes.items(), *(("none", category) for category in strangers)]:
            (out / name / label).mkdir(parents=True, exist_ok=True)
            for path in images(source / category, most):
                shutil.copyfile(path, out / name / label / f"{category.replace('/', '-')}_{path.name}")
        print(f"zeroshift extract {out / name} --unlabelled --classes '{','.join(classes)}' --encoder composed")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

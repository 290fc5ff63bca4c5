"""Write the class lists of the catalogue: `python scripts/write_lists.py classnames_templates.json`.

The source, in ../shared/prompts, contains the class names in label order as in the released code of ADAPT and AWT,
which agree. The README next to the lists names their origins. Running the script again writes the same bytes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path

LISTS = Path(__file__).resolve().parents[1] / "src" / "zeroshift" / "data" / "catalogue" / "lists"


def write_lists(source: Path, target: Path) -> None:
    """Write one text file per list from the JSON file `source` to the folder `target`."""
    read = json.loads(source.read_text(encoding="utf-8"))
    wnids, names = read["imagenet_wnids_sorted"], read["classnames"]
    imagenet = names.pop("imagenet")
    _write(target / "imagenet.txt", (f"{wnid} {name}" for wnid, name in zip(wnids, imagenet, strict=True)))
    for subset in ("imagenet_a", "imagenet_r"):
        _write(target / f"{subset}.txt", (wnids[index] for index in sorted(read[f"{subset}_idx"])))
    for data_set, class_names in names.items():
        _write(target / f"{data_set}.txt", class_names)
    _write(target / "eurosat_coop.txt", read["eurosat_tpt_coop_classnames"])


def _write(path: Path, lines: Iterable[str]) -> None:
    text = "".join(f"{line}\n" for line in lines)
    path.write_text(text, encoding="utf-8", newline="\n")
    print(f"{path.name:24} {text.count(chr(10)):>5} lines")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="the JSON file")
    parser.add_argument("--target", type=Path, default=LISTS, help="folder to write to (default: the package's own)")
    arguments = parser.parse_args()
    write_lists(arguments.source, arguments.target)

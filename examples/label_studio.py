"""Tasks for Label Studio with predictions: the answers of zeroshift, which a person then confirms or corrects.

    python examples/label_studio.py photos --classes cat,dog,horse --encoder composed --out tasks.json

Import `tasks.json` into a project with the labelling interface that is printed. Label Studio must serve the folder:
LABEL_STUDIO_LOCAL_FILES_SERVING_ENABLED=true, LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT=<the folder's parent>. Tasks come
in the order in which a person helps most: strangers first, then the least certain images.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

import zeroshift
from zeroshift.reject import rejected_label

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp")


def interface(classes: list[str]) -> str:
    """The labelling interface; a stranger is a choice, too."""
    choices = "".join(f"<Choice value={quoteattr(name)}/>" for name in [*classes, rejected_label(classes)])
    return (
        '<View><Image name="image" value="$image"/>'
        f'<Choices name="choice" toName="image" showInline="true">{choices}</Choices></View>'
    )


def task(path: Path, folder: Path, best: dict[str, Any], version: str) -> dict[str, Any]:
    choice = {"from_name": "choice", "to_name": "image", "type": "choices", "score": best["score"]}
    choice["value"] = {"choices": [best["label"]]}
    place = quote(path.relative_to(folder.parent).as_posix())
    return {
        "data": {"image": f"/data/local-files/?d={place}"},
        "predictions": [{"model_version": version, "score": best["score"], "result": [choice]}],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--classes", required=True, help="names with commas between them")
    parser.add_argument("--encoder", default="openai/clip-vit-base-patch16")
    parser.add_argument("--out", type=Path, default=Path("tasks.json"))
    given = parser.parse_args()
    folder = given.folder.resolve()
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    classes = [name.strip() for name in given.classes.split(",")]
    pipe = zeroshift.pipeline(given.encoder, classes, reject=True)
    best = [answer[0] for answer in pipe(paths)]  # learned as a whole
    stranger = rejected_label(classes)
    found = zip(best, paths, strict=True)
    order = sorted(found, key=lambda one: (one[0]["label"] != stranger, one[0]["score"], one[1]))
    version = f"zeroshift {zeroshift.__version__}, {pipe.method.name}"
    tasks = [task(path, folder, answer, version) for answer, path in order]
    given.out.write_text(json.dumps(tasks, indent=1))
    print(f"{len(tasks)} tasks in {given.out}. Labelling interface:\n{interface(classes)}")


if __name__ == "__main__":
    main()

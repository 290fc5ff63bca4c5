"""The same task, a folder of images and ten class names, in transformers, with open_clip and in zeroshift.

    python benchmarks/one_folder.py [--images 200] [--repeats 3]

Lines: of the programs in benchmarks/one_folder, without empty ones. Seconds: of each program in a fresh process, start
and loading included, on drawn photographs of 640 x 480. transformers and zeroshift load one CLIP of the size of
ViT-B/16, with random weights, from a folder; open_clip makes the same architecture (left out where open_clip_torch is
not installed). Random weights take as long as trained ones. Accuracy: transformers and open_clip answer zero-shot, as
does zeroshift's baseline (tests/benchmarks/test_one_folder.py compares them). Therefore it is measured on features of
real images: ten classes of the composed encoder (pack:cifar10) and, where the project's unpublished sets are present
(--packs), the first ten classes of WHU-RS19 with real CLIP.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import string
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from sections import machine, replace_section

from zeroshift import FeatureSet, TransductiveAnchoredMixture, ZeroShot
from zeroshift.data import packs

ROOT = Path(__file__).parents[1]
PROGRAMS = {
    name: ROOT / "benchmarks" / "one_folder" / f"with_{name}.py" for name in ("transformers", "open_clip", "zeroshift")
}
CLASSES = "airplane,automobile,bird,cat,deer,dog,frog,horse,ship,truck"
REAL = "whurs19_clip_vitb32"
GIVES = {
    "transformers": "label and score; a list of dictionaries",
    "open_clip": "what you write: nothing else is done",
    "zeroshift": "the same list, adapted to the images; as a command also CSV, a page of the images, rejects",
}


def lines(program: Path) -> int:
    return sum(bool(line.strip()) for line in program.read_text().splitlines())


def write_model(folder: Path) -> None:
    """A CLIP of the size of ViT-B/16 with random weights, as published ones are saved."""
    import torch
    import transformers

    letters = [*string.ascii_lowercase, *string.digits, *",.'-_"]
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    vocabulary = {word: i for i, word in enumerate(words)}
    tokenizer = transformers.CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=77)
    tokenizer.save_pretrained(folder)
    signs = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    torch.manual_seed(0)
    config = transformers.CLIPConfig(text_config=signs, vision_config={"patch_size": 16})
    transformers.CLIPModel(config).save_pretrained(folder)
    transformers.CLIPImageProcessorPil().save_pretrained(folder)


def draw_images(folder: Path, count: int) -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    folder.mkdir()
    for i in range(count):
        image = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize((640, 480))
        image.save(folder / f"{i:04d}.jpg")


def seconds(program: Path, *arguments: object) -> float:
    """Of one run in a fresh process, with no features kept from earlier runs."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    with tempfile.TemporaryDirectory() as cache:
        began = time.perf_counter()
        command = [sys.executable, str(program), *map(str, arguments)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**environment, "ZEROSHIFT_CACHE": cache}
        )
        taken = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(f"{program.name} failed:\n{done.stderr[-2000:]}")
    return taken


def accuracies(features: FeatureSet) -> tuple[float, float]:
    """In percent: zero-shot, and adapted by the default method."""
    given = (features.prototypes_for(),)
    found = []
    for kind in (ZeroShot, TransductiveAnchoredMixture):
        answers = kind(*given, logit_scale=features.logit_scale).adapt(features.features)
        found.append(100 * float(np.mean(answers.argmax(axis=1) == features.labels)))
    return found[0], found[1]


def first_ten(features: FeatureSet) -> FeatureSet:
    """Its first ten classes, and their samples."""
    assert features.labels is not None
    chosen = features.subset(features.labels < 10)
    return FeatureSet(
        chosen.features, prototypes=chosen.prototypes_for()[:10], labels=chosen.labels,
        class_names=chosen.class_names[:10], logit_scale=chosen.logit_scale,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--packs", type=Path, default=ROOT.parent / "shared" / "packs" / "clip")
    parser.add_argument("--out", type=Path, help="also write the measurements as JSON")
    arguments = parser.parse_args()
    measured: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(folder / "clip")
        draw_images(folder / "photos", arguments.images)
        given = {
            "transformers": folder / "clip",
            "zeroshift": folder / "clip",
            **({"open_clip": "ViT-B-16"} if importlib.util.find_spec("open_clip") else {}),
        }
        for _ in range(arguments.repeats):  # in turn, because the machine may be shared
            for program, model in given.items():
                taken = seconds(PROGRAMS[program], folder / "photos", model, CLASSES)
                measured.setdefault(program, []).append(taken)
                print(f"{program}: {taken:.1f} s", flush=True)
    sets = {"cifar10": packs.load("cifar10")}
    if (path := arguments.packs / f"{REAL}.npz").is_file():
        sets[REAL] = first_ten(FeatureSet.load(path, check=False))
    accuracy = {name: accuracies(features) for name, features in sets.items()}
    record = {"seconds": measured, "accuracy": accuracy, "images": arguments.images, "machine": machine()}
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")
    replace_section("one_folder", table(record))


def table(record: dict[str, Any]) -> str:
    sets, seconds_of = record["accuracy"], record["seconds"]
    titles = [
        "",
        "lines",
        f"seconds for {record['images']} images",
        *(f"accuracy, {name}" for name in sets),
        "what one gets",
    ]
    rows = [titles, ["---"] * len(titles)]
    for program, path in PROGRAMS.items():
        found = seconds_of.get(program)
        taken = f"{statistics.median(found):.1f} ({min(found):.1f}-{max(found):.1f})" if found else "not measured"
        answers = [f"{both[program == 'zeroshift']:.1f}" for both in sets.values()]
        rows.append([program, str(lines(path)), taken, *answers, GIVES[program]])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + f"\n\n{record['machine']}."


if __name__ == "__main__":
    main()

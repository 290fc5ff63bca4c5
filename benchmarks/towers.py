"""Time of Tent, BATCLIP, Mint and TNT compared with plain loops in torch (benchmarks/plain/towers.py).

    python benchmarks/towers.py                     a random CLIP of ViT-B/16's size; takes an hour or two on a CPU
    python benchmarks/towers.py --small             two layers of width 64, images of 64 x 64
    python benchmarks/towers.py --written           only the table in results/tuning.md, from the records

Both get the same images and the same number of threads, in turns; the ratio is taken within each turn. Weights and
images are random: the time of a pass does not depend on them. On a CPU the time is that of the processor, which other
programs hardly change. Plain loops keep the activations of a whole batch. The library keeps those of one chunk (16
images, 64 prompts), and encodes all others again for the gradient; with a `chunk_size` of a batch or more, nothing is
encoded twice. Each size is recorded in towers.json next to this file.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
import transformers
from sections import replace_section
from tuning import LENGTH, SIZES, START, VOCABULARY, WORDS, prompts

from plain import towers
from zeroshift.arrays import Backend
from zeroshift.benchmarks.machine import describe_environment
from zeroshift.benchmarks.timing import Clock, time_spread
from zeroshift.encode.preprocessing import PixelPreprocessing, affine_table
from zeroshift.encode.tuning import ContextText
from zeroshift.encode.tuning.vision import CHUNK, TokenVision
from zeroshift.files import atomic_path
from zeroshift.methods import BATCLIP, TNT, Mint, Tent

T = TypeVar("T")

RECORD = Path(__file__).with_suffix(".json")
LOGIT_SCALE = 100.0
VISION = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    "image_size": 224, "patch_size": 16,
}  # fmt: skip
SMALL = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
CLASSES, BATCH, BATCHES, VIEWS, REPEATS = 20, 32, 2, 64, 3


class Problem(NamedTuple):
    """A model, images as bytes, and both sides as the library uses them."""

    model: Any
    ids: torch.Tensor
    images: np.ndarray
    pixels: torch.Tensor
    text: ContextText
    vision: TokenVision
    own: Any
    """Text features (K, d), which BATCLIP starts from."""
    prototypes: Any
    """Features (K, d) of the first images for the others: text features of a random model are all alike, and Mint skips
    its step where all images are of one class."""


def problem(device: torch.device, chunk_size: int, *, small: bool) -> Problem:
    torch.manual_seed(0)
    signs = {"bos_token_id": VOCABULARY - 2, "eos_token_id": VOCABULARY - 1, "pad_token_id": VOCABULARY - 1}
    sizes = {**(SMALL if small else SIZES), **signs, "vocab_size": VOCABULARY, "max_position_embeddings": LENGTH}
    vision = {**SMALL, "image_size": 64, "patch_size": 16} if small else VISION
    config = transformers.CLIPConfig(text_config=sizes, vision_config=vision, projection_dim=512)
    model = transformers.CLIPModel(config).eval().requires_grad_(False).to(device)
    side = vision["image_size"]
    images = np.random.default_rng(0).integers(0, 256, (BATCH * BATCHES, 3, side, side), dtype=np.uint8)

    def to_device(array: np.ndarray, *, first: bool) -> torch.Tensor:
        return 2 * torch.from_numpy(np.ascontiguousarray(array)).to(device).float() / 255 - 1

    encoder: Any = SimpleNamespace(
        model=model, batch_size=BATCH, dimension=512, dtype=torch.float32, key=lambda: "random", _to_device=to_device,
        preprocessing=PixelPreprocessing(None, (side, side), "bicubic", affine_table([0.5] * 3, [0.5] * 3)),
    )  # fmt: skip
    ids = prompts(CLASSES, str(device))
    text = ContextText(
        lambda tokens: model.get_text_features(**tokens).pooler_output,
        model.text_model.get_input_embeddings(),
        {"input_ids": ids},
        start=START,
        words=WORDS,
        modules=(model,),
    )
    own = text.features(torch.tensor(text.context, device=device))
    pixels, side_of_images = to_device(images, first=True), TokenVision(encoder, chunk_size=chunk_size)
    prototypes = side_of_images.encode(torch.from_numpy(images[:CLASSES]).to(device), None).features
    return Problem(model, ids, images, pixels, text, side_of_images, own, prototypes)


def runs(given: Problem) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """The plain loop and the method, by name."""
    options: dict[str, Any] = {"batch": BATCH, "logit_scale": LOGIT_SCALE}
    own: dict[str, Any] = {"vision": given.vision, "logit_scale": LOGIT_SCALE}
    noise = torch.zeros(given.pixels.shape[1:], device=given.pixels.device)
    half = torch.full((3, 1, 1), 0.5, device=given.pixels.device)
    views = given.images[:VIEWS]
    unit = (given.pixels[None, :VIEWS] + 1) / 2
    methods = {
        "tent": Tent(given.prototypes, **own, batch_size=BATCH),
        "batclip": BATCLIP(given.own, **own, text=given.text, batch_size=BATCH),
        "mint": Mint(given.prototypes, **own, batch_size=BATCH),
        "tnt": TNT(given.prototypes, **own),
    }

    def plain(run: Callable[..., Any], *arguments: Any, **parameters: Any) -> Callable[[], Any]:
        def call() -> Any:
            model = copy.deepcopy(given.model)  # a few percent of the time of a batch
            return run(model, given.pixels, *arguments, **options, **parameters)

        return call

    return {
        "tent": (
            plain(towers.tent, given.prototypes, rate=1e-3),
            lambda: methods["tent"].clone().adapt_scores(given.images),
        ),
        "batclip": (
            plain(towers.batclip, given.ids, rate=5e-4),
            lambda: methods["batclip"].clone().adapt_scores(given.images),
        ),
        "mint": (plain(towers.mint, given.prototypes), lambda: methods["mint"].clone().adapt_scores(given.images)),
        "tnt": (
            lambda: towers.tnt(
                given.model, unit, given.prototypes, noise, mean=half, std=half, logit_scale=LOGIT_SCALE
            ),
            lambda: methods["tnt"].adapt_views_scores(views),
        ),
    }


class ProcessorClock(Clock):
    """Times calls by the time of the processor."""

    def time(self, call: Callable[..., T], *arguments: Any) -> tuple[float, T]:
        began = time.process_time()
        answer = call(*arguments)
        return time.process_time() - began, answer


def measure(device: torch.device, chunk_size: int, repeats: int, *, small: bool) -> dict[str, Any]:
    given, rows = problem(device, chunk_size, small=small), {}
    clock = (ProcessorClock if device.type == "cpu" else Clock)(Backend.of(given.pixels))
    for name, (plain, method) in runs(given).items():
        plain()
        method()
        turns = [(clock.time(plain)[0], clock.time(method)[0]) for _ in range(repeats)]
        rows[name] = {
            "plain_seconds": time_spread([turn[0] for turn in turns]),
            "seconds": time_spread([turn[1] for turn in turns]),
            "ratio": time_spread([turn[1] / turn[0] for turn in turns]),
        }
        print(name, chunk_size, json.dumps(rows[name]["ratio"]), file=sys.stderr, flush=True)
    return rows


def time_table(records: dict[str, Any]) -> str:
    lines = [
        "| encoder | method | images at a time in a gradient | plain | zeroshift | ratio (least to most) |",
        "|---|---|---|---|---|---|",
    ]
    for size, record in records.items():
        for chunk, rows in record["chunks"].items():
            for name, row in rows.items():
                low, middle, high = (row["ratio"][which] for which in ("least", "median", "most"))
                plain, own = (1e3 * row[which]["median"] for which in ("plain_seconds", "seconds"))
                lines.append(
                    f"| {size} | {name} | {chunk} | {plain:.0f} ms | {own:.0f} ms "
                    f"| {middle:.2f} ({low:.2f} to {high:.2f}) |"
                )
    machines = [
        f"{size}: {record.get('device') or record['machine']}, {record['threads']} thread(s), torch {record['torch']}."
        for size, record in records.items()
    ]
    return "\n".join([*lines, "", *machines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a small encoder, in a few minutes")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--written", action="store_true", help="measure nothing; write the table from the records")
    given = parser.parse_args()
    records = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    if not given.written:
        device = torch.device(given.device)
        size = f"{'two layers' if given.small else 'ViT-B/16'}, {device.type}"
        chunks = {
            str(chunk): measure(device, chunk, given.repeats, small=given.small) for chunk in (CHUNK, max(BATCH, VIEWS))
        }
        place = Backend.of(torch.zeros(1, device=device))
        records[size] = {**describe_environment(place), "threads": torch.get_num_threads(), "chunks": chunks}
        with atomic_path(RECORD) as temporary:
            temporary.write_text(json.dumps(records, indent=1) + "\n")
    replace_section("tuning-towers", time_table(records))


if __name__ == "__main__":
    main()

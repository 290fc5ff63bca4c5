"""How much of a bare encoder's speed the whole pipeline keeps: read, decode in workers, encode, write.

    python benchmarks/extraction.py                    two cores: the encoder on one, decoding on the other
    python benchmarks/extraction.py --device cuda --patch 16 --images 8192 --workers 15 --out cuda.json

The model is a CLIP ViT-B with random weights (speed does not depend on them), with patches of 32 pixels or, for
four times the work, 16. The images are synthetic JPEGs of 500 x 375 pixels. Bare is `encode_pixels` alone, on the same
images decoded beforehand. Both are measured in turns. Peak memory is measured in a separate process, relative to its
memory after the model encoded one batch.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from sections import replace_section

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests"))

HERE = Path(__file__).parent
RECORDS = HERE / "extraction.json"
WIDTH, HEIGHT = 500, 375
QUALITY = 90
DRAWN = 256
"""Different images; further files repeat them with other bytes at the end."""


def write_images(folder: Path, count: int) -> None:
    """JPEGs that take as long to decode as photographs: smooth areas, edges, some noise."""
    from PIL import Image

    folder.mkdir()
    rng = np.random.default_rng(0)
    drawn = []
    for i in range(count):
        if i < DRAWN:
            coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
            smooth = np.asarray(coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC), np.int16)
            noisy = np.clip(smooth + rng.integers(-12, 13, smooth.shape), 0, 255).astype(np.uint8)
            buffer = io.BytesIO()
            Image.fromarray(noisy).save(buffer, "JPEG", quality=QUALITY)
            drawn.append(buffer.getvalue())
        # Bytes after the end of a JPEG are not decoded but make the files differ: equal files would be encoded once.
        (folder / f"{i:06}.jpg").write_bytes(drawn[i % DRAWN] + i.to_bytes(4, "little"))


def write_model(folder: Path, patch: int = 16) -> None:
    """A ViT-B of CLIP's own sizes, with the tests' small tokenizer."""
    import transformers

    from encode import tiny

    folder.mkdir()
    tokenizer = tiny._clip_tokenizer(folder)
    signs = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    config = transformers.CLIPConfig(text_config=signs, vision_config={"patch_size": patch})
    transformers.CLIPModel(config).save_pretrained(folder)
    transformers.CLIPImageProcessorPil().save_pretrained(folder)


class LargestWorker(threading.Thread):
    """MB of the largest child process while this runs. The system's value for ended children includes their parent."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.mb, self.ended = 0.0, threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.2):
            children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
            for child in children:
                with contextlib.suppress(OSError):
                    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{child}/status").read_text())
                    self.mb = max(self.mb, int(found.group(1)) / 1000 if found else 0.0)


def peak() -> float:
    """Peak MB of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def measure_memory(arguments: argparse.Namespace, folder: Path) -> dict[str, float]:
    """In a fresh process, because the peak of a process cannot be reset."""
    command = [sys.executable, __file__, "--memory-of", str(folder), *_repeated(arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def _repeated(arguments: argparse.Namespace) -> list[str]:
    given = {"--device": arguments.device, "--dtype": arguments.dtype, "--workers": str(arguments.workers)}
    if arguments.batch_size is not None:
        given["--batch-size"] = str(arguments.batch_size)
    return [word for pair in given.items() for word in pair]


def load(arguments: argparse.Namespace, folder: Path) -> Any:
    import torch

    from zeroshift.encode import load_encoder

    if arguments.device == "cpu":
        torch.set_num_threads(arguments.threads)
    return load_encoder(
        str(folder / "model"), device=arguments.device, dtype=arguments.dtype, batch_size=arguments.batch_size
    )


def run_pipeline(arguments: argparse.Namespace, folder: Path, encoder: Any, workers: int) -> float:
    from zeroshift.data.readers import open_images
    from zeroshift.encode import encode_images

    with tempfile.TemporaryDirectory() as cache:
        began = time.perf_counter()
        outcome = encode_images(open_images(folder / "images"), encoder, cache=Path(cache), workers=workers)
        seconds = time.perf_counter() - began
    assert outcome.computed == len(outcome.indices)
    return seconds


def run_bare(encoder: Any, pixels: np.ndarray) -> float:
    began = time.perf_counter()
    encoder.encode_pixels((pixels,))
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=640)
    parser.add_argument("--patch", type=int, default=32, choices=(16, 32))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--threads", type=int, default=1, help="of the encoder, on a CPU")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--single", action="store_true", help="also decode in the encoder's own process")
    parser.add_argument("--out", type=Path, default=RECORDS)
    parser.add_argument("--memory-of", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory_of is not None:
        encoder = load(arguments, arguments.memory_of)
        encoder.encode_pixels((np.zeros((encoder.batch_size, 3, 224, 224), np.uint8),))
        before, largest = peak(), LargestWorker()
        largest.start()
        run_pipeline(arguments, arguments.memory_of, encoder, arguments.workers)
        largest.ended.set()
        print(json.dumps({"one_batch_mb": before, "above_mb": peak() - before, "worker_mb": largest.mb}))
        return
    with tempfile.TemporaryDirectory() as temporary:
        record = measure(arguments, Path(temporary))
    print(json.dumps(record, indent=2))
    arguments.out.write_text(json.dumps(record, indent=2) + "\n")
    if arguments.out == RECORDS:
        replace_section("extraction", table([record, json.loads((HERE / "extraction_cuda.json").read_text())]))


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    from zeroshift.benchmarks.machine import busy_cores, machine
    from zeroshift.data.readers import open_images

    write_images(folder / "images", arguments.images)
    write_model(folder / "model", arguments.patch)
    encoder = load(arguments, folder)
    images = open_images(folder / "images").images
    began = time.perf_counter()
    pixels = np.stack([encoder.preprocessing(images.open(i).image)[0] for i in range(len(images))])
    decoding = time.perf_counter() - began
    run_bare(encoder, pixels[: 2 * encoder.batch_size])  # the first calls pay for what is set up once
    times: dict[str, list[float]] = {"bare": [], "pipeline": [], "one process": []}
    busy = busy_cores()
    for _ in range(arguments.repeats):
        times["bare"].append(run_bare(encoder, pixels))
        times["pipeline"].append(run_pipeline(arguments, folder, encoder, arguments.workers))
        if arguments.single:
            times["one process"].append(run_pipeline(arguments, folder, encoder, 0))
    return {
        "machine": machine(),
        "device": _device(arguments),
        "model": f"ViT-B/{arguments.patch}",
        "images": arguments.images,
        "workers": arguments.workers,
        "threads": arguments.threads if arguments.device == "cpu" else None,
        "dtype": arguments.dtype,
        "batch_size": encoder.batch_size,
        "images_per_second": {
            name: arguments.images / statistics.median(taken) for name, taken in times.items() if taken
        },
        "decoding_ms_per_image": 1000 * decoding / arguments.images,
        "ratio_to_bare": {
            name: ratios(times["bare"], taken) for name, taken in times.items() if taken and name != "bare"
        },
        "memory": measure_memory(arguments, folder),
        "busy_cores_before": busy,
    }


def table(records: list[dict[str, Any]]) -> str:
    """One row per record, for results/extraction.md."""
    lines = [
        "| model | on | images | decoding | bare | pipeline | ratio (all) | one process "
        "| peak memory (above one batch) | largest worker |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for record in records:
        rate, ratio = record["images_per_second"], record["ratio_to_bare"]
        single = ratio.get("one process", {}).get("median")
        lines.append(
            f"| {record['model']} | {record['device']} | {record['images']} | {record['workers']} "
            f"worker{'' if record['workers'] == 1 else 's'}, "
            f"{record['decoding_ms_per_image']:.1f} ms per image | {rate['bare']:,.1f}/s | {rate['pipeline']:,.1f}/s | "
            f"{ratio['pipeline']['median']:.2f} ({', '.join(f'{each:.2f}' for each in ratio['pipeline']['all'])}) | "
            f"{'' if single is None else f'{single:.2f}'} | "
            f"{record['memory']['one_batch_mb'] + record['memory']['above_mb']:,.0f} MB "
            f"({record['memory']['above_mb']:,.0f} MB) | "
            f"{record['memory']['worker_mb']:.0f} MB |"
        )
    machines = "; ".join(dict.fromkeys(record["machine"] for record in records))
    return "\n".join([*lines, "", f"Measured on: {machines}."])


def ratios(bare: list[float], whole: list[float]) -> dict[str, Any]:
    """Ratios of times measured in turns."""
    each = [first / second for first, second in zip(bare, whole, strict=True)]
    return {"median": statistics.median(each), "all": each}


def _device(arguments: argparse.Namespace) -> str:
    if arguments.device == "cpu":
        return f"CPU, {arguments.threads} thread"
    import torch

    return torch.cuda.get_device_name()


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()

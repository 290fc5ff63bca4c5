"""Encoding on CUDA: equal to the CPU, the same bytes twice, smaller batches if memory runs out.

python benchmarks/cuda_encode.py           needs a GPU, transformers and pillow; prints one JSON record
"""

from __future__ import annotations

import hashlib
import json
import platform
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from extraction import write_images, write_model

IMAGES = 96
MEMORY_SHARE = 0.02
"""Share of the GPU's memory that the process may use, so that one batch of all images cannot fit."""


def main() -> None:
    import torch
    import transformers

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_images(folder / "images", IMAGES)
        write_model(folder / "model")
        record: dict[str, Any] = {
            "device": torch.cuda.get_device_name(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            **agreement(folder),
            **repeated(folder),
            **short_of_memory(folder),
        }
    print(json.dumps(record, indent=2))


def agreement(folder: Path) -> dict[str, float]:
    """Largest differences of unit features to those of the CPU in float32."""
    from zeroshift.encode import load_encoder

    paths = sorted((folder / "images").iterdir())[:32]
    prompts = ["a photo of a cat.", "a photo of a dog.", "art of the cat in a video game."]
    on_cpu = load_encoder(str(folder / "model"), device="cpu")
    images, texts = on_cpu.encode_images(paths), on_cpu.encode_texts(prompts)
    found = {}
    for dtype in ("float32", "float16", "bfloat16"):
        there = load_encoder(str(folder / "model"), dtype=dtype)
        assert there.device.type == "cuda", "device='auto' must take the GPU"
        found[f"image_difference_{dtype}"] = float(np.abs(there.encode_images(paths) - images).max())
        found[f"text_difference_{dtype}"] = float(np.abs(there.encode_texts(prompts) - texts).max())
    return found


def repeated(folder: Path) -> dict[str, bool]:
    """Whether two extractions with separate caches write the same file."""
    from zeroshift.data import open_images
    from zeroshift.encode import Prompts, extract, load_encoder

    digests = set()
    for run in range(2):
        encoder = load_encoder(str(folder / "model"))
        made = extract(
            open_images(folder / "images"),
            encoder,
            Prompts.named("ensemble"),
            class_names=["cat", "dog"],
            cache=folder / f"cache-{run}",
            workers=4,
        )
        made.features.save(folder / "features.safetensors")
        digests.add(hashlib.sha256((folder / "features.safetensors").read_bytes()).hexdigest())
    return {"same_bytes_twice": len(digests) == 1}


def short_of_memory(folder: Path) -> dict[str, Any]:
    """A first batch far too large for the memory. The features must equal those of small batches."""
    import torch

    from zeroshift.encode import load_encoder

    encoder = load_encoder(str(folder / "model"))
    paths = sorted((folder / "images").iterdir())
    pixels = np.stack([encoder.preprocessing(picture(path))[0] for path in paths])
    many = np.concatenate([pixels] * 16)
    encoder.batch_size = 32
    expected = np.concatenate([encoder.encode_pixels((pixels,))] * 16)
    torch.cuda.set_per_process_memory_fraction(MEMORY_SHARE)
    encoder.batch_size = len(many)
    got = encoder.encode_pixels((many,))
    torch.cuda.set_per_process_memory_fraction(1.0)
    return {
        "first_batch": len(many),
        "batch_after_back_off": encoder.batch_size,
        "back_off_difference": float(np.abs(got - expected).max()),
    }


def picture(path: Path) -> Any:
    from zeroshift.encode.preprocessing import to_rgb_image

    return to_rgb_image(path)


if __name__ == "__main__":
    main()

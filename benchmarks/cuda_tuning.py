"""Cost of TPT compared with streaming ADAPT on the same images: a random CLIP of ViT-B/16's size, 64 views, K = 1000.

    python benchmarks/cuda_tuning.py            needs torch with CUDA and transformers; prints one JSON record
    python benchmarks/cuda_tuning.py --small    tiny sizes, on any device, to test the script

Weights, images and tokens are random: the time and memory of a pass do not depend on them, and no file is needed. Every
image is timed separately after a warm-up, including the wait for the device. If OUT is set, tuning_cuda.json is written
there. `src` and `benchmarks` must be importable.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tuning import DIMENSION, LENGTH, SIZES, START, VOCABULARY, WORDS, context_text, prompts, text_model

from zeroshift import OnlineADAPT
from zeroshift.arrays import Backend
from zeroshift.benchmarks.machine import describe_environment
from zeroshift.benchmarks.timing import Clock, time_spread
from zeroshift.encode.tuning import ContextText
from zeroshift.encode.tuning.text import CHUNK, GPU_CHUNK
from zeroshift.methods import TPT
from zeroshift.methods._shared.tuning import entropy_of_mean, logits_to_text
from zeroshift.zero_shot import logits

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LOGIT_SCALE = 100.0
CLASSES, VIEWS, IMAGES, WARM_UP = 1000, 64, 20, 3
CHUNKS = (16, 32, 64, 128, 1000)
CHUNK_IMAGES = 5
"""Images for each chunk size other than the library's own."""

STREAMED = 300
"""Samples ADAPT has learned from before it is timed: its bank and its precision are in use."""

PARITY_CLASSES = 20
VISION = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    "image_size": 224, "patch_size": 16,
}  # fmt: skip
TINY = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}


def clip(small: bool, dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    signs = {"bos_token_id": VOCABULARY - 2, "eos_token_id": VOCABULARY - 1, "pad_token_id": VOCABULARY - 1}
    text = {**(TINY if small else SIZES), **signs, "vocab_size": VOCABULARY, "max_position_embeddings": LENGTH}
    vision = {**TINY, "image_size": 32, "patch_size": 16} if small else VISION
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=DIMENSION)
    return transformers.CLIPModel(config).eval().requires_grad_(False).to(DEVICE, dtype)


def pooled(output: Any) -> torch.Tensor:
    return getattr(output, "pooler_output", output)


def text_model_parts(model: Any, n_classes: int, chunk_size: int) -> ContextText:
    return ContextText(
        lambda tokens: pooled(model.get_text_features(**tokens)),
        model.text_model.get_input_embeddings(),
        {"input_ids": prompts(n_classes, str(DEVICE))},
        start=START,
        words=WORDS,
        modules=(model,),
        chunk_size=chunk_size,
    )


def encode(model: Any, pixels: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        features = pooled(model.get_image_features(pixel_values=pixels)).float()
        return features / features.norm(dim=-1, keepdim=True)


class Peak:
    """Peak memory of the device in addition to what was allocated before: the weights and all images."""

    def __init__(self) -> None:
        self.held = 0
        if DEVICE.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            self.held = torch.cuda.memory_allocated()

    def gigabytes(self) -> float | None:
        if DEVICE.type != "cuda":
            return None
        return round((torch.cuda.max_memory_allocated() - self.held) / 1e9, 3)


def timed(images: int, warm_up: int, one: Callable[[int], dict[str, float]]) -> dict[str, Any]:
    """Median and spread over images of each part that `one` times."""
    rows = [one(i) for i in range(warm_up + images)][warm_up:]
    return {name: time_spread([row[name] for row in rows]) for name in rows[0]}


class Cost:
    """One model in one precision, and the images used for all timings."""

    def __init__(self, small: bool, dtype: torch.dtype, n_classes: int, n_views: int, images: int) -> None:
        self.model, self.images = clip(small, dtype), images
        self.n_classes, self.clock = n_classes, Clock(Backend.of(torch.zeros(1, device=DEVICE)))
        side = self.model.config.vision_config.image_size
        draw = torch.Generator(device=DEVICE).manual_seed(1)
        self.pixels = [
            torch.randn(n_views, 3, side, side, device=DEVICE, generator=draw).to(dtype)
            for _ in range(WARM_UP + images)
        ]

    def tpt(self, chunk_size: int, images: int) -> dict[str, Any]:
        peak = Peak()
        text = text_model_parts(self.model, self.n_classes, chunk_size)
        context = torch.tensor(text.context, device=DEVICE)
        method = TPT(text.features(context), text=text, logit_scale=LOGIT_SCALE)

        def one(i: int) -> dict[str, float]:
            views_s, views = self.clock.time(encode, self.model, self.pixels[i])
            adapt_s, _ = self.clock.time(method.adapt_views, views)
            return {"total": views_s + adapt_s, "encode_views": views_s, "tune_and_predict": adapt_s}

        record = {"chunk_size": chunk_size, **timed(images, WARM_UP, one), "peak_gb": peak.gigabytes()}
        # The parts of tuning and prediction, each timed separately.
        views = encode(self.model, self.pixels[0])[: max(1, len(self.pixels[0]) // 10)].clone()
        features = text.features(context)
        upstream = logits_to_text(entropy_of_mean(logits(views, features, LOGIT_SCALE))[1], views, LOGIT_SCALE)

        def parts(i: int) -> dict[str, float]:
            gradient_s, _ = self.clock.time(text.pull_back, context, upstream)
            return {"text_gradient": gradient_s, "text_forward": self.clock.time(text.features, context)[0]}

        return {**record, **timed(min(images, CHUNK_IMAGES), 1, parts), "chunk_size_used": text.chunk_size}

    def adapt(self, n_views: int) -> dict[str, Any]:
        """One view as a stream of single features, or all views of each image."""
        peak = Peak()
        text = text_model_parts(self.model, self.n_classes, CHUNK)
        method = OnlineADAPT(text.features(torch.tensor(text.context, device=DEVICE)), logit_scale=LOGIT_SCALE)
        draw = torch.Generator(device=DEVICE).manual_seed(2)
        for _ in range(STREAMED):
            row = torch.randn(1, method.dimension, device=DEVICE, generator=draw)
            method.adapt(row / row.norm())

        def one(i: int) -> dict[str, float]:
            views_s, views = self.clock.time(encode, self.model, self.pixels[i][:n_views])
            adapt_s, _ = self.clock.time(method.adapt_views if n_views > 1 else method.adapt, views)
            return {"total": views_s + adapt_s, "encode_views": views_s, "adapt": adapt_s}

        return {"views": n_views, **timed(self.images, WARM_UP, one), "peak_gb": peak.gigabytes()}


def parity() -> dict[str, float]:
    """A small text model here against the CPU: largest differences, the gradient's relative to its largest entry."""
    draw = np.random.default_rng(0)
    found = []
    for device in ("cpu", str(DEVICE)):
        text = context_text(text_model(True, device), prompts(PARITY_CLASSES, device), 7)
        context = text.context + np.random.default_rng(1).normal(scale=0.01, size=text.context.shape)
        upstream = np.random.default_rng(2).normal(size=(PARITY_CLASSES, text.dimension))
        found.append((text.features(context), text.pull_back(context, upstream)))
        if device == "cpu":
            # A step elsewhere: the check fails if the two are not the same function of the words.
            far = text.features(context + draw.normal(size=context.shape))
    (features, gradient), (other_features, other_gradient) = found
    return {
        "features": float(np.abs(features - other_features).max()),
        "gradient": float(np.abs(gradient - other_gradient).max() / np.abs(gradient).max()),
        "features_of_other_words": float(np.abs(features - far).max()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true")
    small = parser.parse_args().small
    if not small and DEVICE.type != "cuda":
        sys.exit("no CUDA device here. Fix: --small shows that the script runs.")
    n_classes, n_views, images = (10, 16, 3) if small else (CLASSES, VIEWS, IMAGES)
    record: dict[str, Any] = {
        **describe_environment(Backend.of(torch.zeros(1, device=DEVICE))),
        "transformers": transformers.__version__,
        "float32_matmul": torch.get_float32_matmul_precision(),
        "classes": n_classes,
        "views": n_views,
        "images": images,
        "parity": parity(),
        "weight_bytes": {},
        "towers": {},
    }
    for name in ("float32", "bfloat16", "float16"):
        if name == "float16" and DEVICE.type == "cpu":
            continue
        cost = Cost(small, getattr(torch, name), n_classes, n_views, images)
        record["weight_bytes"][name] = sum(w.numel() * w.element_size() for w in cost.model.parameters())
        tpt = cost.tpt(GPU_CHUNK if DEVICE.type == "cuda" else CHUNK, images)
        single, several = cost.adapt(1), cost.adapt(n_views)
        chunks = [cost.tpt(chunk, min(images, CHUNK_IMAGES)) for chunk in ((4, 10) if small else CHUNKS)]
        medians = [part["total"]["median"] for part in (tpt, single, several)]
        record["towers"][name] = {
            "tpt": tpt,
            "adapt_streaming": single,
            "adapt_all_views": several,
            "tpt_by_adapt": round(medians[0] / medians[1], 1),
            "tpt_by_adapt_all_views": round(medians[0] / medians[2], 1),
            "tpt_chunks": chunks,
        }
        print(f"{name}: TPT {medians[0]:.4f} s per image, ADAPT {medians[1]:.4f} s", file=sys.stderr, flush=True)
        del cost
        write(record)
    print(json.dumps(record, indent=2))


def write(record: dict[str, Any]) -> None:
    """Written after each part, so that a stopped run leaves its measurements."""
    if os.environ.get("OUT"):
        (Path(os.environ["OUT"]) / "tuning_cuda.json").write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()

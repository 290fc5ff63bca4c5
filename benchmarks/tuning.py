"""Peak memory of one TPT gradient for K prompts, in chunks and whole, on a text model of CLIP ViT-B/16's size.

    python benchmarks/tuning.py                       K = 100, 250, 500, 1000: writes tuning.json and results/tuning.md
    python benchmarks/tuning.py --written             only results/tuning.md, from the records
    python benchmarks/tuning.py --classes 10 20 --small

Each measurement runs in a fresh process: the largest increase of its resident memory between loading the model and the
gradient of the words. Weights are random, which does not affect memory. The gradient of all prompts at once is measured
if it is expected to fit into half of the free memory.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

RECORD = Path(__file__).with_suffix(".json")
CUDA_RECORD = RECORD.with_name("tuning_cuda.json")

CLASSES = (100, 250, 500, 1000)
SIZES = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 8}
SMALL = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
VOCABULARY, LENGTH, DIMENSION = 49408, 77, 512
START, WORDS, NAME = 1, 4, 3
"""Every prompt: a start token, the words to tune, the tokens of the name, a full stop, an end token, padding."""

FULL_STOP = 269
VIEWS, KEPT = 64, 6
FREE_SHARE = 0.5


def text_model(small: bool, device: str = "cpu", dtype: Any = None) -> Any:
    """A random CLIP text model with its projection, frozen."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.CLIPTextConfig(
        **(SMALL if small else SIZES), vocab_size=VOCABULARY, max_position_embeddings=LENGTH,
        projection_dim=DIMENSION, bos_token_id=VOCABULARY - 2, eos_token_id=VOCABULARY - 1,
        pad_token_id=VOCABULARY - 1,
    )  # fmt: skip
    return transformers.CLIPTextModelWithProjection(config).eval().requires_grad_(False).to(device, dtype)


def prompts(n_classes: int, device: str = "cpu") -> Any:
    """(K, 77) tokens such as CLIP's tokenizer makes: "a photo of a NAME." with random names, padded."""
    import torch

    drawn = np.random.default_rng(0)
    ids = np.full((n_classes, LENGTH), VOCABULARY - 1)
    ids[:, 0] = VOCABULARY - 2
    ids[:, START : START + WORDS] = drawn.integers(0, VOCABULARY - 2, WORDS)
    ids[:, START + WORDS : START + WORDS + NAME] = drawn.integers(0, VOCABULARY - 2, (n_classes, NAME))
    ids[:, START + WORDS + NAME] = FULL_STOP
    return torch.tensor(ids, device=device)


def context_text(model: Any, ids: Any, chunk_size: int) -> Any:
    from zeroshift.encode.tuning import ContextText

    return ContextText(
        lambda tokens: model(**tokens).text_embeds,
        model.get_input_embeddings(),
        {"input_ids": ids},
        start=START,
        words=WORDS,
        modules=(model,),
        chunk_size=chunk_size,
    )


def measure(n_classes: int, chunk_size: int, small: bool) -> dict[str, Any]:
    """One gradient, in this process."""
    from zeroshift.evaluate.resources import PeakMemory, release_free_memory
    from zeroshift.methods._shared.tuning import entropy_of_mean, logits_to_text
    from zeroshift.views import select_lowest_entropy
    from zeroshift.zero_shot import logits

    text = context_text(text_model(small), prompts(n_classes), chunk_size)
    views = np.random.default_rng(1).normal(size=(VIEWS, text.dimension))
    views /= np.linalg.norm(views, axis=1, keepdims=True)
    memory = PeakMemory()
    release_free_memory()
    memory.reset()
    before, began = memory.now(), time.perf_counter()
    features = text.features(text.context)
    encoded, forward = time.perf_counter(), memory.peak() - before
    scores = logits(views, features, 100.0)
    kept = select_lowest_entropy(scores, KEPT / VIEWS)
    gradient = text.pull_back(text.context, logits_to_text(entropy_of_mean(scores[kept])[1], views[kept], 100.0))
    assert np.isfinite(gradient).all()
    assert np.abs(gradient).max() > 0
    return {
        "classes": n_classes,
        "chunk_size": chunk_size,
        "peak_bytes": memory.peak() - before,
        "forward_peak_bytes": forward,
        "forward_seconds": round(encoded - began, 2),
        "gradient_seconds": round(time.perf_counter() - encoded, 2),
        "model_bytes": before,
    }


def measure_in_new_process(n_classes: int, chunk_size: int, small: bool) -> dict[str, Any]:
    """The same in a separate process."""
    command = [sys.executable, __file__, "--one", str(n_classes), str(chunk_size), *(["--small"] if small else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the process for K = {n_classes} ended with {done.returncode}: {done.stderr[-400:]}")
    record: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return record


def free_bytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, nargs="+", default=CLASSES)
    parser.add_argument("--chunk", type=int, default=None, help="prompts at a time; that of the library by default")
    parser.add_argument("--small", action="store_true", help="a text model of two layers")
    parser.add_argument("--one", type=int, nargs=2, metavar=("K", "CHUNK"), help="measure in this process")
    parser.add_argument("--written", action="store_true", help="measure nothing; write the page from the records")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(*given.one, given.small)))
        return
    if given.written:
        write_results()
        return
    from zeroshift.arrays import Backend
    from zeroshift.benchmarks.machine import describe_environment
    from zeroshift.encode.tuning.text import CHUNK
    from zeroshift.files import atomic_path

    chunk = given.chunk or CHUNK
    rows = []
    for n_classes in given.classes:
        rows.append(measure_in_new_process(n_classes, chunk, given.small))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    a_prompt = rows[0]["peak_bytes"] / min(chunk, rows[0]["classes"])
    for n_classes in given.classes:
        if a_prompt * n_classes > FREE_SHARE * free_bytes():
            rows.append({"classes": n_classes, "chunk_size": n_classes, "left_out": "more than half the free memory"})
            continue
        rows.append(measure_in_new_process(n_classes, n_classes, given.small))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    record = {**describe_environment(Backend.of(np.zeros(1))), "rows": rows}
    if given.small:
        print(memory_table(record))
        return
    with atomic_path(RECORD) as temporary:
        temporary.write_text(json.dumps(record, indent=1) + "\n")
    write_results()


def memory_table(record: dict[str, Any]) -> str:
    lines = [f"{record['machine']}, torch {record.get('torch', '')}.".replace(", torch .", "."), ""]
    lines += ["| K | prompts at a time | peak memory | text encoded | gradient |", "|---|---|---|---|---|"]
    for row in record["rows"]:
        shown = f"{row['left_out']} | | |" if "left_out" in row else (
            f"{row['peak_bytes'] / 1e9:.2f} GB | {row['forward_seconds']:.0f} s | {row['gradient_seconds']:.0f} s |"
        )  # fmt: skip
        lines.append(f"| {row['classes']} | {row['chunk_size']} | {shown}")
    return "\n".join(lines)


def cost_table(record: dict[str, Any]) -> str:
    """TPT next to ADAPT, in each precision of the encoder: medians over images (minimum to maximum)."""
    lines = [
        "| precision of the encoder | | time per image | peak memory | ratio to streaming ADAPT |",
        "|---|---|---|---|---|",
    ]
    for name, tower in record["towers"].items():
        usual = tower["adapt_streaming"]["total"]["median"]
        rows = [
            (f"TPT, {tower['tpt']['chunk_size']} prompts at a time", tower["tpt"]),
            *((f"TPT, {part['chunk_size']} prompts at a time", part) for part in tower["tpt_chunks"]),
            ("streaming ADAPT, one view", tower["adapt_streaming"]),
            ("streaming ADAPT, 64 views", tower["adapt_all_views"]),
        ]
        for label, part in rows:
            low, middle, high = (1e3 * part["total"][which] for which in ("least", "median", "most"))
            lines.append(
                f"| {name} | {label} | {middle:.1f} ms ({low:.1f} to {high:.1f}) | {part['peak_gb']:.2f} GB "
                f"| {part['total']['median'] / usual:.1f} |"
            )
    return "\n".join(lines)


def write_results() -> None:
    from sections import replace_section

    for name, path, table in (("tuning", RECORD, memory_table), ("tuning-cuda", CUDA_RECORD, cost_table)):
        if path.exists():
            replace_section(name, table(json.loads(path.read_text())))


if __name__ == "__main__":
    main()

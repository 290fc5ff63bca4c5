"""Time of coop, cocoop, selftpt and promptsrc, next to the same steps as a plain loop in torch, on a random CLIP.

    python benchmarks/trained_prompts.py             two layers: writes trained_prompts.json, results/tuning.md
    python benchmarks/trained_prompts.py --large     the size of ViT-B/16, K = 100, on a GPU if there is one; prints

Both sides get the same weights, prompts, samples and order. A plain loop keeps everything on the device, in float32,
with one graph per step. Times are medians of repetitions in turn; `difference` is the largest one between the two
results, relative to how far training moved them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import transformers
from sections import replace_section
from torch.nn.functional import cross_entropy, kl_div, l1_loss, normalize
from tuning import DIMENSION, LENGTH, SIZES, SMALL, START, VOCABULARY, WORDS, prompts

from zeroshift.arrays import Backend
from zeroshift.benchmarks.machine import describe_environment
from zeroshift.encode.tuning import ContextText
from zeroshift.encode.tuning.deep_prompts import _IndependentClip
from zeroshift.files import atomic_path
from zeroshift.methods import CoCoOp, CoOp, PromptSRC, SelfTPT
from zeroshift.methods._shared.two_layer_net import TwoLayerNet

RECORD = Path(__file__).with_suffix(".json")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SCALE, SAMPLES, REPETITIONS = 30.0, 32, 5
DEPTH, SPREAD = 2, 0.02
NAME_TOKENS = 3


def clip(large: bool) -> Any:
    torch.manual_seed(0)
    signs = {"bos_token_id": VOCABULARY - 2, "eos_token_id": VOCABULARY - 1, "pad_token_id": VOCABULARY - 1}
    text = {**(SIZES if large else SMALL), **signs, "vocab_size": VOCABULARY, "max_position_embeddings": LENGTH}
    side, width = (224, 768) if large else (32, 64)
    vision = {**(SIZES if large else SMALL), "image_size": side, "patch_size": 16, "hidden_size": width}
    vision |= {"intermediate_size": 4 * width, "num_attention_heads": 12 if large else 4}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=DIMENSION)
    return transformers.CLIPModel(config).eval().requires_grad_(False).to(DEVICE)


def places(ids: torch.Tensor, before: int) -> tuple[torch.Tensor, list[list[int]]]:
    """Tokens with `before` of the words in front of the name, and the positions of the words."""
    words, name = ids[:, START : START + WORDS], ids[:, START + WORDS : START + WORDS + NAME_TOKENS]
    moved = [ids[:, :START], words[:, :before], name, words[:, before:], ids[:, START + WORDS + NAME_TOKENS :]]
    columns = [START + n + (NAME_TOKENS if n >= before else 0) for n in range(WORDS)]
    return torch.cat(moved, dim=1), [columns] * len(ids)


class Problem:
    """One model with prompts, images and labels, for both sides."""

    def __init__(self, large: bool, n_classes: int) -> None:
        self.model, draw = clip(large), np.random.default_rng(0)
        self.ids = prompts(n_classes, str(DEVICE))
        self.text = self.context_text([WORDS])
        self.views = self.context_text([WORDS, WORDS // 2, 0])
        side = self.model.config.vision_config.image_size
        self.images = draw.normal(size=(SAMPLES, 3, side, side)).astype(np.float32)
        self.pixels = torch.tensor(self.images, device=DEVICE)
        with torch.no_grad():
            self.x = normalize(self.model.get_image_features(pixel_values=self.pixels).pooler_output, dim=-1)
        self.labels = draw.integers(n_classes, size=SAMPLES)
        self.y, self.start = torch.tensor(self.labels, device=DEVICE), torch.tensor(self.text.context, device=DEVICE)
        self.prototypes = self.text.features(self.text.context)

    def context_text(self, befores: list[int]) -> ContextText:
        moved = [places(self.ids, before) for before in befores]
        return ContextText(
            lambda tokens: self.model.get_text_features(**tokens).pooler_output,
            self.model.text_model.get_input_embeddings(),
            {"input_ids": torch.cat([ids for ids, _ in moved])},
            start=[row for _, rows in moved for row in rows],
            words=WORDS,
            n_prompts=len(befores),
            modules=(self.model,),
        )

    @property
    def support(self) -> tuple[np.ndarray, np.ndarray]:
        return self.x.cpu().numpy(), self.labels

    def towers(self) -> _IndependentClip:
        side = self.model.config.vision_config.image_size
        encoder = SimpleNamespace(
            model=self.model, batch_size=64, text_batch_size=256, dimension=DIMENSION, dtype=torch.float32,
            preprocessing=SimpleNamespace(size=(side, side)), key=lambda: "random",
            _to_device=lambda array, *, first: torch.tensor(array, device=DEVICE),
        )  # fmt: skip
        width = self.model.config.vision_config.hidden_size
        draw, size = np.random.default_rng(3), DEPTH * WORDS * (self.start.shape[1] + width)
        parameters = draw.normal(scale=SPREAD, size=size).astype(np.float32)
        return _IndependentClip(
            encoder, {"input_ids": self.ids}, parameters, depth=DEPTH, words=WORDS, chunk_size=64, image_chunk_size=16
        )

    def plain_text(self, context: torch.Tensor, *befores: int) -> torch.Tensor:
        """(V K, d) with these embeddings of the words."""
        parts = []
        for ids, rows in (places(self.ids, before) for before in befores):

            def replaced(module: Any, inputs: Any, output: torch.Tensor, columns: list[int] = rows[0]) -> torch.Tensor:
                output = output.clone()
                output[:, columns] = context
                return output

            handle = self.model.text_model.get_input_embeddings().register_forward_hook(replaced)
            parts.append(self.model.get_text_features(input_ids=ids).pooler_output)
            handle.remove()
        return normalize(torch.cat(parts), dim=-1)


def sgd(parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-5, momentum=0.9, weight_decay=5e-4)


def plain_coop(problem: Problem) -> np.ndarray:
    context = problem.start.clone().requires_grad_()
    optimiser = sgd([context])
    for rate in (1e-5, 2e-3, 1.5e-3):
        optimiser.param_groups[0]["lr"] = rate
        loss = cross_entropy(SCALE * problem.x @ problem.plain_text(context, WORDS).T, problem.y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return context.detach().cpu().numpy()


def plain_cocoop(problem: Problem, net: TwoLayerNet) -> np.ndarray:
    context = problem.start.clone().requires_grad_()
    layers = [torch.tensor(part, dtype=torch.float32, device=DEVICE).requires_grad_() for part in net]
    optimiser = sgd([context, *layers])
    for x, y in zip(problem.x, problem.y, strict=True):
        shift = (x @ layers[0].T + layers[1]).relu() @ layers[2].T + layers[3]
        loss = cross_entropy((SCALE * problem.plain_text(context + shift, WORDS) @ x)[None], y[None])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return context.detach().cpu().numpy()


def plain_selftpt(problem: Problem, net: TwoLayerNet) -> np.ndarray:
    context = problem.start.clone().requires_grad_()
    layers = [torch.tensor(part, dtype=torch.float32, device=DEVICE) for part in net]
    optimiser, n = torch.optim.AdamW([context], lr=5e-3), 3 * len(problem.ids)
    numbers = torch.arange(n, device=DEVICE)
    partners = (numbers[:, None] % len(problem.ids) == numbers % len(problem.ids)) & (numbers[:, None] != numbers)
    for _ in range(10):
        text = problem.plain_text(context, WORDS, WORDS // 2, 0)
        embedded = normalize((text @ layers[0].T + layers[1]).relu() @ layers[2].T + layers[3], dim=-1)
        scores = (embedded @ embedded.T / 0.07).fill_diagonal_(-torch.inf).log_softmax(-1)
        loss = -scores[partners].sum() / (2 * n)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return context.detach().cpu().numpy()


def plain_promptsrc(problem: Problem, towers: _IndependentClip, order: np.ndarray) -> np.ndarray:
    """Through the library's forward functions, in one graph per step."""
    flat = torch.tensor(np.array(towers.parameters), device=DEVICE).requires_grad_()
    optimiser, t0 = sgd([flat]), torch.tensor(problem.prototypes, device=DEVICE)
    for rows in order.reshape(-1, 4):
        pixels = problem.images[rows]
        with torch.no_grad():
            f0 = problem.x[torch.tensor(rows, device=DEVICE)]
        text, image = towers._prompts(flat)
        t, f = towers._encode_text(text, slice(None)), towers._encode_images(pixels, image, 0).features
        z, z0 = SCALE * f @ t.T, SCALE * f0 @ t0.T
        kl = kl_div(z.log_softmax(1), z0.log_softmax(1), reduction="sum", log_target=True) / z.numel()
        loss = cross_entropy(z, problem.y[torch.tensor(rows, device=DEVICE)]) + 25 * l1_loss(t, t0)
        optimiser.zero_grad()
        (loss + 10 * l1_loss(f, f0) + kl).backward()
        optimiser.step()
    return flat.detach().cpu().numpy()


def cases(problem: Problem) -> dict[str, tuple[Callable[[], Any], Callable[[], np.ndarray], np.ndarray]]:
    """For each method: the result of the library, that of the plain loop, and where both start."""
    draw, width, given = np.random.default_rng(1), problem.start.shape[1], {"logit_scale": SCALE}
    net, head = TwoLayerNet.random(draw, DIMENSION, 32, width), TwoLayerNet.random(draw, DIMENSION, DIMENSION, 128)
    order, towers = draw.permutation(SAMPLES)[None], problem.towers()
    context, prototypes, views = problem.text.context, problem.prototypes, problem.views
    own = SelfTPT.prototypes_of(views)
    tuned = {"text": problem.text, "support": problem.support, **given}
    same = np.arange(SAMPLES)[None]
    deep = {"support": (problem.images, problem.labels), "epochs": 1, "order": order, "average": None, **given}
    return {
        "coop": (
            lambda: CoOp(prototypes, epochs=3, order=same.repeat(3, 0), batch_size=SAMPLES, **tuned).context,
            lambda: plain_coop(problem),
            context,
        ),
        "cocoop": (
            lambda: CoCoOp(prototypes, epochs=1, order=same, meta_net=net, **tuned).context,
            lambda: plain_cocoop(problem, net),
            context,
        ),
        "selftpt": (
            lambda: SelfTPT(own, text=views, source=(np.array(context), *head), **given).context,
            lambda: plain_selftpt(problem, head),
            context,
        ),
        "promptsrc": (
            lambda: PromptSRC(prototypes, towers=towers, **deep).prompts,
            lambda: plain_promptsrc(problem, towers, order),
            towers.parameters,
        ),
    }  # fmt: skip


def measure(problem: Problem) -> dict[str, Any]:
    record: dict[str, Any] = {}
    for name, (library, plain, start) in cases(problem).items():
        times: dict[str, list[float]] = {"library": [], "plain": []}
        for _ in range(1 + REPETITIONS):
            found = {}
            for side, run in (("library", library), ("plain", plain)):
                began = time.perf_counter()
                found[side] = run()
                times[side].append(time.perf_counter() - began)
        seconds = {side: float(np.median(values[1:])) for side, values in times.items()}
        moved = np.abs(found["plain"] - start).max()
        difference = float(np.abs(found["library"] - found["plain"]).max() / moved)
        record[name] = {**seconds, "ratio": round(seconds["library"] / seconds["plain"], 2), "difference": difference}
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true")
    large = parser.parse_args().large
    n_classes = 100 if large else 10
    environment = describe_environment(Backend.of(torch.zeros(1, device=DEVICE)))
    record = {**environment, "classes": n_classes, "methods": measure(Problem(large, n_classes))}
    print(json.dumps(record, indent=1))
    if not large:
        with atomic_path(RECORD) as temporary:
            temporary.write_text(json.dumps(record, indent=1) + "\n")
        replace_section("trained-prompts", training_table(record))


def training_table(record: dict[str, Any]) -> str:
    lines = ["| | library | plain loop | ratio | largest difference |", "|---|---|---|---|---|"]
    for name, row in record["methods"].items():
        times = f"{1e3 * row['library']:.0f} ms | {1e3 * row['plain']:.0f} ms"
        lines.append(f"| {name} | {times} | {row['ratio']:.2f} | {row['difference']:.0e} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()

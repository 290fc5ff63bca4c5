"""A checkpoint of MaPLe as its authors' training writes it, with small random numbers."""

from __future__ import annotations

import torch

WORDS, DEPTH, WIDTH = 2, 3, 32
IMAGE_WIDTH = 48
"""Width of the image encoder, unlike that of the text encoder."""


def state(depth=DEPTH, *, words=WORDS, text=WIDTH, image=IMAGE_WIDTH):
    """The authors' keys, with small random numbers."""
    draw = torch.Generator().manual_seed(5)

    def numbers(*shape):
        return 0.2 * torch.randn(*shape, generator=draw)

    found = {"ctx": numbers(words, text), "proj.weight": numbers(image, text), "proj.bias": numbers(image)}
    for n in range(depth - 1):
        found[f"compound_prompts_text.{n}"] = numbers(words, text)
        found[f"compound_prompt_projections.{n}.weight"] = numbers(image, text)
        found[f"compound_prompt_projections.{n}.bias"] = numbers(image)
    found["token_prefix"], found["token_suffix"] = numbers(7, 1, text), numbers(7, 5, text)
    named = {f"prompt_learner.{name}": tensor for name, tensor in found.items()}
    return {**named, "image_encoder.conv1.weight": numbers(2, 2)}


def write_checkpoint(path):
    """As the authors' training writes it, the schedule and all."""
    weight = torch.nn.Parameter(torch.zeros(2))
    optimiser = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 5.0)
    kept = {"successor": schedule, "last_epoch": 2}
    torch.save({"state_dict": state(), "epoch": 2, "optimizer": optimiser.state_dict(), "scheduler": kept}, path)
    return path

"""A tiny ALBEF checkpoint in the published layout, and the model's mathematics written out again to compare with."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.nn import functional

WORDS = ("a", "photo", "of", "the", "cat", "dog", "t", "shirt", "top", "word", "##s")
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
WIDTH, HEADS, HIDDEN, DIMENSION, PATCH = 128, 2, 192, 24, 8
TEXT_LAYERS, FUSION_LAYERS, VISION_LAYERS = 2, 2, 3
TEMPERATURE = 0.04


def random_tensors(side: int = 32, text_prefix: str = "text_encoder.bert.") -> dict[str, torch.Tensor]:
    """A state dictionary with every tensor name of ALBEF's own, momentum copies and queues included."""
    generator = torch.Generator().manual_seed(0)

    def noise(*shape: int) -> torch.Tensor:
        return 0.2 * torch.randn(*shape, generator=generator)

    state: dict[str, torch.Tensor] = {}

    def linear(name: str, outputs: int, inputs: int) -> None:
        state[f"{name}.weight"], state[f"{name}.bias"] = noise(outputs, inputs), noise(outputs)

    def norm(name: str) -> None:
        state[f"{name}.weight"], state[f"{name}.bias"] = 1 + noise(WIDTH), noise(WIDTH)

    def bert_attention(name: str) -> None:
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            linear(f"{name}.{part}", WIDTH, WIDTH)
        norm(f"{name}.output.LayerNorm")

    for momentum in ("", "_m"):
        vision = f"visual_encoder{momentum}."
        state[f"{vision}cls_token"] = noise(1, 1, WIDTH)
        state[f"{vision}pos_embed"] = noise(1, 1 + (side // PATCH) ** 2, WIDTH)
        state[f"{vision}patch_embed.proj.weight"] = noise(WIDTH, 3, PATCH, PATCH)
        state[f"{vision}patch_embed.proj.bias"] = noise(WIDTH)
        for block in (f"{vision}blocks.{i}" for i in range(VISION_LAYERS)):
            norm(f"{block}.norm1"), norm(f"{block}.norm2")
            linear(f"{block}.attn.qkv", 3 * WIDTH, WIDTH), linear(f"{block}.attn.proj", WIDTH, WIDTH)
            linear(f"{block}.mlp.fc1", HIDDEN, WIDTH), linear(f"{block}.mlp.fc2", WIDTH, HIDDEN)
        norm(f"{vision}norm")
        text = text_prefix.replace("text_encoder", f"text_encoder{momentum}")
        state[f"{text}embeddings.position_ids"] = torch.arange(40)[None]
        for kind, rows in (("word", len(VOCABULARY)), ("position", 40), ("token_type", 2)):
            state[f"{text}embeddings.{kind}_embeddings.weight"] = noise(rows, WIDTH)
        norm(f"{text}embeddings.LayerNorm")
        for i in range(TEXT_LAYERS + FUSION_LAYERS):
            layer = f"{text}encoder.layer.{i}"
            bert_attention(f"{layer}.attention")
            if i >= TEXT_LAYERS:
                bert_attention(f"{layer}.crossattention")
            linear(f"{layer}.intermediate.dense", HIDDEN, WIDTH), linear(f"{layer}.output.dense", WIDTH, HIDDEN)
            norm(f"{layer}.output.LayerNorm")
        linear(f"vision_proj{momentum}", DIMENSION, WIDTH), linear(f"text_proj{momentum}", DIMENSION, WIDTH)
    if "bert" in text_prefix:
        state["text_encoder.cls.predictions.bias"] = noise(len(VOCABULARY))
    linear("itm_head", 2, WIDTH)
    state |= {"image_queue": noise(DIMENSION, 16), "text_queue": noise(DIMENSION, 16)}
    state |= {"queue_ptr": torch.zeros(1, dtype=torch.long), "temp": torch.tensor(TEMPERATURE)}
    return state


def save(folder: Path, state: dict[str, torch.Tensor], name: str = "ALBEF.pth") -> Path:
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    torch.save({"model": state, "epoch": 29, "config": {"image_res": 256}}, folder / name)
    return folder


# The same model again: one image or prompt at a time, head by head, softmax written out.


def attended(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    mixed = []
    for head in range(HEADS):
        own = slice(64 * head, 64 * (head + 1))
        weights = torch.softmax(query[:, own] @ key[:, own].T / 8, dim=1)
        mixed.append(weights @ value[:, own])
    return torch.cat(mixed, dim=1)


def applied(state: dict[str, torch.Tensor], name: str, rows: torch.Tensor) -> torch.Tensor:
    return rows @ state[f"{name}.weight"].T + state[f"{name}.bias"]


def normalised(state: dict[str, torch.Tensor], name: str, rows: torch.Tensor, eps: float) -> torch.Tensor:
    centred = rows - rows.mean(dim=1, keepdim=True)
    scaled = centred / (centred.square().mean(dim=1, keepdim=True) + eps).sqrt()
    return scaled * state[f"{name}.weight"] + state[f"{name}.bias"]


def gelu(x: torch.Tensor) -> torch.Tensor:
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def image_reference(
    state: dict[str, torch.Tensor], pixels: torch.Tensor, prefix: str = "visual_encoder."
) -> np.ndarray:
    side = pixels.shape[1] // PATCH
    kernel = state[f"{prefix}patch_embed.proj.weight"].reshape(WIDTH, -1)
    corners = [(PATCH * i, PATCH * j) for i in range(side) for j in range(side)]
    patches = torch.stack([pixels[:, i : i + PATCH, j : j + PATCH].reshape(-1) for i, j in corners])
    rows = torch.cat([state[f"{prefix}cls_token"][0], patches @ kernel.T + state[f"{prefix}patch_embed.proj.bias"]])
    rows = rows + state[f"{prefix}pos_embed"][0]
    for block in (f"{prefix}blocks.{i}" for i in range(VISION_LAYERS)):
        query, key, value = applied(state, f"{block}.attn.qkv", normalised(state, f"{block}.norm1", rows, 1e-6)).split(
            WIDTH, dim=1
        )
        rows = rows + applied(state, f"{block}.attn.proj", attended(query, key, value))
        inner = gelu(applied(state, f"{block}.mlp.fc1", normalised(state, f"{block}.norm2", rows, 1e-6)))
        rows = rows + applied(state, f"{block}.mlp.fc2", inner)
    token = normalised(state, f"{prefix}norm", rows, 1e-6)[:1]
    return functional.normalize(applied(state, "vision_proj", token))[0].numpy()


def text_reference(state: dict[str, torch.Tensor], ids: list[int], prefix: str = "text_encoder.bert.") -> np.ndarray:
    tables = f"{prefix}embeddings"
    rows = state[f"{tables}.word_embeddings.weight"][ids] + state[f"{tables}.token_type_embeddings.weight"][0]
    rows = rows + state[f"{tables}.position_embeddings.weight"][: len(ids)]
    rows = normalised(state, f"{tables}.LayerNorm", rows, 1e-12)
    for layer in (f"{prefix}encoder.layer.{i}" for i in range(TEXT_LAYERS)):
        parts = [applied(state, f"{layer}.attention.self.{part}", rows) for part in ("query", "key", "value")]
        update = applied(state, f"{layer}.attention.output.dense", attended(*parts))
        rows = normalised(state, f"{layer}.attention.output.LayerNorm", rows + update, 1e-12)
        inner = gelu(applied(state, f"{layer}.intermediate.dense", rows))
        update = applied(state, f"{layer}.output.dense", inner)
        rows = normalised(state, f"{layer}.output.LayerNorm", rows + update, 1e-12)
    return functional.normalize(applied(state, "text_proj", rows[:1]))[0].numpy()


def numbers(words: str) -> list[int]:
    """[CLS] and the words; no [SEP], which ALBEF's own tokenizer leaves out."""
    return [VOCABULARY.index("[CLS]"), *(VOCABULARY.index(word) for word in words.split())]


def picture(width: int, height: int) -> np.ndarray:
    return np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8)


def as_albef_sees_it(image: np.ndarray, side: int) -> torch.Tensor:
    squashed = np.asarray(Image.fromarray(image).resize((side, side), Image.Resampling.BICUBIC), np.float32) / 255
    mean, std = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
    return torch.from_numpy(((squashed - np.float32(mean)) / np.float32(std)).transpose(2, 0, 1))

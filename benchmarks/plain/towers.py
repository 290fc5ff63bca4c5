"""Methods that tune the encoders of a CLIP of the transformers library, with torch's gradients and optimisers.

Tent, BATCLIP and Mint change the weights of their model; give them a copy. Each takes the pixels (N, 3, H, W) as the
model takes them, whole batches at a time.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from plain.common import entropy, unit


def image_features(model: Any, pixels: Tensor) -> Tensor:
    """(B, d), not normalised."""
    found = model.get_image_features(pixel_values=pixels)
    return getattr(found, "pooler_output", found)


def text_features(model: Any, ids: Tensor) -> Tensor:
    """(K, d), of unit length."""
    found = model.get_text_features(input_ids=ids)
    return unit(getattr(found, "pooler_output", found))


def norm_parameters(tower: nn.Module) -> list[nn.Parameter]:
    """Weights and biases of the tower's layer norms, set to be trained."""
    layers = [module for module in tower.modules() if isinstance(module, nn.LayerNorm)]
    return [array.requires_grad_() for layer in layers for array in (layer.weight, layer.bias)]


def tent(model: Any, pixels: Tensor, prototypes: Tensor, *, logit_scale: float, batch: int, rate: float) -> Tensor:
    """Logits (N, K), each batch before its step."""
    optimizer = torch.optim.Adam(norm_parameters(model.vision_model), rate)
    answers = []
    for images in pixels.split(batch):
        logits = logit_scale * unit(image_features(model, images)) @ prototypes.T
        optimizer.zero_grad()
        entropy(logits).mean().backward()
        optimizer.step()
        answers.append(logits.detach())
    return torch.cat(answers)


def batclip(
    model: Any,
    pixels: Tensor,
    ids: Tensor,
    *,
    logit_scale: float,
    batch: int,
    rate: float,
    optimizer: str = "AdamW",
    details: dict | None = None,
) -> Tensor:
    """Logits (N, K), each batch before its step."""
    norms = norm_parameters(model.vision_model) + norm_parameters(model.text_model)
    steps = getattr(torch.optim, optimizer)(norms, rate, weight_decay=0.01)
    answers, losses = [], []
    for images in pixels.split(batch):
        raw, text = image_features(model, images), text_features(model, ids)
        logits = logit_scale * unit(raw) @ text.T
        classes = logits.argmax(1)
        found = classes.unique()
        means = torch.stack([raw[classes == k].mean(0) for k in found])
        image_text = (means * text[found]).sum(1).mean()
        cosines = unit(means) @ unit(means).T
        between = sum(1 - cosines[a, b] for a in range(len(found)) for b in range(len(found)) if a != b)
        loss = entropy(logits).mean()
        steps.zero_grad()
        (loss - image_text - between).backward()
        steps.step()
        answers.append(logits.detach())
        losses.append([loss.item(), image_text.item(), torch.as_tensor(between).item()])
    if details is not None:
        details["losses"], details["norms"] = losses, torch.cat([array.detach().reshape(-1) for array in norms])
    return torch.cat(answers)


def mint(
    model: Any,
    pixels: Tensor,
    prototypes: Tensor,
    *,
    batch: int,
    logit_scale: float = 100.0,
    rate: float = 7e-3,
    prior: float = 10000.0,
    details: dict | None = None,
) -> Tensor:
    """Logits (N, K), each batch after its step. While all features are of one class, no step is made."""
    norms = norm_parameters(model.vision_model)
    own = [array.detach().clone() for array in norms]
    before, after = (torch.zeros_like(prototypes) for _ in range(2))
    n_before, n_after = (torch.zeros_like(prototypes[:, 0]) for _ in range(2))
    gradient_mean = [torch.zeros_like(array) for array in own]
    answers = []

    def assign(features: Tensor) -> Tensor:
        return (logit_scale * features @ prototypes.T).argmax(1)

    def add(sums: Tensor, counts: Tensor, features: Tensor, classes: Tensor) -> None:
        sums.index_add_(0, classes, features.detach())
        counts += torch.bincount(classes, minlength=len(counts))

    for number, images in enumerate(pixels.split(batch)):
        features = unit(image_features(model, images))
        classes = assign(features)
        add(before, n_before, features, classes)
        means, mean = before / n_before.clamp(min=1)[:, None], before.sum(0) / n_before.sum()
        in_batch = torch.bincount(classes, minlength=len(prototypes)).to(features.dtype)
        weights = 1 / (in_batch[classes] * (in_batch > 0).sum())
        total = (weights * ((features - mean) ** 2).sum(1)).sum()
        within = (weights * ((features - means[classes]) ** 2).sum(1)).sum()
        gradients = torch.autograd.grad(within - total, norms)
        if (n_before > 0).sum() == 1:
            gradients = [torch.zeros_like(array) for array in own]
        gradient_mean = [(number * old + new) / (number + 1) for old, new in zip(gradient_mean, gradients, strict=True)]
        optimizer = torch.optim.Adam(norms, rate)
        for array, gradient in zip(norms, gradient_mean, strict=True):
            array.grad = gradient
        optimizer.step()
        with torch.no_grad():
            features = unit(image_features(model, images))
            add(after, n_after, features, assign(features))
            share = n_after.sum() / (prior + n_after.sum())
            mixed = unit((1 - share) * prototypes + share * after / n_after.clamp(min=1)[:, None])
            answers.append(logit_scale * features @ mixed.T)
            for array, old in zip(norms, own, strict=True):
                array.copy_(old)
    if details is not None:
        details["gradient_mean"] = torch.cat([array.reshape(-1) for array in gradient_mean])
    return torch.cat(answers)


def tnt(
    model: Any,
    views: Tensor,
    prototypes: Tensor,
    noise: Tensor,
    *,
    mean: Tensor,
    std: Tensor,
    logit_scale: float,
    view_ratio: float = 0.1,
    vote_ratio: float = 0.1,
    max_noise: float = 1 / 255,
    rate: float = 1e-3,
    steps: int = 1,
    details: dict | None = None,
) -> Tensor:
    """Votes (N, K) of images with views (N, V, 3, H, W) from 0 to 1; `noise` (3, H, W) is where each image starts."""

    def encode(image: Tensor, noise: Tensor) -> Tensor:
        return unit(image_features(model, ((image + noise).clamp(0, 1) - mean) / std))

    tuned, answers = [], []
    for image in views:
        xi, kept = noise.clone(), None
        for _ in range(steps):
            xi.requires_grad_()
            features = encode(image, xi)
            logits = logit_scale * features @ prototypes.T
            if kept is None:
                kept = entropy(logits).argsort()[: max(1, int(len(image) * view_ratio))]
            log_mean = torch.logsumexp(torch.log_softmax(logits[kept], 1), 0) - math.log(len(kept))
            distances = torch.pdist(features[kept])
            loss = -0.1 * (log_mean.exp() * log_mean).sum() + distances[distances > 0].mean()
            (gradient,) = torch.autograd.grad(loss, xi)
            xi = (xi.detach() - rate * gradient.sign()).clamp(-max_noise, max_noise)
        with torch.no_grad():
            cosines = encode(image, xi) @ prototypes.T
        logits = logit_scale * cosines
        n_voters = max(1, int(len(image) * vote_ratio))
        p = logits.softmax(1).mean(0)
        temperature = torch.finfo(torch.float32).eps * (1 - (p * p.log()).sum())
        votes = (cosines[entropy(logits).argsort()[:n_voters]] / temperature).softmax(1).sum(0)
        tied = (votes == votes.max()).nonzero()[:, 0]
        for vote in cosines[n_voters:].argmax(1):
            if len(tied) > 1 and vote in tied:
                votes[vote] += 1
                break
        tuned.append(xi)
        answers.append(votes)
    if details is not None:
        details["noise"] = torch.stack(tuned)
    return torch.stack(answers)

"""TIMO and TIMO-S: images weight the prompts, and prompts are added to the images of a Gaussian discriminant."""

from __future__ import annotations

import torch
from torch import Tensor

from plain.common import accuracy, gda, unit

ALPHAS = (1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0, 1e3, 1e4)
Pair = tuple[Tensor, Tensor]


def scores(
    features: Tensor,
    prototypes: Tensor | None = None,
    *,
    prompts: Tensor,
    support: Pair,
    validation: Pair | None = None,
    logit_scale: float = 100.0,  # not used by the method
    gamma: float = 50.0,
    copies: int | None = None,
    alpha: float | None = None,
    details: dict | None = None,
) -> Tensor:
    """Logits (N, K) from prompts (K, P, d). `copies`: prompts per class added to its images, by default P."""
    matching = _matching(prompts, support)
    text = _text_weights(prompts, matching, gamma)
    W, b = _discriminant(prompts, matching, support, copies or prompts.shape[1])
    if alpha is None:
        alpha, _ = _search_alpha(text, W, b, validation)
    if details is not None:
        details["igt_weights"], details["alpha"] = text.T, alpha
    return alpha * features @ text.T + features @ W.T + b


def searched_scores(
    features: Tensor,
    prototypes: Tensor | None = None,
    *,
    prompts: Tensor,
    support: Pair,
    validation: Pair,
    logit_scale: float = 100.0,  # not used by the method
    gammas: tuple[float, ...] = tuple(range(5, 101, 5)),
    candidates: int = 10,
    details: dict | None = None,
) -> Tensor:
    """TIMO-S: gamma and the number of prompts added to the images are searched on the validation samples too."""
    matching = _matching(prompts, support)
    text, best = None, 0.0
    for gamma in gammas:
        tried = _text_weights(prompts, matching, gamma)
        right = accuracy(validation[0] @ tried.T, validation[1])
        if text is None or right > best:
            text, best = tried, right
    found, best = None, 0.0
    for copies in torch.linspace(1, 2 * prompts.shape[1], candidates, dtype=torch.float64).int().tolist():
        W, b = _discriminant(prompts, matching, support, copies)
        alpha, right = _search_alpha(text, W, b, validation)
        if found is None or right > best:
            found, best = (W, b, alpha, copies), right
    W, b, alpha, copies = found
    if details is not None:
        details["igt_weights"], details["alpha"], details["copies"] = text.T, alpha, copies
    return alpha * features @ text.T + features @ W.T + b


def _matching(prompts: Tensor, support: Pair) -> Tensor:
    """(K, P) cosines of every prompt with the mean image of its class."""
    features, labels = support
    anchors = torch.stack([unit(features[labels == k].mean(0)) for k in range(len(prompts))])
    return torch.einsum("kd,kpd->kp", anchors, prompts)


def _text_weights(prompts: Tensor, matching: Tensor, gamma: float) -> Tensor:
    weights = torch.softmax(gamma * matching / matching.norm(dim=1, keepdim=True), dim=1)
    return unit((weights[:, :, None] * prompts).sum(1))


def _discriminant(prompts: Tensor, matching: Tensor, support: Pair, copies: int) -> tuple[Tensor, Tensor]:
    K, _, d = prompts.shape
    joined = []
    for k in range(K):
        order = torch.argsort(matching[k], descending=True, stable=True).repeat(2)[:copies]
        joined.append(matching[k, order, None] * prompts[k, order])
    text = torch.stack(joined).reshape(-1, d)
    text_labels = torch.arange(K, device=text.device).repeat_interleave(len(text) // K)
    W, b, _, _ = gda(torch.cat([text, support[0]]), torch.cat([text_labels, support[1]]), K)
    return W, b


def _search_alpha(text: Tensor, W: Tensor, b: Tensor, validation: Pair | None) -> tuple[float, float]:
    alpha, best = 0.1, 0.0
    for candidate in ALPHAS if validation is not None else ():
        right = accuracy(candidate * validation[0] @ text.T + validation[0] @ W.T + b, validation[1])
        if right > best:
            alpha, best = candidate, right
    return alpha, best

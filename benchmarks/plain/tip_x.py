"""TIP-X: Tip-Adapter's votes, and divergences between zero-shot predictions rescaled to the range of cosines."""

from __future__ import annotations

import torch
from torch import Tensor

from plain.common import accuracy


def scores(
    features: Tensor,
    prototypes: Tensor,
    *,
    support: tuple[Tensor, Tensor],
    validation: tuple[Tensor, Tensor] | None = None,
    logit_scale: float = 100.0,
    temperature: float = 0.5,
    alpha: float = 1.0,
    beta: float = 5.5,
    gamma: float = 1.0,
    search_alpha: tuple[float, float] = (0.1, 50.0),
    search_beta: tuple[float, float] = (1.0, 50.0),
    search_gamma: tuple[float, float] = (0.1, 30.0),
    search_steps: tuple[int, int] = (200, 20),
    gamma_steps: int = 50,
    released: bool = False,
    details: dict | None = None,
) -> Tensor:
    """Logits (N, K). With validation samples alpha, beta and gamma are searched."""
    keys, labels = support
    values = torch.nn.functional.one_hot(labels, len(prototypes)).to(keys.dtype)
    log_signatures = _log_signature(keys, prototypes, temperature)

    def divergences(x: Tensor) -> Tensor:
        log_s = _log_signature(x, prototypes, temperature)
        return (log_s.exp() * log_s).sum(1, keepdim=True) - log_s.exp() @ log_signatures.T

    known = keys if validation is None else validation[0]
    E, R = divergences(known), known @ keys.T
    if validation is not None:
        zero_shot, term = logit_scale * known @ prototypes.T, -_rescaled(E, E, R) @ values
        best = 0.0
        caches = {
            try_beta: torch.exp(-try_beta * (1 - R)) @ values for try_beta in _steps(search_beta, search_steps[0])
        }
        for try_alpha in _steps(search_alpha, search_steps[1]):
            for try_beta, cache in caches.items():
                base = zero_shot + try_alpha * cache
                for try_gamma in _steps(search_gamma, gamma_steps):
                    right = accuracy(base + try_gamma * term, validation[1])
                    if right > best:
                        alpha, beta, gamma, best = try_alpha, try_beta, try_gamma, right
    cosines, own = features @ keys.T, divergences(features)
    if released:
        E, R = own, (cosines if validation is None else R)
    term = -_rescaled(own, E, R) @ values
    if details is not None:
        details.update(alpha=alpha, beta=beta, gamma=gamma, divergences=own, term=term)
    return logit_scale * features @ prototypes.T + gamma * term + alpha * torch.exp(-beta * (1 - cosines)) @ values


def _log_signature(x: Tensor, prototypes: Tensor, temperature: float) -> Tensor:
    return torch.log_softmax(x @ prototypes.T / temperature, dim=1)


def _rescaled(E: Tensor, E_range: Tensor, R: Tensor) -> Tensor:
    """E, so that the range of `E_range` becomes that of R."""
    return (E - E_range.min()) / (E_range.max() - E_range.min()) * (R.max() - R.min()) + R.min()


def _steps(search: tuple[float, float], count: int) -> list[float]:
    start, end = search
    return [start + i * (end - start) / count for i in range(count)]

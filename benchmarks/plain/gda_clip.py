"""GDA-CLIP: a Gaussian discriminant from labelled samples, added to the zero-shot logits."""

from __future__ import annotations

from torch import Tensor

from plain.common import accuracy, gda

ALPHAS = (1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0)


def scores(
    features: Tensor,
    prototypes: Tensor,
    *,
    support: tuple[Tensor, Tensor],
    validation: tuple[Tensor, Tensor] | None = None,
    logit_scale: float = 100.0,
    alpha: float | None = None,
    alphas: tuple[float, ...] = ALPHAS,
    details: dict | None = None,
) -> Tensor:
    """Logits (N, K). `alpha` unless given is the first of `alphas` that is best on the validation samples, else 0.1."""
    W, b, precision, means = gda(*support, len(prototypes))

    def logits(x: Tensor, alpha: float) -> Tensor:
        return logit_scale * x @ prototypes.T + alpha * (x @ W.T + b)

    if alpha is None:
        alpha, best = 0.1, 0.0
        for candidate in alphas if validation is not None else ():
            right = accuracy(logits(validation[0], candidate), validation[1])
            if right > best:
                alpha, best = candidate, right
    if details is not None:
        details["gda_only_scores"] = features @ W.T + b
        details["precision"], details["means"], details["alpha"] = precision, means, alpha
    return logits(features, alpha)

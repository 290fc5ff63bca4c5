"""SwapPrompt's two losses: what one prompt says of a view, predicted by the other from another view; and pseudo-labels.

Each comes with its gradient with respect to the text features of the prompt that learns, in closed form.
"""

from __future__ import annotations

from typing import NamedTuple

from zeroshift.adapt.surest import Surest
from zeroshift.arrays import Array, Home, namespace
from zeroshift.methods.parts.image_views import ImageViews
from zeroshift.methods.parts.tuning_losses import cross_entropy, logits_to_text
from zeroshift.zero_shot import log_softmax, logits, pseudo_class, softmax

__all__ = ["PseudoLabels", "pseudo_loss", "surest_of_each_class", "swap_loss"]


class PseudoLabels(NamedTuple):
    """Some images and the classes they are taken for: (n, d) and (n,)."""

    features: Array
    classes: Array


def swap_loss(views: tuple[Array, Array], online: Array, target: Array, logit_scale: float) -> tuple[Array, Array]:
    """CE(target on one view, online on the other), both ways, summed over images; and its gradient (K, d).

    Two views (n, d) of the same images, and the text features (K, d) of both prompts; the target's predictions are
    taken as they are. Of equal views and prompts it is twice the entropy:

    >>> import numpy as np
    >>> x = np.array([[0.8, 0.6]])
    >>> loss, _ = swap_loss((x, x), np.eye(2), np.eye(2), 5.0)
    >>> round(float(loss) / 2, 4)
    0.5822
    """
    xp = namespace(online)
    loss, gradient = 0.0, xp.zeros_like(online)
    for seen, asked in (views, views[::-1]):
        wanted = softmax(logits(seen, target, logit_scale))
        losses, to_logits = cross_entropy(logits(asked, online, logit_scale), wanted)
        loss = loss + xp.sum(losses)
        gradient = gradient + logits_to_text(to_logits, asked, logit_scale)
    return loss, gradient


def pseudo_loss(labels: PseudoLabels, online: Array, logit_scale: float) -> tuple[Array, Array]:
    """Cross-entropy with the pseudo-labels, summed over them; and its gradient (K, d)."""
    xp = namespace(online)
    classes = xp.arange(online.shape[0], device=Home.of(online).device)
    one_hot = xp.astype(labels.classes[:, None] == classes, online.dtype)
    losses, to_logits = cross_entropy(logits(labels.features, online, logit_scale), one_hot)
    return xp.sum(losses), logits_to_text(to_logits, labels.features, logit_scale)


def surest_of_each_class(images: ImageViews, text: Array, logit_scale: float, count: int) -> PseudoLabels:
    """Of every class the `count` images it is most probable for, among those it is the most probable class of."""
    home, xp = Home.of(text), namespace(text)
    surest = Surest(home, count)
    for block in images.blocks():
        log_y = log_softmax(logits(images.view(block, 0), text, logit_scale))
        highest = xp.max(log_y, axis=1)
        surest.offer(pseudo_class(log_y), highest, xp.exp(highest), block.start)
    classes, _, rows, _, _ = surest.chosen()
    return PseudoLabels(images.pick(rows), classes)

"""Prompts put among the tokens of a transformer, at its beginning and in deeper layers, from outside."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["hooked", "joined"]


def joined(before: torch.Tensor, prompt: torch.Tensor, behind: torch.Tensor) -> torch.Tensor:
    """Tokens (B, ...) with the same prompt (n, width) between them in every row."""
    import torch

    return torch.cat([before, prompt.expand(len(before), -1, -1).to(before.dtype), behind], dim=1)


@contextmanager
def hooked(
    embeddings: torch.nn.Module,
    layers: Any,
    put: Callable[[torch.Tensor, int], torch.Tensor],
    on_the_way: list[torch.Tensor] | None = None,
) -> Iterator[None]:
    """While it lasts, `put` changes what comes out of the embeddings (0) and what layers after the first are given (1,
    2, ...); what each layer is given is written down. Of this thread alone: others may use the model, too."""
    caller = threading.get_ident()

    def embedded(module: Any, arguments: Any, found: torch.Tensor) -> torch.Tensor:
        return found if threading.get_ident() != caller else put(found, 0)

    def given(layer: int) -> Callable[..., Any]:
        def hook(module: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
            if threading.get_ident() != caller:
                return arguments
            hidden = put(arguments[0], layer) if layer else arguments[0]
            if on_the_way is not None:
                on_the_way.append(hidden)
            return (hidden, *arguments[1:])

        return hook

    with ExitStack() as stack:
        stack.callback(embeddings.register_forward_hook(embedded).remove)
        for number, layer in enumerate(layers):
            stack.callback(layer.register_forward_pre_hook(given(number)).remove)
        yield

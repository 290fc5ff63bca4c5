"""The layer norms of one side of a model as one vector: other weights and biases for a call, gradients in chunks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from zeroshift.arrays import Array, Backend, is_array, to_numpy
from zeroshift.encode.tuning.autograd_utils import expect_out_of_memory, for_each_chunk, powers_of_two

if TYPE_CHECKING:
    import torch

__all__ = ["NormLayers"]


class NormLayers:
    """The layer norms among the modules of `models` that have weights and biases, in the order of the modules.

    The models are not changed: their layer norms use other weights only during `replaced`, and only in the thread that
    called it.

    Parameters
    ----------
    models : one side of an encoder.
    dtype : precision of the vector of weights and biases, at least float32.
    run : encodes something with this side; only layer norms that it passes through are used, if `models` have others.
    """

    def __init__(
        self, models: Sequence[torch.nn.Module], dtype: torch.dtype, run: Callable[[], Any] | None = None
    ) -> None:
        import torch

        layers = dict.fromkeys(layer for model in models for layer in model.modules())
        self._layers = [layer for layer in layers if isinstance(layer, torch.nn.LayerNorm) and layer.bias is not None]
        if run is not None:
            self._layers = _used(self._layers, run)
        parameters = [array.detach().reshape(-1) for layer in self._layers for array in (layer.weight, layer.bias)]
        self._sizes = [len(array) for array in parameters]
        self.values = to_numpy(torch.cat(parameters).to(dtype) if parameters else torch.zeros(0, dtype=dtype)).copy()
        """Weights and biases as they are in the models, (P,)."""
        self.values.flags.writeable = False

    def __len__(self) -> int:
        return len(self._layers)

    def to_tensor(self, side: str, norms: Array, backend: Backend, dtype: torch.dtype) -> torch.Tensor:
        """The caller's vector (P,) on the device of the model. `side` names the model in the error."""
        if not is_array(norms) or tuple(norms.shape) != self.values.shape:
            given = tuple(norms.shape) if is_array(norms) else type(norms).__name__
            raise ValueError(f"norms must have the shape {self.values.shape}, like {side}.norms; got {given}.")
        tensor: torch.Tensor = backend.asarray(norms, dtype)
        return tensor

    @contextmanager
    def replaced(self, norms: torch.Tensor) -> Iterator[None]:
        """Use the weights and biases `norms` (P,) in this block."""
        import torch

        caller, parts = threading.get_ident(), torch.split(norms, self._sizes)
        given = {layer: parts[2 * n : 2 * n + 2] for n, layer in enumerate(self._layers)}

        def with_norms(module: Any, arguments: Any, output: torch.Tensor) -> torch.Tensor:
            if threading.get_ident() != caller:  # another thread uses the same model
                return output
            weight, bias = given[module]
            # In the precision of `norms`: a step is smaller than the rounding of half precision.
            return torch.nn.functional.layer_norm(
                arguments[0].to(norms.dtype), module.normalized_shape, weight, bias, module.eps
            ).to(output.dtype)

        handles = [layer.register_forward_hook(with_norms) for layer in self._layers]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def keep(self, norms: torch.Tensor, count: int, features: Callable[[slice], torch.Tensor]) -> KeptRows | None:
        """The first `count` rows with what their gradient needs; None if there is not enough memory for that."""
        tensor = norms.clone().requires_grad_()
        with expect_out_of_memory(), self.replaced(tensor):
            return KeptRows(features(slice(0, count)), tensor)
        return None

    def pull_back(
        self,
        norms: torch.Tensor,
        upstream: torch.Tensor,
        chunk_size: int,
        features: Callable[[slice], torch.Tensor],
        kept: KeptRows | None = None,
    ) -> tuple[torch.Tensor, int]:
        """Gradient (P,) of sum(upstream * features) with respect to `norms`, and the size of chunks that fitted.

        `features(rows)` computes some rows, with gradients; `upstream` has one row for each. The first rows may be
        `kept` from before. Raises ValueError for a gradient that is not finite.
        """
        import torch

        tensor = norms.clone().requires_grad_()
        scale, total = powers_of_two(upstream.reshape(1, -1)), torch.zeros_like(norms)
        start = 0 if kept is None else kept.add_gradient(total, upstream, scale)

        def add_gradient(rows: slice) -> None:
            rows = slice(rows.start + start, rows.stop + start)
            with self.replaced(tensor):
                found = features(rows)
            (part,) = torch.autograd.grad(found, tensor, upstream[rows] * scale)
            total.add_(part / scale[0])

        if start < len(upstream):
            chunk_size = for_each_chunk(len(upstream) - start, chunk_size, add_gradient)
        if not bool(total.isfinite().all()):
            raise ValueError(
                "the gradient of the layer norms is not finite: it exceeds the range of the model's precision. "
                "Fix: load the encoder with dtype='float32' or 'bfloat16'."
            )
        return total, chunk_size


class KeptRows:
    """Rows of features with the activations that their gradient needs, which are used once."""

    def __init__(self, features: torch.Tensor, norms: torch.Tensor) -> None:
        self._rows: tuple[torch.Tensor, torch.Tensor] | None = (features, norms)
        self.features = features.detach()

    def add_gradient(self, total: torch.Tensor, upstream: torch.Tensor, scale: torch.Tensor) -> int:
        """Add the gradient of these rows to `total`; returns their number, 0 if they must be computed again."""
        import torch

        rows, self._rows = self._rows, None
        if rows is None:
            return 0
        with expect_out_of_memory():
            (part,) = torch.autograd.grad(*rows, upstream[: len(self.features)] * scale)
            total.add_(part / scale[0])
            return len(self.features)
        return 0


def _used(layers: Sequence[Any], run: Callable[[], Any]) -> list[Any]:
    """Those of the layers that `run` passes through."""
    caller, seen = threading.get_ident(), set()

    def note(module: Any, arguments: Any, output: Any) -> None:
        if threading.get_ident() == caller:  # another thread may use other parts of the same model
            seen.add(module)

    handles = [layer.register_forward_hook(note) for layer in layers]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return [layer for layer in layers if layer in seen]

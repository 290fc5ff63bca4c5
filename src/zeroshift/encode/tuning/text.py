"""`prompted_text`: the text encoder with a tunable context; gradients in chunks of classes, so that K can be large."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from zeroshift.arrays import Array, Backend, is_array, to_numpy
from zeroshift.encode.encoder import Encoder, warn_truncated
from zeroshift.encode.prompts.templates import SLOT, fill_template
from zeroshift.encode.prompts.user_text import clean_name
from zeroshift.encode.tuning.autograd_utils import (
    for_each_chunk,
    freeze_parameters,
    gradient_mode,
    powers_of_two,
    refuse_pickling,
)
from zeroshift.encode.tuning.norms import KeptRows, NormLayers
from zeroshift.encode.tuning.text_models import TextModelParts, text_model_parts
from zeroshift.methods._shared.towers import PromptedText
from zeroshift.parameters import Flag, Number, Optional

if TYPE_CHECKING:
    import torch

__all__ = ["CHUNK", "DEFAULT_WORDS", "TEMPLATE", "ContextText", "check_class_names", "find_context", "prompted_text"]


CHUNK = 64
"""Prompts per chunk of a gradient: their activations take 2.5 GB in float32 for the text model of CLIP ViT-B/16."""

GPU_CHUNK = 256
"""Prompts per chunk on a GPU: 256 take 7 GB in float32, and a third of the time of 64 in bfloat16."""

BATCH = 256
"""Prompts per batch without gradients."""

_COUNT = Number(1, integer=True)


DEFAULT_WORDS = "a photo of a"
"""The words that TPT, and nearly every later method, tunes."""

TEMPLATE = "{words} {name}."
PLACEHOLDERS = ("{words}", "{name}")
PLACEHOLDER = re.compile(r"\{[^{}]*\}")


def prompted_text(
    encoder: Encoder,
    class_names: Sequence[str],
    *,
    words: str = DEFAULT_WORDS,
    template: str = TEMPLATE,
    chunk_size: int | None = None,
    repeated_names: bool = False,
) -> PromptedText:
    """The text encoder of `encoder` for these classes, with tunable `words` in every prompt.

    With the original words, its features are those of `encoder.encode_texts` for the same prompts. The encoder itself
    is not changed, and can be used meanwhile.

    Parameters
    ----------
    encoder : of any family; see `zeroshift.encode.load_encoder`.
    class_names : in label order. Underscores become spaces.
    words : the tunable words: one embedding for each of their tokens.
    template : the prompt, with `{words}` and `{name}` once each.
    chunk_size : prompts per chunk of a gradient, by default 64, on a GPU 256; halved when memory runs out.
    repeated_names : allow repeated names. ImageNet has two classes "missile", with equal prompts.
    """
    import torch

    if not isinstance(encoder, Encoder):
        raise TypeError(
            f"encoder must be a loaded encoder; got {type(encoder).__name__}. Fix: zeroshift.encode.load_encoder(...)."
        )
    Optional(Number(1, integer=True)).check("chunk_size", chunk_size)
    repeated = bool(Flag().check("repeated_names", repeated_names))
    names = check_class_names(class_names, repeated=repeated)
    prefix, name_template = _split_template(words, template)
    prompts = [fill_template(name_template, clean_name(name)) for name in names]
    model = text_model_parts(encoder, name_template)
    if n_long := encoder.count_too_long(prompts):
        warn_truncated(n_long, len(prompts), encoder.text_length)
    with torch.inference_mode(False):
        tokens = model.tokens(prompts)
        rows = tokens["input_ids"].tolist()
        starts, length = _find_context_positions(model, rows, words, prefix, truncated=bool(n_long))
        if not repeated:
            _refuse_equal_prompts(rows, names)
        return ContextText(
            model.encode,
            model.embedding,
            tokens,
            start=starts,
            words=length,
            modules=model.modules,
            chunk_size=chunk_size,
            batch_size=encoder.text_batch_size,
            identity={"encoder": encoder.key()},
        )


def check_class_names(class_names: Sequence[str], *, repeated: bool, argument: str = "class_names") -> tuple[str, ...]:
    """Check the names: at least one, strings, not blank, and different unless `repeated`. Errors name `argument`."""
    if isinstance(class_names, str) or not isinstance(class_names, Sequence):
        given = f"the string {class_names!r}" if isinstance(class_names, str) else type(class_names).__name__
        raise TypeError(f"{argument} must be a sequence of names, in order; got {given}. Fix: ['cat', 'dog'].")
    if not class_names:
        raise ValueError(f"{argument} is empty; at least one class is needed. Fix: ['cat', 'dog'].")
    seen: dict[str, int] = {}
    for number, name in enumerate(class_names):
        if not isinstance(name, str):
            raise TypeError(f"{argument}[{number}] must be a string; got {name!r}. Fix: str(name).")
        if not clean_name(name).strip():
            raise ValueError(
                f"{argument}[{number}] is blank ({name!r}); every class needs a name. Fix: give it a name."
            )
        first = seen.setdefault(clean_name(name), number)
        if first != number and not repeated:
            raise ValueError(
                f"{argument} has {class_names[first]!r} and {name!r}, which make the same prompt (numbers {first} and "
                f"{number}). Fix: rename one, or pass repeated_names=True if this is intended."
            )
    return tuple(class_names)


def _split_template(words: str, template: str) -> tuple[str, str]:
    """The text before the words, and the template with {} for the name."""
    for argument, value in (("words", words), ("template", template)):
        if not isinstance(value, str):
            raise TypeError(
                f"{argument} must be a string; got {value!r}. Fix: words={DEFAULT_WORDS!r}, template={TEMPLATE!r}."
            )
    if not words.strip() or PLACEHOLDER.search(words):
        raise ValueError(
            f"words must be one or more words, without braces; got {words!r}. Fix: words={DEFAULT_WORDS!r}."
        )
    if sorted(PLACEHOLDER.findall(template)) != sorted(PLACEHOLDERS):
        raise ValueError(
            f"template must have {' and '.join(PLACEHOLDERS)} once each, and no other braces; got {template!r}. "
            f"Fix: template={TEMPLATE!r}."
        )
    prefix = template.split(PLACEHOLDERS[0])[0]
    return prefix, template.replace(PLACEHOLDERS[1], SLOT).replace(PLACEHOLDERS[0], words)


def _find_context_positions(
    model: TextModelParts, rows: list[list[int]], words: str, prefix: str, *, truncated: bool
) -> tuple[list[int], int]:
    """The start of the words in each prompt, at the same distance from its first token; and their number of tokens."""
    n_padding = [_count_leading(row, model.padding_token) for row in rows]
    unpadded = [row[n:] for row, n in zip(rows, n_padding, strict=True)]
    # After other words, the tokens may include the preceding space.
    begin = len(model.ids(prefix.rstrip())) if prefix.strip() and PLACEHOLDERS[1] not in prefix else 0
    for text in (words, f" {words}"):
        ids = model.ids(text)
        start = find_context(unpadded, ids, begin) if ids else None
        if start is not None:
            return [n + start for n in n_padding], len(ids)
    raise ValueError(
        f"the words {words!r} are not at the same position in all prompts, as separate tokens. "
        + (
            "Some prompts are too long and were truncated, perhaps within the words. Fix: fewer words."
            if truncated
            else "Fix: put {words} before {name} in the template, with spaces around both."
        )
    )


def _count_leading(row: list[int], padding_token: int | None) -> int:
    """The number of padding tokens at the beginning of a row."""
    return next((n for n, token in enumerate(row) if token != padding_token), len(row))


def _refuse_equal_prompts(rows: list[list[int]], names: Sequence[str]) -> None:
    first: dict[tuple[int, ...], int] = {}
    for number, row in enumerate(rows):
        other = first.setdefault(tuple(row), number)
        if other != number:
            raise ValueError(
                f"the prompts of {names[other]!r} and {names[number]!r} have the same tokens, so they cannot be "
                "distinguished. Fix: rename one, use fewer words if prompts are truncated, or use another encoder."
            )


class ContextText(PromptedText):
    """K tokenized prompts through a text model, with the embeddings at some positions replaced by a context.

    The upstream gradient, with respect to the features, is propagated back `chunk_size` prompts at a time; each chunk
    is encoded again. This is exact, and memory does not grow with K. Chunks are halved when memory runs out.

    Parameters
    ----------
    encode : from tokens to (n, d) text features, not normalised, differentiable.
    embedding : the module of the token embeddings.
    tokens : the input of `encode`, tensors with one row per prompt, including "input_ids".
    start, words : position of the context, for all prompts or for each, and its number of tokens.
    modules : the modules `encode` uses. No gradients are computed for their weights, except for layer norms on request.
    chunk_size : prompts per chunk with gradients, by default 64, on a GPU 256.
    batch_size : prompts per batch without gradients.
    identity : identifies the text model.
    """

    def __init__(
        self,
        encode: Callable[[Mapping[str, torch.Tensor]], torch.Tensor],
        embedding: torch.nn.Module,
        tokens: Mapping[str, torch.Tensor],
        *,
        start: int | Sequence[int],
        words: int,
        modules: Sequence[torch.nn.Module] = (),
        chunk_size: int | None = None,
        batch_size: int = BATCH,
        identity: Mapping[str, Any] | None = None,
    ) -> None:
        import torch

        self._encode, self._embedding, self._modules = encode, embedding, tuple(modules)
        self.batch_size = int(_COUNT.check("batch_size", batch_size))
        self.words = int(_COUNT.check("words", words))
        ids = _validate_tokens(tokens)
        default_chunk = GPU_CHUNK if ids.device.type == "cuda" else CHUNK
        self.chunk_size = int(_COUNT.check("chunk_size", default_chunk if chunk_size is None else chunk_size))
        self._tokens, self.n_classes, self._backend = dict(tokens), len(ids), Backend.of(ids)
        starts = [start] * len(ids) if isinstance(start, int) else list(start)
        self._positions = _context_positions(ids, starts, self.words)
        with torch.inference_mode():
            context = embedding(ids[:1].gather(1, self._positions[:1]))[0]
        # At least float32, also for a half-precision model: tuning steps are smaller than its rounding.
        self._compute_dtype = torch.promote_types(context.dtype, torch.float32)
        self.context = np.array(to_numpy(context.to(self._compute_dtype)))
        self.context.flags.writeable = False
        self._identity = {
            **(identity or {}),
            "prompts": hashlib.sha256(to_numpy(ids).astype(np.int64).tobytes()).hexdigest()[:16],
            "start": sorted(set(map(int, starts))),
            "words": self.words,
        }
        initial = self._context_tensor(self.context)
        with gradient_mode(self._backend.device, gradients=False):
            self.dimension = int(self._unit(initial, slice(0, 1)).shape[1])
            # Models may hold the image side, too: only layer norms that a prompt passes through belong to this side.
            self._norm_layers = NormLayers(self._modules, self._compute_dtype, lambda: self._unit(initial, slice(0, 1)))
        self.norms = self._norm_layers.values if len(self._norm_layers) else None

    @property
    def identity(self) -> Mapping[str, Any]:
        return self._identity

    def features(self, context: Array) -> Array:
        return Backend.of(context).asarray(self._features(self._context_tensor(context), "this context"))

    def _features(self, tensor: torch.Tensor, what: str) -> torch.Tensor:
        """(K, d) of all prompts, without gradients; an error about `what` if a feature is not finite."""
        import torch

        parts: list[torch.Tensor] = []
        with gradient_mode(self._backend.device, gradients=False):
            self.batch_size = for_each_chunk(
                self.n_classes, self.batch_size, lambda rows: parts.append(self._unit(tensor, rows))
            )
            features = torch.cat(parts)
        if not bool(features.isfinite().all()):
            raise ValueError(
                f"the text model returned a zero or non-finite feature for {what}. Fix: dtype='float32' if it is "
                "narrower; otherwise smaller steps."
            )
        return features

    def pull_back(self, context: Array, upstream: Array) -> Array:
        import torch

        with self._differentiable():
            tensor, gradient = self._context_tensor(context), self._upstream(upstream)
            scales, total = powers_of_two(gradient), torch.zeros_like(tensor)

            def add_gradient(rows: slice) -> None:
                # A copy of the context for every prompt, so that each gradient can be scaled separately.
                copies = tensor.expand(len(gradient[rows]), -1, -1).clone().requires_grad_()
                (part,) = torch.autograd.grad(self._unit(copies, rows), copies, gradient[rows] * scales[rows])
                total.add_((part / scales[rows, :, None]).sum(dim=0))

            self.chunk_size = for_each_chunk(self.n_classes, self.chunk_size, add_gradient)
        if not bool(total.isfinite().all()):
            raise ValueError(
                "the gradient of the context is not finite: it exceeds the range of the text model's precision. "
                "Fix: load the encoder with dtype='float32' or 'bfloat16'."
            )
        return Backend.of(context).asarray(total)

    def features_with_norms(self, norms: Array) -> Array:
        tensor = self._norm_tensor(norms)
        with self._norm_layers.replaced(tensor):
            features = self._features(self._context_tensor(self.context), "these layer norms")
        return Backend.of(norms).asarray(features)

    def pull_back_norms(self, norms: Array, upstream: Array) -> Array:
        return self._pull_back_norms(norms, upstream, None)

    def linearize_norms(self, norms: Array) -> tuple[Array, Callable[[Array], Array]]:
        if self.n_classes > self.chunk_size:
            return super().linearize_norms(norms)
        tensor, context = self._norm_tensor(norms), self._context_tensor(self.context)
        with self._differentiable():
            kept = self._norm_layers.keep(tensor, self.n_classes, lambda rows: self._unit(context, rows))
        if kept is None or not bool(kept.features.isfinite().all()):
            return super().linearize_norms(norms)  # which raises the error, if the features are not finite
        return Backend.of(norms).asarray(kept.features), lambda upstream: self._pull_back_norms(norms, upstream, kept)

    def _pull_back_norms(self, norms: Array, upstream: Array, kept: KeptRows | None) -> Array:
        context = self._context_tensor(self.context)
        with self._differentiable():
            gradient, self.chunk_size = self._norm_layers.pull_back(
                self._norm_tensor(norms),
                self._upstream(upstream),
                self.chunk_size,
                lambda rows: self._unit(context, rows),
                kept,
            )
        return Backend.of(norms).asarray(gradient)

    def _norm_tensor(self, norms: Array) -> torch.Tensor:
        if self.norms is None:
            raise TypeError(f"{self!r} has no layer norms that can be tuned. Fix: modules=(model,).")
        return self._norm_layers.to_tensor("text", norms, self._backend, self._compute_dtype)

    @contextmanager
    def _differentiable(self) -> Iterator[None]:
        """Gradients through the text side, but none for its weights."""
        with gradient_mode(self._backend.device, gradients=True), freeze_parameters(self._modules):
            yield

    def _context_tensor(self, context: Array) -> torch.Tensor:
        return self._to_device("context", context, tuple(self.context.shape), "like text.context")

    def _upstream(self, upstream: Array) -> torch.Tensor:
        return self._to_device("upstream", upstream, (self.n_classes, self.dimension), "like text.features(context)")

    def _to_device(self, name: str, array: Array, shape: tuple[int, ...], fix: str) -> torch.Tensor:
        if not is_array(array):
            raise TypeError(f"{name} must be a NumPy array or a torch tensor; got {type(array).__name__}. Fix: {fix}.")
        if tuple(array.shape) != shape:
            raise ValueError(f"{name} must have the shape {shape}; got {tuple(array.shape)}. Fix: {fix}.")
        tensor: torch.Tensor = self._backend.asarray(array, self._compute_dtype)
        return tensor

    def _unit(self, context: torch.Tensor, rows: slice) -> torch.Tensor:
        """(n, d) unit features of the prompts `rows`; `context` is (n, words, width), or (words, width) for all."""
        import torch

        caller = threading.get_ident()

        def replace_context(module: Any, arguments: Any, embeddings: torch.Tensor) -> torch.Tensor:
            if threading.get_ident() != caller:  # another thread uses the same model
                return embeddings
            positions = self._positions[rows, :, None].expand(-1, -1, embeddings.shape[-1])
            return embeddings.scatter(1, positions, context.expand(len(embeddings), -1, -1).to(embeddings.dtype))

        handle = self._embedding.register_forward_hook(replace_context)
        try:
            features = self._encode({name: tensor[rows] for name, tensor in self._tokens.items()})
        finally:
            handle.remove()
        features = features.to(torch.promote_types(features.dtype, self._compute_dtype))
        return features / features.norm(dim=-1, keepdim=True)

    def __reduce__(self) -> Any:
        refuse_pickling("text")

    def __repr__(self) -> str:
        return f"<text of {self.n_classes} classes, {self.words} words to tune>"


def _validate_tokens(tokens: Mapping[str, torch.Tensor]) -> torch.Tensor:
    if "input_ids" not in tokens or tokens["input_ids"].ndim != 2 or 0 in tokens["input_ids"].shape:
        raise ValueError(
            f"tokens must have 'input_ids', with one row per prompt; got {sorted(tokens)}. "
            "Fix: pass the tokenizer's output."
        )
    ids = tokens["input_ids"]
    for name, tensor in tokens.items():
        if len(tensor) != len(ids):
            raise ValueError(
                f"tokens must all have the same number of rows; {name!r} has {len(tensor)}, 'input_ids' {len(ids)}. "
                "Fix: tokenize all prompts in one call."
            )
    return ids


def _context_positions(ids: torch.Tensor, starts: Sequence[int], words: int) -> torch.Tensor:
    """(K, words): the positions of the tokens that are replaced."""
    import torch

    longest = ids.shape[1]
    if len(starts) != len(ids) or not all(0 <= start <= longest - words for start in starts):
        raise ValueError(
            f"start must be from 0 to {longest - words}, one for all or for each of {len(ids)} prompts: {words} words "
            f"within {longest} tokens; got {starts[:8]!r}. Fix: use find_context."
        )
    positions = torch.tensor(starts, device=ids.device)[:, None] + torch.arange(words, device=ids.device)
    context_ids = ids.gather(1, positions)
    if not bool((context_ids == context_ids[:1]).all()):
        row = int((context_ids != context_ids[:1]).any(dim=1).nonzero()[0])
        raise ValueError(
            f"the words to tune must be the same in all prompts; prompt {row} has other tokens than prompt 0 at "
            "their position. Fix: use find_context."
        )
    return positions


def find_context(rows: Sequence[Sequence[int]], words: Sequence[int], begin: int = 0) -> int | None:
    """The first position, from `begin` on, at which every row has the tokens `words`; None if there is none.

    >>> find_context([[1, 7, 8, 9], [1, 7, 8, 5]], [7, 8])
    1
    """
    first, n = list(rows[0]), len(words)
    for start in range(begin, len(first) - n + 1):
        if all(list(row[start : start + n]) == list(words) for row in rows):
            return start
    return None

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
    expect_out_of_memory,
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
from zeroshift.suggest import name_key

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

POSITIONS = ("end", "middle", "front")
"""Where the name can be: after the words, between their two halves, before them."""

TEMPLATE = "{words} {name}."
PLACEHOLDERS = ("{words}", "{name}")
PLACEHOLDER = re.compile(r"\{[^{}]*\}")


def prompted_text(
    encoder: Encoder,
    class_names: Sequence[str],
    *,
    words: str = DEFAULT_WORDS,
    template: str = TEMPLATE,
    position: str | Sequence[str] = "end",
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
    position : where the tokens of the name are: "end" leaves them after the words, as in the template; "middle" puts
        them between the two halves of the words, and "front" before the words. Several make a prompt of each for every
        class.
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
    places = _check_positions(position)
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
        start: Sequence[int] | Sequence[Sequence[int]] = starts
        if places != ("end",):
            name_lengths = _name_lengths(model, rows, [start + length for start in starts], names)
            moved = [_move_names(rows, starts, length, name_lengths, place) for place in places]
            ids = [row for placed, _ in moved for row in placed]
            start = [positions for _, placed in moved for positions in placed]
            tokens = {name: tensor.repeat(len(places), 1) for name, tensor in tokens.items()}
            tokens["input_ids"] = torch.tensor(ids, device=tokens["input_ids"].device)
        return ContextText(
            model.encode,
            model.embedding,
            tokens,
            start=start,
            words=length,
            n_prompts=len(places),
            modules=model.modules,
            chunk_size=chunk_size,
            batch_size=encoder.text_batch_size,
            identity={"encoder": encoder.key()},
        )


def check_class_names(
    class_names: Sequence[str], *, repeated: bool, argument: str = "class_names", least: int = 1
) -> tuple[str, ...]:
    """Check the names: at least one or two (`least`), strings, not blank, and different unless `repeated`. Errors name
    `argument`."""
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
        first = seen.setdefault(name_key(name), number)
        if first != number and not repeated:
            raise ValueError(
                f"{argument} has {class_names[first]!r} and {name!r}, which are the same name (numbers {first} and "
                f"{number}). Fix: rename one, or pass repeated_names=True if this is intended."
            )
    if len(class_names) < least:
        raise ValueError(
            f"{argument} has only {class_names[0]!r}; a classifier needs at least two classes. Fix: ['cat', 'dog']."
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


def _check_positions(position: str | Sequence[str]) -> tuple[str, ...]:
    places = (position,) if isinstance(position, str) else tuple(position)
    if not places or any(place not in POSITIONS for place in places) or len(set(places)) < len(places):
        raise ValueError(
            f"position must be one of {', '.join(map(repr, POSITIONS))}, or several different ones; got {position!r}."
        )
    return places


def _name_lengths(
    model: TextModelParts, rows: list[list[int]], starts: Sequence[int], names: Sequence[str]
) -> list[int]:
    """The number of tokens of each name, which must begin at `starts`."""
    lengths = []
    for row, start, name in zip(rows, starts, map(clean_name, names), strict=True):
        candidates = (model.ids(text) for text in (f" {name}", name))
        found = [len(ids) for ids in candidates if ids and row[start : start + len(ids)] == list(ids)]
        if not found:
            raise ValueError(
                f"the name {name!r} does not follow the words as separate tokens, so it cannot be moved. Fix: "
                "position='end', or a template in which {name} follows {words}, with a space between them."
            )
        lengths.append(found[0])
    return lengths


def _move_names(
    rows: list[list[int]], starts: Sequence[int], words: int, name_lengths: Sequence[int], place: str
) -> tuple[list[list[int]], list[list[int]]]:
    """The prompts with the tokens of the name at `place`, and the positions of the words in each of them.

    >>> _move_names([[1, 7, 8, 5, 6, 2]], [1], 2, [2], "middle")
    ([[1, 7, 5, 6, 8, 2]], [[1, 4]])
    """
    before = {"end": words, "middle": words // 2, "front": 0}[place]
    moved, positions = [], []
    for row, start, length in zip(rows, starts, name_lengths, strict=True):
        context, name = row[start : start + words], row[start + words : start + words + length]
        rest = row[start + words + length :]
        moved.append([*row[:start], *context[:before], *name, *context[before:], *rest])
        positions.append([start + n + (length if n >= before else 0) for n in range(words)])
    return moved, positions


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
    start, words : position of the context, for all prompts or for each, and its number of tokens; or, for each prompt,
        the positions of all its tokens.
    n_prompts : prompts V per class; the rows of `tokens` are the first prompt of every class, then the second ones.
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
        start: int | Sequence[int] | Sequence[Sequence[int]],
        words: int,
        n_prompts: int = 1,
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
        self._tokens, self._backend = dict(tokens), Backend.of(ids)
        self.n_prompts = int(_COUNT.check("n_prompts", n_prompts))
        self.n_classes, rest = divmod(len(ids), self.n_prompts)
        if rest:
            raise ValueError(
                f"tokens must have n_prompts = {self.n_prompts} rows for every class; got {len(ids)} rows. "
                "Fix: the first prompt of every class, then the second ones."
            )
        rows = _position_rows(start, len(ids), self.words)
        self._positions = _context_positions(ids, rows, self.words)
        with torch.inference_mode():
            context = embedding(ids[:1].gather(1, self._positions[:1]))[0]
        # At least float32, also for a half-precision model: tuning steps are smaller than its rounding.
        self._compute_dtype = torch.promote_types(context.dtype, torch.float32)
        self.context = np.array(to_numpy(context.to(self._compute_dtype)))
        self.context.flags.writeable = False
        self._identity = {
            **(identity or {}),
            "prompts": hashlib.sha256(to_numpy(ids).astype(np.int64).tobytes()).hexdigest()[:16],
            "start": rows if any(row[-1] - row[0] >= self.words for row in rows) else sorted({row[0] for row in rows}),
            "words": self.words,
            **({"n_prompts": self.n_prompts} if self.n_prompts > 1 else {}),
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
        """(V K, d) of all prompts, without gradients; an error about `what` if a feature is not finite."""
        import torch

        parts: list[torch.Tensor] = []
        with gradient_mode(self._backend.device, gradients=False):
            self.batch_size = for_each_chunk(
                len(self._positions),
                self.batch_size,
                lambda rows: parts.append(self._unit(self._of_prompts(tensor, rows), rows)),
            )
            features = torch.cat(parts)
        return self._checked_features(features, what)

    def linearize(self, context: Array) -> tuple[Array, Callable[[Array], Array]]:
        import torch

        n_prompts, whole = len(self._positions), slice(None)
        if n_prompts > self.chunk_size:
            return super().linearize(context)
        graph: list[torch.Tensor] = []
        tensor = self._context_tensor(context)
        with self._differentiable(), expect_out_of_memory():
            copies = self._of_prompts(tensor, whole).expand(n_prompts, -1, -1).clone().requires_grad_()
            graph += [self._unit(copies, whole), copies]
        if not graph:
            return super().linearize(context)

        def pull_back(upstream: Array) -> Array:
            if not graph:
                return self.pull_back(context, upstream)
            gradient = self._upstream(upstream)
            scales, total = powers_of_two(gradient), torch.zeros_like(tensor)
            with expect_out_of_memory():
                (part,) = torch.autograd.grad(graph[0], graph[1], gradient * scales, retain_graph=True)
                self._add_to(total, part / scales[:, :, None], whole)
                return self._checked_gradient(total, context)
            graph.clear()  # no room for its gradient
            return self.pull_back(context, upstream)

        features = self._checked_features(graph[0].detach(), "this context")
        return Backend.of(context).asarray(features), pull_back

    def pull_back(self, context: Array, upstream: Array) -> Array:
        import torch

        with self._differentiable():
            tensor, gradient = self._context_tensor(context), self._upstream(upstream)
            scales, total = powers_of_two(gradient), torch.zeros_like(tensor)

            def add_gradient(rows: slice) -> None:
                # A copy of the context for every prompt, so that each gradient can be scaled separately.
                copies = self._of_prompts(tensor, rows).expand(len(gradient[rows]), -1, -1).clone().requires_grad_()
                (part,) = torch.autograd.grad(self._unit(copies, rows), copies, gradient[rows] * scales[rows])
                self._add_to(total, part / scales[rows, :, None], rows)

            self.chunk_size = for_each_chunk(len(gradient), self.chunk_size, add_gradient)
        return self._checked_gradient(total, context)

    def _add_to(self, total: torch.Tensor, part: torch.Tensor, rows: slice) -> None:
        """Add the gradients (n, words, width) of the prompts `rows` to that of the context, in its shape."""
        import torch

        if total.ndim == 2:
            total.add_(part.sum(dim=0))
        else:
            classes = torch.arange(len(self._positions), device=part.device)[rows] % self.n_classes
            total.index_add_(0, classes, part)

    def _checked_features(self, features: torch.Tensor, what: str) -> torch.Tensor:
        if not bool(features.isfinite().all()):
            raise ValueError(
                f"the text model returned a zero or non-finite feature for {what}. Fix: dtype='float32' if it is "
                "narrower; otherwise smaller steps."
            )
        return features

    def _checked_gradient(self, gradient: torch.Tensor, context: Array) -> Array:
        if not bool(gradient.isfinite().all()):
            raise ValueError(
                "the gradient of the context is not finite: it exceeds the range of the text model's precision. "
                "Fix: load the encoder with dtype='float32' or 'bfloat16'."
            )
        return Backend.of(context).asarray(gradient)

    def features_with_norms(self, norms: Array) -> Array:
        tensor = self._norm_tensor(norms)
        with self._norm_layers.replaced(tensor):
            features = self._features(self._context_tensor(self.context), "these layer norms")
        return Backend.of(norms).asarray(features)

    def pull_back_norms(self, norms: Array, upstream: Array) -> Array:
        return self._pull_back_norms(norms, upstream, None)

    def linearize_norms(self, norms: Array) -> tuple[Array, Callable[[Array], Array]]:
        if len(self._positions) > self.chunk_size:
            return super().linearize_norms(norms)
        tensor, context = self._norm_tensor(norms), self._context_tensor(self.context)
        with self._differentiable():
            kept = self._norm_layers.keep(tensor, len(self._positions), lambda rows: self._unit(context, rows))
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
        shape = tuple(self.context.shape)
        return self._to_device("context", context, "like text.context", shape, (self.n_classes, *shape))

    def _upstream(self, upstream: Array) -> torch.Tensor:
        shape = (len(self._positions), self.dimension)
        return self._to_device("upstream", upstream, "like text.features(context)", shape)

    def _of_prompts(self, context: torch.Tensor, rows: slice) -> torch.Tensor:
        """The context of the prompts `rows`, (n, words, width); (words, width) if it is that of all."""
        if context.ndim == 2:
            return context
        return context.repeat(self.n_prompts, 1, 1)[rows]

    def _to_device(self, name: str, array: Array, fix: str, *shapes: tuple[int, ...]) -> torch.Tensor:
        if not is_array(array):
            raise TypeError(f"{name} must be a NumPy array or a torch tensor; got {type(array).__name__}. Fix: {fix}.")
        if tuple(array.shape) not in shapes:
            expected = " or ".join(map(str, shapes))
            raise ValueError(f"{name} must have the shape {expected}; got {tuple(array.shape)}. Fix: {fix}.")
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
        prompts = f", {self.n_prompts} prompts each" if self.n_prompts > 1 else ""
        return f"<text of {self.n_classes} classes{prompts}, {self.words} words to tune>"


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


def _position_rows(start: Any, n_prompts: int, words: int) -> list[list[int]]:
    """For each prompt the positions of its words, from their start for all, for each, or the positions themselves."""
    starts = [start] * n_prompts if np.ndim(start) == 0 else list(start)
    return [list(range(one, one + words)) if np.ndim(one) == 0 else [int(place) for place in one] for one in starts]


def _context_positions(ids: torch.Tensor, rows: list[list[int]], words: int) -> torch.Tensor:
    """(K, words): the positions of the tokens that are replaced."""
    import torch

    longest = ids.shape[1]
    if len(rows) != len(ids) or any(len(row) != words or not 0 <= min(row) <= max(row) < longest for row in rows):
        raise ValueError(
            f"start must be from 0 to {longest - words}, one for all or for each of {len(ids)} prompts: {words} words "
            f"within {longest} tokens; got {[row[0] for row in rows[:8] if row]!r}. Fix: use find_context."
        )
    positions = torch.tensor(rows, device=ids.device)
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

"""The text side of an encoder with words that can be tuned: gradients in chunks of classes, so K can be large."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from zeroshift.arrays import Array, Home, is_array, to_numpy
from zeroshift.encode.encoder import Encoder, warn_cut
from zeroshift.encode.prompts.templates import SLOT, fill
from zeroshift.encode.prompts.user_text import clean
from zeroshift.encode.tuning.autograd_utils import each_chunk, frozen, powers_of_two, tracing, unpicklable
from zeroshift.encode.tuning.text_models import TextSide, text_side
from zeroshift.methods._shared.towers import PromptedText
from zeroshift.parameters import Flag, Number, Optional

if TYPE_CHECKING:
    import torch

__all__ = ["CHUNK", "TEMPLATE", "WORDS", "ContextText", "check_class_names", "find_context", "prompted_text"]

CHUNK = 64
"""Prompts whose activations are held at once for a gradient: 2.5 GB in float32 for a text model of CLIP ViT-B/16."""

CHUNK_ON_GPU = 256
"""There fewer at a time wait for one another: 256 take 7 GB in float32, and a third of the time of 64 in bfloat16."""

BATCH = 256
"""Prompts at a time where nothing is held."""

_COUNT = Number(1, integer=True)


class ContextText(PromptedText):
    """K tokenised prompts through a text model whose embeddings at some positions are replaced by a context.

    A gradient needs the loss of all K classes first and the activations of a few only: it is given with respect to the
    features, and carried back `chunk_size` prompts at a time, each chunk encoded anew. Exact, and memory does not grow
    with K. Where it does not suffice for a chunk, chunks are halved.

    Parameters
    ----------
    encode : tokens to (n, d) text features of any length, differentiable.
    embedding : the module that looks up the tokens' embeddings.
    tokens : what `encode` takes, tensors with a row for each prompt; among them "input_ids".
    start, words : where the context stands, in all prompts or in each of them, and how many tokens it has.
    modules : those `encode` computes with. Their weights take no gradient while one is carried through them.
    chunk_size : prompts at a time with gradients, by default 64, on a GPU 256; `batch_size` without.
    identity : what says which text model and which prompts these are.
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
        ids = _checked_ids(tokens)
        usual = CHUNK_ON_GPU if ids.device.type == "cuda" else CHUNK
        self.chunk_size = int(_COUNT.check("chunk_size", usual if chunk_size is None else chunk_size))
        self._tokens, self.n_classes, self._home = dict(tokens), len(ids), Home.of(ids)
        starts = [start] * len(ids) if isinstance(start, int) else list(start)
        self._places = _checked_places(ids, starts, self.words)
        with torch.inference_mode():
            found = embedding(ids[:1].gather(1, self._places[:1]))[0]
        # In a narrow model the words are wide nonetheless: a step of tuning is smaller than its rounding.
        self._wide = torch.promote_types(found.dtype, torch.float32)
        self.context = np.array(to_numpy(found.to(self._wide)))
        self.context.flags.writeable = False
        self._identity = {
            **(identity or {}),
            "prompts": hashlib.sha256(to_numpy(ids).astype(np.int64).tobytes()).hexdigest()[:16],
            "start": sorted(set(map(int, starts))),
            "words": self.words,
        }
        with tracing(self._home.device, gradients=False):
            self.dimension = int(self._unit(self._words(self.context), slice(0, 1)).shape[1])

    @property
    def identity(self) -> Mapping[str, Any]:
        return self._identity

    def features(self, context: Array) -> Array:
        import torch

        parts: list[torch.Tensor] = []
        with tracing(self._home.device, gradients=False):
            words = self._words(context)
            self.batch_size = each_chunk(
                self.n_classes, self.batch_size, lambda rows: parts.append(self._unit(words, rows))
            )
            found = torch.cat(parts)
        if not bool(found.isfinite().all()):
            raise ValueError(
                "the text model gave a zero or non-finite feature for these words. Fix: dtype='float32' if a narrower "
                "one was asked for; else smaller steps."
            )
        return Home.of(context).bring(found)

    def pull_back(self, context: Array, upstream: Array) -> Array:
        import torch

        with tracing(self._home.device, gradients=True), frozen(self._modules):
            words, above = self._words(context), self._upstream(upstream)
            scales, total = powers_of_two(above), torch.zeros_like(words)

            def carry(rows: slice) -> None:
                # Every prompt has words of its own here, so that each one's gradient can be scaled by itself.
                own = words.expand(len(above[rows]), -1, -1).clone().requires_grad_()
                (part,) = torch.autograd.grad(self._unit(own, rows), own, above[rows] * scales[rows])
                total.add_((part / scales[rows, :, None]).sum(dim=0))

            self.chunk_size = each_chunk(self.n_classes, self.chunk_size, carry)
        if not bool(total.isfinite().all()):
            raise ValueError(
                "the gradient of the words is not finite: it left the range of the text model's precision. "
                "Fix: load the encoder with dtype='float32' or 'bfloat16'."
            )
        return Home.of(context).bring(total)

    def _words(self, context: Array) -> torch.Tensor:
        return self._brought("context", context, tuple(self.context.shape), "as text.context")

    def _upstream(self, upstream: Array) -> torch.Tensor:
        return self._brought("upstream", upstream, (self.n_classes, self.dimension), "as text.features(context)")

    def _brought(self, name: str, array: Array, shape: tuple[int, ...], fix: str) -> torch.Tensor:
        if not is_array(array):
            raise TypeError(f"{name} must be a NumPy array or a torch tensor; got {type(array).__name__}. Fix: {fix}.")
        if tuple(array.shape) != shape:
            raise ValueError(f"{name} must have the shape {shape}; got {tuple(array.shape)}. Fix: {fix}.")
        tensor: torch.Tensor = self._home.bring(array, self._wide)
        return tensor

    def _unit(self, words: torch.Tensor, rows: slice) -> torch.Tensor:
        """(n, d) unit rows of the prompts `rows`, with `words` (n, words, width) or the same for all, without the n."""
        import torch

        caller = threading.get_ident()

        def replaced(module: Any, arguments: Any, found: torch.Tensor) -> torch.Tensor:
            if threading.get_ident() != caller:  # someone else's sentences, through the same model
                return found
            places = self._places[rows, :, None].expand(-1, -1, found.shape[-1])
            return found.scatter(1, places, words.expand(len(found), -1, -1).to(found.dtype))

        handle = self._embedding.register_forward_hook(replaced)
        try:
            found = self._encode({name: tensor[rows] for name, tensor in self._tokens.items()})
        finally:
            handle.remove()
        found = found.to(torch.promote_types(found.dtype, self._wide))
        return found / found.norm(dim=-1, keepdim=True)

    def __reduce__(self) -> Any:
        unpicklable("text")

    def __repr__(self) -> str:
        return f"<text of {self.n_classes} classes, {self.words} words to tune>"


def _checked_ids(tokens: Mapping[str, torch.Tensor]) -> torch.Tensor:
    if "input_ids" not in tokens or tokens["input_ids"].ndim != 2 or 0 in tokens["input_ids"].shape:
        raise ValueError(
            f"tokens must have 'input_ids', a row for each prompt; got {sorted(tokens)}. Fix: as a tokenizer answers."
        )
    ids = tokens["input_ids"]
    for name, tensor in tokens.items():
        if len(tensor) != len(ids):
            raise ValueError(
                f"tokens must have as many rows each; {name!r} has {len(tensor)}, 'input_ids' {len(ids)}. "
                "Fix: tokenise all prompts in one call."
            )
    return ids


def _checked_places(ids: torch.Tensor, starts: Sequence[int], words: int) -> torch.Tensor:
    """(K, words): the numbers of the tokens that are replaced."""
    import torch

    longest = ids.shape[1]
    if len(starts) != len(ids) or not all(0 <= start <= longest - words for start in starts):
        raise ValueError(
            f"start must lie from 0 to {longest - words}, one for all or for each of {len(ids)} prompts: {words} words "
            f"stand within {longest} tokens; got {starts[:8]!r}. Fix: find_context."
        )
    places = torch.tensor(starts, device=ids.device)[:, None] + torch.arange(words, device=ids.device)
    found = ids.gather(1, places)
    if not bool((found == found[:1]).all()):
        row = int((found != found[:1]).any(dim=1).nonzero()[0])
        raise ValueError(
            f"the words to tune must be the same in all prompts; prompt {row} has other tokens than prompt 0 where "
            "they should stand. Fix: find_context says where they do."
        )
    return places


def find_context(rows: Sequence[Sequence[int]], words: Sequence[int], begin: int = 0) -> int | None:
    """Where, from `begin` on, the tokens `words` first stand in every row; None where that is nowhere.

    >>> find_context([[1, 7, 8, 9], [1, 7, 8, 5]], [7, 8])
    1
    """
    first, n = list(rows[0]), len(words)
    for start in range(begin, len(first) - n + 1):
        if all(list(row[start : start + n]) == list(words) for row in rows):
            return start
    return None


# `prompted_text`: a loaded encoder and class names as the text side that prompt-tuning methods are given.


WORDS = "a photo of a"
"""What TPT, and nearly every method after it, tunes."""

TEMPLATE = "{words} {name}."
PLACES = ("{words}", "{name}")
PLACE = re.compile(r"\{[^{}]*\}")


def prompted_text(
    encoder: Encoder,
    class_names: Sequence[str],
    *,
    words: str = WORDS,
    template: str = TEMPLATE,
    chunk_size: int | None = None,
    repeated_names: bool = False,
) -> PromptedText:
    """The text side of `encoder` for these classes, with `words` of every prompt to be tuned.

    At the words as they stand its features are those of `encoder.encode_texts` for the same prompts. The encoder itself
    stays as it is, and can go on being used.

    Parameters
    ----------
    encoder : of any family; see `zeroshift.encode.load_encoder`.
    class_names : in the order of the classes. Underscores become spaces, as in all prompts.
    words : what is tuned: one embedding for each of its tokens.
    template : a prompt, with `{words}` and `{name}` once each.
    chunk_size : prompts whose activations are held at once for a gradient, by default 64, on a GPU 256; halved
        where memory does not suffice.
    repeated_names : allow a name twice. ImageNet's list has two classes "missile", which no text can tell apart.
    """
    import torch

    if not isinstance(encoder, Encoder):
        raise TypeError(
            f"encoder must be a loaded encoder; got {type(encoder).__name__}. Fix: zeroshift.encode.load_encoder(...)."
        )
    Optional(Number(1, integer=True)).check("chunk_size", chunk_size)
    repeated = bool(Flag().check("repeated_names", repeated_names))
    names = check_class_names(class_names, repeated=repeated)
    head, wording = _checked_wording(words, template)
    prompts = [fill(wording, clean(name)) for name in names]
    side = text_side(encoder, wording)
    if long := encoder.count_too_long(prompts):
        warn_cut(long, len(prompts), encoder.text_length)
    with torch.inference_mode(False):
        tokens = side.tokens(prompts)
        rows = tokens["input_ids"].tolist()
        starts, length = _place(side, rows, words, head, cut=bool(long))
        if not repeated:
            _refuse_alike(rows, names)
        return ContextText(
            side.encode,
            side.embedding,
            tokens,
            start=starts,
            words=length,
            modules=side.modules,
            chunk_size=chunk_size,
            batch_size=encoder.text_batch_size,
            identity={"encoder": encoder.key()},
        )


def check_class_names(class_names: Sequence[str], *, repeated: bool) -> tuple[str, ...]:
    """The names as they are: strings, none blank, at least one; none twice unless `repeated`."""
    if isinstance(class_names, str) or not isinstance(class_names, Sequence):
        given = f"the string {class_names!r}" if isinstance(class_names, str) else type(class_names).__name__
        raise TypeError(f"class_names must be a sequence of names, in order; got {given}. Fix: ['cat', 'dog'].")
    if not class_names:
        raise ValueError("class_names is empty; at least one class is needed. Fix: ['cat', 'dog'].")
    seen: dict[str, int] = {}
    for number, name in enumerate(class_names):
        if not isinstance(name, str):
            raise TypeError(f"class_names[{number}] must be a string; got {name!r}. Fix: str(name).")
        if not clean(name).strip():
            raise ValueError(f"class_names[{number}] is blank ({name!r}); every class needs a name. Fix: give it one.")
        first = seen.setdefault(clean(name), number)
        if first != number and not repeated:
            raise ValueError(
                f"class_names has {class_names[first]!r} and {name!r}, which make the same prompt (numbers {first} and "
                f"{number}). Fix: tell them apart, or repeated_names=True where the list is meant so."
            )
    return tuple(class_names)


def _checked_wording(words: str, template: str) -> tuple[str, str]:
    """What stands before the words, and the template with {} for the name, as in all of `encode.prompts`."""
    for given, value in (("words", words), ("template", template)):
        if not isinstance(value, str):
            raise TypeError(f"{given} must be a string; got {value!r}. Fix: words={WORDS!r}, template={TEMPLATE!r}.")
    if not words.strip() or PLACE.search(words):
        raise ValueError(
            f"words must be one word or more, without places in braces; got {words!r}. Fix: words={WORDS!r}."
        )
    if sorted(PLACE.findall(template)) != sorted(PLACES):
        raise ValueError(
            f"template must have {' and '.join(PLACES)} exactly once each, and no other places; got {template!r}. "
            f"Fix: template={TEMPLATE!r}."
        )
    head = template.split(PLACES[0])[0]
    return head, template.replace(PLACES[1], SLOT).replace(PLACES[0], words)


def _place(side: TextSide, rows: list[list[int]], words: str, head: str, *, cut: bool) -> tuple[list[int], int]:
    """Where the words begin in each prompt, as far from its own beginning as in the others; and how many they are."""
    filled = [_leading(row, side.filler) for row in rows]
    own = [row[n:] for row, n in zip(rows, filled, strict=True)]
    # Words that follow others may be other tokens than the same words at the beginning: the space belongs to them.
    before = len(side.ids(head.rstrip())) if head.strip() and PLACES[1] not in head else 0
    for tried in (words, f" {words}"):
        ids = side.ids(tried)
        start = find_context(own, ids, before) if ids else None
        if start is not None:
            return [n + start for n in filled], len(ids)
    raise ValueError(
        f"the words {words!r} do not stand at one place in all prompts, as tokens of their own. "
        + (
            "Some prompts are longer than the model reads and were cut, perhaps within the words. Fix: fewer words."
            if cut
            else "Fix: put {words} before {name} in the template, with spaces around both."
        )
    )


def _leading(row: list[int], filler: int | None) -> int:
    """How many tokens at the beginning of a row only fill it up."""
    return next((n for n, token in enumerate(row) if token != filler), len(row))


def _refuse_alike(rows: list[list[int]], names: Sequence[str]) -> None:
    first: dict[tuple[int, ...], int] = {}
    for number, row in enumerate(rows):
        other = first.setdefault(tuple(row), number)
        if other != number:
            raise ValueError(
                f"the prompts of {names[other]!r} and {names[number]!r} are the same tokens to the model: no words can "
                "tell them apart. Fix: rename one; fewer words if the prompts are cut; an encoder that knows the names."
            )

"""How each family of encoders reads a prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zeroshift.encode.encoder import Encoder
from zeroshift.encode.families.albef import ALBEFEncoder
from zeroshift.encode.families.base import TransformersEncoder
from zeroshift.encode.families.composed import SHARPNESS, ComposedEncoder
from zeroshift.encode.families.open_clip import OpenClipEncoder
from zeroshift.encode.families.transformers_models import BLIPEncoder

if TYPE_CHECKING:
    import torch

__all__ = ["TextSide", "differentiable_text", "text_side"]


# The composed encoder's text side with words that can be tuned: MiniLM, the mean of its tokens, then the bridge.


def differentiable_text(
    encoder: ComposedEncoder, templates: Sequence[str]
) -> Callable[[Mapping[str, torch.Tensor]], torch.Tensor]:
    """Tokens to (n, 256) of any length: what `finish_prototypes` makes of single sentences, with gradients.

    `templates` are the wording whose centre is taken off; the words that are tuned move away from it, it stays.
    """
    import torch

    model, bridge = encoder.text.model, encoder.bridge
    # The bridge in float64, as it was fitted: it works on differences between sentences that are much alike.
    centre, anchors, weights = (
        torch.tensor(array, device=encoder.device, dtype=torch.float64)
        for array in (encoder._centre(tuple(templates)), bridge.anchors, bridge.weights)
    )

    def encode(tokens: Mapping[str, torch.Tensor]) -> torch.Tensor:
        states = model(**tokens).last_hidden_state
        real = tokens["attention_mask"].unsqueeze(-1).to(states.dtype)
        sentences = ((states * real).sum(dim=1) / real.sum(dim=1)).double()
        centred = torch.nn.functional.normalize(sentences, dim=-1) - centre
        cosines = torch.nn.functional.normalize(centred, dim=-1) @ anchors.T
        return torch.exp(SHARPNESS * (cosines - 1)) @ weights

    return encode


Tokens = Mapping[str, "torch.Tensor"]


@dataclass(frozen=True)
class TextSide:
    """What `ContextText` needs of an encoder."""

    tokens: Callable[[Sequence[str]], Tokens]
    """Prompts as the model is given them, cut and filled up."""
    ids: Callable[[str], list[int]]
    """The tokens of a few words by themselves, without the signs that open and close a prompt."""
    encode: Callable[[Tokens], torch.Tensor]
    """(n, d) of any length, differentiable."""
    embedding: torch.nn.Module
    modules: tuple[torch.nn.Module, ...]
    filler: int | None = None
    """The token that shorter prompts are filled up with at their beginning; None where that is done at their end."""


def text_side(encoder: Encoder, template: str) -> TextSide:
    """Of any family; `template`, with {} for the name, is for those that compare prompts with others of its wording."""
    if isinstance(encoder, TransformersEncoder):
        return _of_transformers(encoder)
    if isinstance(encoder, OpenClipEncoder):
        return _of_open_clip(encoder)
    if isinstance(encoder, ALBEFEncoder):
        return _of_albef(encoder)
    if encoder.family == "composed":
        return _of_composed(encoder, template)
    raise ValueError(
        f"the words of a prompt cannot be tuned in the family {encoder.family!r}: where its text model looks up tokens "
        "is not known here. Fix: an encoder of another family, or zeroshift.encode.tuning.ContextText by hand."
    )


def _of_transformers(encoder: TransformersEncoder) -> TextSide:
    model: Any = encoder.model

    def ids(text: str) -> list[int]:
        prepared = encoder.prepare_text(text)
        return list(encoder.tokenizer(prepared, add_special_tokens=False, verbose=False)["input_ids"])

    def encode(tokens: Tokens) -> torch.Tensor:
        output = model.get_text_features(**tokens)
        return getattr(output, "pooler_output", output)

    def encode_blip(tokens: Tokens) -> torch.Tensor:
        return model.text_proj(model.text_encoder(**tokens).last_hidden_state[:, 0])

    filler = encoder.tokenizer.pad_token_id if encoder.tokenizer.padding_side == "left" else None
    if isinstance(encoder, BLIPEncoder):
        embedding = model.text_encoder.get_input_embeddings()
        return TextSide(encoder._tokens, ids, encode_blip, embedding, (model.text_encoder, model.text_proj), filler)
    return TextSide(encoder._tokens, ids, encode, model.text_model.get_input_embeddings(), (model,), filler)


def _of_open_clip(encoder: OpenClipEncoder) -> TextSide:
    model: Any = encoder.model
    # Models with CLIP's own text transformer hold it apart or among their own parts.
    embedding = getattr(getattr(model, "text", model), "token_embedding", None)
    if embedding is None or not hasattr(encoder.tokenizer, "encode"):
        raise ValueError(
            f"the words of a prompt cannot be tuned in {encoder.source}, of the family 'open_clip': its text model is "
            "another library's. Fix: a model of open_clip with CLIP's own text model, or the same through transformers."
        )
    return TextSide(
        lambda prompts: {"input_ids": encoder.tokenizer(list(prompts)).to(encoder.device)},
        lambda text: list(encoder.tokenizer.encode(text)),
        lambda tokens: model.encode_text(tokens["input_ids"]),
        embedding,
        (model,),
    )


def _of_albef(encoder: ALBEFEncoder) -> TextSide:
    import torch

    text, projection = encoder.parts["text"], encoder.parts["text_proj"]

    def tokens(prompts: Sequence[str]) -> Tokens:
        rows = [row[: encoder.text_length] for row in encoder.tokenizer(prompts)]
        longest = max(map(len, rows))
        fill = [longest - len(row) for row in rows]
        ids = [row + [encoder.tokenizer.padding] * n for row, n in zip(rows, fill, strict=True)]
        mask = [[1] * len(row) + [0] * n for row, n in zip(rows, fill, strict=True)]
        return {"input_ids": _on(ids, encoder.device), "attention_mask": _on(mask, encoder.device)}

    def _on(rows: list[list[int]], device: torch.device) -> torch.Tensor:
        return torch.tensor(rows, device=device)

    return TextSide(
        tokens,
        lambda words: list(encoder.tokenizer([words])[0][1:]),  # [CLS] is its only sign
        lambda given: projection(text(**given).last_hidden_state[:, 0]),
        text.get_input_embeddings(),
        (text, projection),
    )


def _of_composed(encoder: Any, template: str) -> TextSide:

    model, tokenizer = encoder.text.model, encoder.text.tokenizer

    def tokens(prompts: Sequence[str]) -> Tokens:
        told = tokenizer(
            list(prompts), padding=True, truncation=True, max_length=encoder.text_length, return_tensors="pt"
        )
        return {name: tensor.to(encoder.device) for name, tensor in told.items()}

    return TextSide(
        tokens,
        lambda text: list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]),
        differentiable_text(encoder, (template,)),
        model.get_input_embeddings(),
        (model,),
    )

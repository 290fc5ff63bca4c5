"""The parts of each family's text model that prompt tuning needs: tokenization, embeddings, differentiable encoding."""

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

__all__ = ["TextModelParts", "differentiable_text", "text_model_parts"]


def differentiable_text(
    encoder: ComposedEncoder, templates: Sequence[str]
) -> Callable[[Mapping[str, torch.Tensor]], torch.Tensor]:
    """The composed encoder's text encoding, from tokens to (n, 256), not normalised, with gradients.

    The centre of `templates` is subtracted; it does not change while the context is tuned.
    """
    import torch

    model, text_to_image = encoder.text.model, encoder.text_to_image
    # float64, as it was fitted: it uses small differences between sentences.
    centre, anchors, weights = (
        torch.tensor(array, device=encoder.device, dtype=torch.float64)
        for array in (encoder._centre(tuple(templates)), text_to_image.anchors, text_to_image.weights)
    )

    def encode(tokens: Mapping[str, torch.Tensor]) -> torch.Tensor:
        states = model(**tokens).last_hidden_state
        mask = tokens["attention_mask"].unsqueeze(-1).to(states.dtype)
        sentences = ((states * mask).sum(dim=1) / mask.sum(dim=1)).double()
        centred = torch.nn.functional.normalize(sentences, dim=-1) - centre
        cosines = torch.nn.functional.normalize(centred, dim=-1) @ anchors.T
        return torch.exp(SHARPNESS * (cosines - 1)) @ weights

    return encode


Tokens = Mapping[str, "torch.Tensor"]


@dataclass(frozen=True)
class TextModelParts:
    """What `ContextText` needs from an encoder."""

    tokens: Callable[[Sequence[str]], Tokens]
    """Tokenized prompts, truncated and padded."""
    ids: Callable[[str], list[int]]
    """Token ids of a text, without special tokens."""
    encode: Callable[[Tokens], torch.Tensor]
    """(n, d), not normalised, differentiable."""
    embedding: torch.nn.Module
    modules: tuple[torch.nn.Module, ...]
    padding_token: int | None = None
    """The token that prompts are padded with on the left; None if they are padded on the right."""


def text_model_parts(encoder: Encoder, template: str) -> TextModelParts:
    """The parts of an encoder of any family; only the composed encoder uses `template`, which has {} for the name."""
    if isinstance(encoder, TransformersEncoder):
        return _transformers_parts(encoder)
    if isinstance(encoder, OpenClipEncoder):
        return _open_clip_parts(encoder)
    if isinstance(encoder, ALBEFEncoder):
        return _albef_parts(encoder)
    if encoder.family == "composed":
        return _composed_parts(encoder, template)
    raise ValueError(
        f"prompts cannot be tuned in the family {encoder.family!r}: the embeddings of its text model are not known. "
        "Fix: use an encoder of another family, or zeroshift.encode.tuning.ContextText."
    )


def _transformers_parts(encoder: TransformersEncoder) -> TextModelParts:
    model: Any = encoder.model

    def ids(text: str) -> list[int]:
        prepared = encoder.prepare_text(text)
        return list(encoder.tokenizer(prepared, add_special_tokens=False, verbose=False)["input_ids"])

    def encode(tokens: Tokens) -> torch.Tensor:
        output = model.get_text_features(**tokens)
        return getattr(output, "pooler_output", output)

    def encode_blip(tokens: Tokens) -> torch.Tensor:
        return model.text_proj(model.text_encoder(**tokens).last_hidden_state[:, 0])

    padding_token = encoder.tokenizer.pad_token_id if encoder.tokenizer.padding_side == "left" else None
    if isinstance(encoder, BLIPEncoder):
        embedding = model.text_encoder.get_input_embeddings()
        return TextModelParts(
            encoder._tokens, ids, encode_blip, embedding, (model.text_encoder, model.text_proj), padding_token
        )
    return TextModelParts(
        encoder._tokens, ids, encode, model.text_model.get_input_embeddings(), (model,), padding_token
    )


def _open_clip_parts(encoder: OpenClipEncoder) -> TextModelParts:
    model: Any = encoder.model
    # CLIP's text transformer is a separate module or part of the model.
    embedding = getattr(getattr(model, "text", model), "token_embedding", None)
    if embedding is None or not hasattr(encoder.tokenizer, "encode"):
        raise ValueError(
            f"prompts cannot be tuned in {encoder.source}, of the family 'open_clip': its text model is from another "
            "library. Fix: use a model with CLIP's text model, or load it with transformers."
        )
    return TextModelParts(
        lambda prompts: {"input_ids": encoder.tokenizer(list(prompts)).to(encoder.device)},
        lambda text: list(encoder.tokenizer.encode(text)),
        lambda tokens: model.encode_text(tokens["input_ids"]),
        embedding,
        (model,),
    )


def _albef_parts(encoder: ALBEFEncoder) -> TextModelParts:
    import torch

    text_model, projection = encoder.parts["text"], encoder.parts["text_proj"]

    def tokens(prompts: Sequence[str]) -> Tokens:
        rows = [row[: encoder.text_length] for row in encoder.tokenizer(prompts)]
        longest = max(map(len, rows))
        n_padding = [longest - len(row) for row in rows]
        ids = [row + [encoder.tokenizer.padding] * n for row, n in zip(rows, n_padding, strict=True)]
        mask = [[1] * len(row) + [0] * n for row, n in zip(rows, n_padding, strict=True)]
        return {
            "input_ids": torch.tensor(ids, device=encoder.device),
            "attention_mask": torch.tensor(mask, device=encoder.device),
        }

    return TextModelParts(
        tokens,
        lambda text: list(encoder.tokenizer([text])[0][1:]),  # [CLS] is its only special token
        lambda tokens: projection(text_model(**tokens).last_hidden_state[:, 0]),
        text_model.get_input_embeddings(),
        (text_model, projection),
    )


def _composed_parts(encoder: Any, template: str) -> TextModelParts:
    model, tokenizer = encoder.text.model, encoder.text.tokenizer

    def tokens(prompts: Sequence[str]) -> Tokens:
        encoded = tokenizer(
            list(prompts), padding=True, truncation=True, max_length=encoder.text_length, return_tensors="pt"
        )
        return {name: tensor.to(encoder.device) for name, tensor in encoded.items()}

    return TextModelParts(
        tokens,
        lambda text: list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]),
        differentiable_text(encoder, (template,)),
        model.get_input_embeddings(),
        (model,),
    )

"""The tiny CLIP that the authors' prompt-tuning loops were run with (tests/golden/README.md)."""

from __future__ import annotations

import copy
import json
from functools import cache
from itertools import chain

import numpy as np

from goldens import golden


@cache
def tiny_clip():
    """A `CLIPModel` with the golden weights, frozen, in float32."""
    import torch
    import transformers

    arrays = dict(golden("tiny_clip_weights"))
    config = transformers.CLIPConfig(**json.loads(str(arrays.pop("config"))))
    model = transformers.CLIPModel(config)
    state = {name: torch.tensor(array) for name, array in arrays.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert all("position_ids" in name for name in missing), missing
    return model.eval().requires_grad_(False)


@cache
def tiny_text(chunk_size: int = 64):
    """Its text encoder: the golden's seven prompts, with four tunable words each."""
    import torch

    from zeroshift.encode.tuning import ContextText

    model, positions = tiny_clip(), golden("tiny_clip_prompt_tuning")["ctx_positions"]
    return ContextText(
        lambda tokens: model.get_text_features(**tokens).pooler_output,
        model.text_model.embeddings.token_embedding,
        {"input_ids": torch.tensor(golden("tiny_clip_prompt_tuning")["input_ids"])},
        start=int(positions[0]),
        words=len(positions),
        modules=(model,),
        chunk_size=chunk_size,
    )


@cache
def tiny_views() -> np.ndarray:
    """(12, 32, d) unit features of the golden's images, view 0 the image itself."""
    import torch

    pixels = torch.tensor(golden("tiny_clip_prompt_tuning")["views"])
    with torch.no_grad():
        features = tiny_clip().get_image_features(pixel_values=pixels.flatten(0, 1)).pooler_output
    features = (features / features.norm(dim=-1, keepdim=True)).numpy()
    return features.reshape(*pixels.shape[:2], -1)


def tiny_scale() -> float:
    return float(json.loads(str(golden("tiny_clip_prompt_tuning")["hyper"]))["logit_scale"])


@cache
def exact_clip():
    """The same model in float64, so that differences are not due to its rounding."""
    return copy.deepcopy(tiny_clip()).double()


@cache
def exact_text():
    """Like `tiny_text`, in float64."""
    import torch

    from zeroshift.encode.tuning import ContextText

    model, positions = exact_clip(), golden("tiny_clip_prompt_tuning")["ctx_positions"]
    return ContextText(
        lambda tokens: model.get_text_features(**tokens).pooler_output,
        model.text_model.embeddings.token_embedding,
        {"input_ids": torch.tensor(golden("tiny_clip_prompt_tuning")["input_ids"])},
        start=int(positions[0]),
        words=len(positions),
        modules=(model,),
    )


@cache
def exact_views() -> np.ndarray:
    """Like `tiny_views`, in float64."""
    import torch

    pixels = torch.tensor(golden("tiny_clip_prompt_tuning")["views"]).double()
    with torch.no_grad():
        features = exact_clip().get_image_features(pixel_values=pixels.flatten(0, 1)).pooler_output
    features = (features / features.norm(dim=-1, keepdim=True)).numpy()
    return features.reshape(*pixels.shape[:2], -1)


def initial_context():
    """The initial context of the exact model, a tensor."""
    import torch

    positions = torch.tensor(golden("tiny_clip_prompt_tuning")["ctx_positions"])
    ids = torch.tensor(golden("tiny_clip_prompt_tuning")["input_ids"])
    return exact_clip().text_model.embeddings.token_embedding.weight[ids[0, positions]].clone()


def text_features(context):
    """Unit text features of the exact model with another context, independent of the library and differentiable."""
    import torch

    arrays, table = golden("tiny_clip_prompt_tuning"), exact_clip().text_model.embeddings.token_embedding
    ids, first = torch.tensor(arrays["input_ids"]), int(arrays["ctx_positions"][0])

    def swapped(module, inputs, output):
        output = output.clone()
        output[:, first : first + len(context)] = context
        return output

    handle = table.register_forward_hook(swapped)
    features = exact_clip().get_text_features(input_ids=ids).pooler_output
    handle.remove()
    return torch.nn.functional.normalize(features, dim=-1)


def exact_logits(contexts) -> np.ndarray:
    """(N, K): the exact model's logits of the golden's first images, each with its tuned context (N, n, width)."""
    import torch

    with torch.no_grad():
        rows = [
            tiny_scale() * text_features(torch.tensor(context).double()) @ torch.tensor(image)
            for context, image in zip(contexts, exact_views()[: len(contexts), 0], strict=True)
        ]
    return torch.stack(rows).numpy()


CLIP_MEAN, CLIP_STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]


def tiny_pixels(images):
    """What the model gets for bytes (B, 3, 16, 16): normalised, in float64."""
    import torch

    mean, std = (torch.tensor(values, dtype=torch.float64)[:, None, None] for values in (CLIP_MEAN, CLIP_STD))
    return (torch.from_numpy(np.array(images)).double() / 255 - mean) / std


@cache
def tiny_vision(precision: str = "float32", chunk_size: int = 16):
    """The image encoder of the golden's images, bytes (B, 3, 16, 16), in float32 or float64."""
    from types import SimpleNamespace

    import torch

    from zeroshift.encode.preprocessing import PixelPreprocessing, affine_table
    from zeroshift.encode.tuning.vision import TokenVision

    model = exact_clip() if precision == "float64" else tiny_clip()

    def to_device(array, *, first):
        return tiny_pixels(array).to(getattr(torch, precision))

    encoder = SimpleNamespace(
        model=model,
        batch_size=64,
        dimension=32,
        preprocessing=PixelPreprocessing(None, (16, 16), "bicubic", affine_table(CLIP_MEAN, CLIP_STD)),
        dtype=getattr(torch, precision),
        key=lambda: "tiny",
        _to_device=to_device,
    )
    return TokenVision(encoder, chunk_size=chunk_size)


@cache
def few_shot_features(precision: str = "float32"):
    """Unit features and labels of the golden's 56 support images, and features of the other 120 images."""
    import torch

    arrays = golden("tiny_clip_fewshot_prompt")
    mean, std = (torch.tensor(values)[:, None, None] for values in (CLIP_MEAN, CLIP_STD))
    pixels = (torch.tensor(arrays["images"]).float() / 255 - mean) / std  # in float32, as the authors' transforms
    model = exact_clip() if precision == "float64" else tiny_clip()
    with torch.no_grad():
        features = model.get_image_features(pixel_values=pixels.to(model.dtype)).pooler_output
    features = torch.nn.functional.normalize(features, dim=-1).numpy()
    return (features[:56], arrays["labels"][:56]), features[56:]


def moved_names(position: str):
    """(7, 16) tokens with the name at `position`, and (7, 4) the positions of the words."""
    words = len(golden("tiny_clip_prompt_tuning")["ctx_positions"])
    lengths = json.loads(str(golden("tiny_clip_fewshot_prompt")["hyper"]))["name_lens"]
    before = {"end": words, "middle": words // 2, "front": 0}[position]
    rows, places = [], []
    for row, length in zip(golden("tiny_clip_prompt_tuning")["input_ids"].tolist(), lengths, strict=True):
        context, name, rest = row[1 : 1 + words], row[1 + words : 1 + words + length], row[1 + words + length :]
        rows.append([row[0], *context[:before], *name, *context[before:], *rest])
        places.append([1 + n if n < before else 1 + n + length for n in range(words)])
    return rows, places


@cache
def moved_text(*positions: str, precision: str = "float32", chunk_size: int = 64):
    """The prompts with the name elsewhere: between the halves of the words ("middle"), or before them ("front")."""
    import torch

    from zeroshift.encode.tuning import ContextText

    model = exact_clip() if precision == "float64" else tiny_clip()
    rows, places = (list(chain(*parts)) for parts in zip(*map(moved_names, positions), strict=True))
    return ContextText(
        lambda tokens: model.get_text_features(**tokens).pooler_output,
        model.text_model.embeddings.token_embedding,
        {"input_ids": torch.tensor(rows)},
        start=places,
        words=len(places[0]),
        n_prompts=len(positions),
        modules=(model,),
        chunk_size=chunk_size,
    )


def exact_prompts(context, *positions: str):
    """(V K, d) unit features by the exact model, differentiable by torch twice. The words' embeddings are `context`,
    (n, width) or (K, n, width)."""
    import torch

    model, parts = exact_clip(), []
    for position in positions:
        rows, places = moved_names(position)

        def replaced(module, inputs, output, places=places):
            output = output.clone()
            for k, columns in enumerate(places):
                for n, column in enumerate(columns):
                    output[k, column] = context[n] if context.ndim == 2 else context[k, n]
            return output

        handle = model.text_model.embeddings.token_embedding.register_forward_hook(replaced)
        parts.append(model.get_text_features(input_ids=torch.tensor(rows)).pooler_output)
        handle.remove()
    return torch.nn.functional.normalize(torch.cat(parts), dim=-1)


def tiny_method(cls, precision: str = "float32", **settings):
    """A method that tunes this encoder, with the golden's scale of the logits and batches of 24."""
    text = exact_text() if precision == "float64" else tiny_text()
    models = {"vision": tiny_vision(precision), "text": text}
    if "batch_size" in cls.declared_parameters:
        settings = {"batch_size": 24, **settings}
    models = {name: models[name] for name in cls.model_parameters}
    return cls(text.features(text.context), **{"logit_scale": tiny_scale(), **models, **settings})

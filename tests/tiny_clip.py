"""The tiny CLIP the authors' prompt-tuning loops were run on (tests/golden/README.md), for the tests of those."""

from __future__ import annotations

import json
from functools import cache

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
    """Its text side: the golden's seven prompts, four words of each to tune."""
    import torch

    from zeroshift.encode.tuning import ContextText

    model, positions = tiny_clip(), golden("tiny_clip_prompt_tuning")["ctx_positions"]
    return ContextText(
        lambda tokens: model.get_text_features(**tokens).pooler_output,
        model.text_model.embeddings.token_embedding,
        {"input_ids": torch.tensor(golden("tiny_clip_prompt_tuning")["input_ids"])},
        start=int(positions[0]),
        words=len(positions),
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

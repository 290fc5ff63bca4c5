"""A tiny CLIP with several layers in both encoders, for the tests of prompts in the first layers."""

from __future__ import annotations

LAYERS = 4


def load_deep_clip(folder, image_width):
    """In float64: what is left between two answers is no rounding of the model's."""
    import torch
    import transformers

    from encode import tiny
    from zeroshift.encode import registry

    settings = tiny._clip_settings(tiny._clip_tokenizer(folder))
    for side in ("text_config", "vision_config"):
        settings[side] = {**settings[side], "num_hidden_layers": LAYERS}
    settings["vision_config"]["hidden_size"] = image_width
    kinds = transformers.CLIPModel, transformers.CLIPImageProcessorPil
    tiny._save(folder, kinds[0], transformers.CLIPConfig(**settings), kinds[1], crop=True)
    loaded = registry.load(str(folder), device="cpu")
    loaded.model, loaded.dtype = loaded.model.double(), torch.float64
    return loaded

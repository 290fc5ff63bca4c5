"""Tiny random models of every family, saved as published ones are: weights, tokenizer, image processor. Those of
`VISION_BUILDERS` have no text."""

from __future__ import annotations

import string
from pathlib import Path

import torch
import transformers

WORDS = ["a", "photo", "of", "the", "cat", "dog", "horse", "frog", "type", "pet", "art", "in", "video", "game", "small"]
VISION = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
TEXT = {**VISION, "vocab_size": 200}
SIDE = 32


def clip(folder: Path) -> Path:
    config = transformers.CLIPConfig(**_clip_settings(_clip_tokenizer(folder)))
    return _save(folder, transformers.CLIPModel, config, transformers.CLIPImageProcessorPil, crop=True)


def metaclip(folder: Path) -> Path:
    config = transformers.MetaClip2Config(**_clip_settings(_clip_tokenizer(folder)))
    return _save(folder, transformers.MetaClip2Model, config, transformers.CLIPImageProcessorPil, crop=True)


def siglip(folder: Path) -> Path:
    _word_tokenizer(folder, model_max_length=16)
    return _siglip_of_fixed_size(folder)


def siglip2_of_fixed_size(folder: Path) -> Path:
    """Which differs from the first in its tokenizer alone."""
    _piece_tokenizer(folder, transformers.GemmaTokenizer)
    return _siglip_of_fixed_size(folder)


def _siglip_of_fixed_size(folder: Path) -> Path:
    config = transformers.SiglipConfig(
        text_config={**TEXT, "max_position_embeddings": 16, "projection_size": 32},
        vision_config={**VISION, "image_size": SIDE, "patch_size": 8},
    )
    return _save(folder, transformers.SiglipModel, config, transformers.SiglipImageProcessorPil)


def siglip2(folder: Path) -> Path:
    _piece_tokenizer(folder, transformers.Siglip2Tokenizer)
    config = transformers.Siglip2Config(
        text_config={**TEXT, "max_position_embeddings": 16, "projection_size": 32},
        vision_config={**VISION, "num_patches": 16, "patch_size": 8},
    )
    model = _built(transformers.Siglip2Model, config)
    model.save_pretrained(folder)
    transformers.Siglip2ImageProcessorPil(patch_size=8, max_num_patches=16).save_pretrained(folder)
    return folder


def blip(folder: Path) -> Path:
    _bert_tokenizer(folder)
    config = transformers.BlipConfig(
        text_config={**TEXT, "max_position_embeddings": 40, "encoder_hidden_size": 32},
        vision_config={**VISION, "image_size": SIDE, "patch_size": 8},
        image_text_hidden_size=16,
    )
    return _save(folder, transformers.BlipForImageTextRetrieval, config, transformers.BlipImageProcessorPil)


def align(folder: Path) -> Path:
    _bert_tokenizer(folder)
    config = transformers.AlignConfig(
        text_config={**TEXT, "max_position_embeddings": 40},
        vision_config={
            "image_size": SIDE, "width_coefficient": 0.1, "depth_coefficient": 0.1, "hidden_dim": 32,
            "in_channels": [16, 8], "out_channels": [8, 8], "kernel_sizes": [3, 3], "strides": [1, 2],
            "num_block_repeats": [1, 1], "expand_ratios": [1, 2], "depthwise_padding": [],
        },
        projection_dim=8,
    )  # fmt: skip
    folder = _save(folder, transformers.AlignModel, config, None)
    processor = transformers.EfficientNetImageProcessorPil(
        size={"height": SIDE + 6, "width": SIDE + 6}, do_center_crop=True, crop_size={"height": SIDE, "width": SIDE},
        include_top=False,
    )  # fmt: skip
    processor.save_pretrained(folder)
    return folder


def altclip(folder: Path) -> Path:
    _word_tokenizer(folder, model_max_length=30)
    config = transformers.AltCLIPConfig(
        text_config={**TEXT, "max_position_embeddings": 32, "project_dim": 24, "pad_token_id": 1},
        vision_config={**VISION, "image_size": SIDE, "patch_size": 8},
        projection_dim=16,
    )
    return _save(folder, transformers.AltCLIPModel, config, transformers.CLIPImageProcessorPil, crop=True)


def chinese_clip(folder: Path) -> Path:
    _bert_tokenizer(folder)
    config = transformers.ChineseCLIPConfig(
        text_config={**TEXT, "max_position_embeddings": 40},
        vision_config={**VISION, "image_size": SIDE, "patch_size": 8},
        projection_dim=16,
    )
    return _save(folder, transformers.ChineseCLIPModel, config, transformers.ChineseCLIPImageProcessorPil, crop=True)


BUILDERS = {
    "clip": clip,
    "siglip": siglip,
    "siglip2": siglip2,
    "blip": blip,
    "align": align,
    "altclip": altclip,
    "chinese_clip": chinese_clip,
    "metaclip": metaclip,
}


def dinov2(folder: Path, *, registers: bool = False) -> Path:
    kind = "Dinov2WithRegisters" if registers else "Dinov2"
    config = getattr(transformers, f"{kind}Config")(**VISION, image_size=SIDE, patch_size=8)
    return _save(folder, getattr(transformers, f"{kind}Model"), config, transformers.BitImageProcessorPil, crop=True)


def dinov2_with_registers(folder: Path) -> Path:
    return dinov2(folder, registers=True)


def dinov3_vit(folder: Path) -> Path:
    config = transformers.DINOv3ViTConfig(**VISION, image_size=SIDE, patch_size=8, num_register_tokens=2)
    return _save(folder, transformers.DINOv3ViTModel, config, transformers.ViTImageProcessorPil)


def vit(folder: Path, *, kind: str = "ViT") -> Path:
    """A classifier, as published: its weights lack the pooler of the plain model."""
    config = getattr(transformers, f"{kind}Config")(**VISION, image_size=SIDE, patch_size=8, num_labels=5)
    return _save(
        folder, getattr(transformers, f"{kind}ForImageClassification"), config, transformers.ViTImageProcessorPil
    )


def deit(folder: Path) -> Path:
    return vit(folder, kind="DeiT")


def vit_msn(folder: Path) -> Path:
    config = transformers.ViTMSNConfig(**VISION, image_size=SIDE, patch_size=8)
    return _save(folder, transformers.ViTMSNModel, config, transformers.ViTImageProcessorPil)


def convnext(folder: Path, *, kind: str = "ConvNext") -> Path:
    config = getattr(transformers, f"{kind}Config")(hidden_sizes=[8, 16, 16, 24], depths=[1, 1, 1, 1], image_size=SIDE)
    return _convolutional(folder, getattr(transformers, f"{kind}Model"), config)


def convnextv2(folder: Path) -> Path:
    return convnext(folder, kind="ConvNextV2")


def resnet(folder: Path) -> Path:
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16, 16, 24], depths=[1, 1, 1, 1])
    return _convolutional(folder, transformers.ResNetModel, config)


def swin(folder: Path, *, kind: str = "Swin") -> Path:
    config = getattr(transformers, f"{kind}Config")(
        image_size=SIDE, patch_size=4, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=4
    )
    return _save(folder, getattr(transformers, f"{kind}Model"), config, transformers.ViTImageProcessorPil)


def swinv2(folder: Path) -> Path:
    return swin(folder, kind="Swinv2")


def _convolutional(folder: Path, model_class, config) -> Path:
    """Their processor resizes to more than it crops."""
    _save(folder, model_class, config, None)
    transformers.ConvNextImageProcessorPil(size={"shortest_edge": SIDE}, crop_pct=0.875).save_pretrained(folder)
    return folder


VISION_BUILDERS = {
    "convnext": convnext,
    "convnextv2": convnextv2,
    "deit": deit,
    "dinov2": dinov2,
    "dinov2_with_registers": dinov2_with_registers,
    "dinov3_vit": dinov3_vit,
    "resnet": resnet,
    "swin": swin,
    "swinv2": swinv2,
    "vit": vit,
    "vit_msn": vit_msn,
}


def _clip_settings(tokenizer) -> dict:
    signs = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return {
        "text_config": {**TEXT, **signs, "max_position_embeddings": 24},
        "vision_config": {**VISION, "image_size": SIDE, "patch_size": 8},
        "projection_dim": 16,
    }


def _built(model_class, config):
    torch.manual_seed(0)
    model = model_class(config).eval()
    # Published initialisations are near zero, and the features of two prompts near each other: spread them out.
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.3)
            elif name.endswith("bias"):
                parameter.normal_(0, 0.1)
        # Single numbers that decide scores are set apart from their defaults, so that forgetting one shows.
        for name, value in (("logit_scale", 3.3), ("logit_bias", -5.0), ("temperature", 0.05)):
            if hasattr(model, name):
                getattr(model, name).fill_(value)
    return model


def _save(folder, model_class, config, processor_class, *, crop=False):
    _built(model_class, config).save_pretrained(folder)
    if processor_class is not None:
        size = {"shortest_edge": SIDE} if crop else {"height": SIDE, "width": SIDE}
        extra = {"crop_size": {"height": SIDE, "width": SIDE}} if crop else {}
        processor_class(size=size, **extra).save_pretrained(folder)
    return folder


def _clip_tokenizer(folder: Path):
    """Byte-pair encoding with CLIP's own conventions, and merges enough for a few whole words."""
    letters = [*string.ascii_lowercase, *string.digits, *",.'-_"]
    vocab = {letter: i for i, letter in enumerate([*letters, *(f"{letter}</w>" for letter in letters)])}
    merges = [("c", "a"), ("ca", "t</w>"), ("d", "o"), ("do", "g</w>"), ("o", "f</w>")]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    vocab["<|startoftext|>"] = len(vocab)
    vocab["<|endoftext|>"] = len(vocab)
    tokenizer = transformers.CLIPTokenizer(vocab=vocab, merges=merges, model_max_length=24)
    tokenizer.save_pretrained(folder)
    return tokenizer


def _bert_tokenizer(folder: Path):
    signs = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", ",", *WORDS]
    letters = [*string.ascii_lowercase, *(f"##{letter}" for letter in string.ascii_lowercase)]
    vocab = {word: i for i, word in enumerate(dict.fromkeys([*signs, *letters]))}
    tokenizer = transformers.BertTokenizer(vocab=vocab, model_max_length=40)
    tokenizer.save_pretrained(folder)
    return tokenizer


def _piece_tokenizer(folder: Path, kind):
    """Pieces of words, blanks among them, as the tokenizer of Gemma that SigLIP 2 reads with."""
    from tokenizers import processors

    signs = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "\u2581", ".", ",", *string.ascii_lowercase]
    merges = [("c", "a"), ("ca", "t"), ("d", "o"), ("do", "g")]
    vocab = {piece: i for i, piece in enumerate([*signs, *("".join(pair) for pair in merges)])}
    tokenizer = kind(vocab=vocab, merges=merges, model_max_length=16)
    ending = processors.TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", vocab["<eos>"])])
    tokenizer.backend_tokenizer.post_processor = ending
    tokenizer.save_pretrained(folder)
    return tokenizer


def _word_tokenizer(folder: Path, *, model_max_length: int):
    """Words by blanks, case and punctuation kept apart: what an adapter forgets to do to its text shows."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    vocab = {word: i for i, word in enumerate(dict.fromkeys(["<s>", "<pad>", "</s>", "<unk>", ".", ",", "A", *WORDS]))}
    raw = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    raw.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", vocab["</s>"])])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, unk_token="<unk>", pad_token="<pad>", eos_token="</s>", model_max_length=model_max_length
    )
    tokenizer.save_pretrained(folder)
    return tokenizer

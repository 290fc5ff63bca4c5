"""`load_when_needed`: an encoder that is loaded when something must be encoded.

What an extraction needs to know of an encoder to find everything in the cache (its identity, logit scale, size of the
features, settings of its preprocessing) is recorded in the cache when the encoder is first loaded, with digests of the
model's files. As long as the files are the same, a later extraction reads the record, and imports neither torch nor
transformers unless an image or a prompt is new.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from zeroshift._version import __version__
from zeroshift.encode import registry
from zeroshift.encode.encoder import UNKNOWN_REVISION, Encoder, ImageEncoder
from zeroshift.encode.extraction.images import FileDigests
from zeroshift.encode.extraction.store import cache_folder, settings_key
from zeroshift.encode.families import composed_models, efficientnet_lite
from zeroshift.encode.families.base import model_files
from zeroshift.encode.families.composed import SentencePrototypes
from zeroshift.encode.preprocessing import Pixels, Preprocessing
from zeroshift.files import FileFormatError, atomic_path
from zeroshift.parameters import Number
from zeroshift.parsers import read_json

if TYPE_CHECKING:
    import torch

__all__ = ["EncoderChangedError", "EncoderRecord", "RecordedEncoder", "RecordedImageEncoder", "load_when_needed"]

KIND = "encoders"
"""Folder of the records in the cache."""

SCHEMA = 1


class EncoderChangedError(RuntimeError):
    """The encoder that was loaded, `encoder`, is not the one that was recorded, `recorded`."""

    def __init__(self, recorded: RecordedImageEncoder, encoder: ImageEncoder) -> None:
        super().__init__(
            f"{encoder.source} has changed since it was last loaded, so that what is cached does not belong to it. "
            "Fix: repeat the call, which encodes with the new model."
        )
        self.recorded, self.encoder = recorded, encoder


@dataclass(frozen=True)
class EncoderRecord:
    """What is known of an encoder without loading it. The last three are None for an encoder of images alone."""

    family: str
    source: str
    revision: str
    dtype: str
    dimension: int
    batch_size: int
    preprocessing: dict[str, Any]
    """Its settings: see `Preprocessing.describe`."""
    logit_scale: float | None = None
    logit_bias: float | None = None
    text_length: int | None = None

    @classmethod
    def of(cls, encoder: ImageEncoder) -> EncoderRecord:
        text = {}
        if isinstance(encoder, Encoder):
            text = {name: getattr(encoder, name) for name in ("logit_scale", "logit_bias", "text_length")}
        described = {**encoder.describe(), "preprocessing": encoder.describe_preprocessing(), **text}
        # As it is read from the file: JSON has no tuples.
        plain = json.loads(json.dumps(described))
        return cls(**plain, dimension=encoder.dimension, batch_size=encoder.batch_size)

    @classmethod
    def parse(cls, content: Any, *, with_text: bool) -> EncoderRecord:
        """From a file; a ValueError or TypeError if it is not complete."""
        record = cls(**content)
        kinds: dict[str, type | tuple[type, ...]] = {
            **dict.fromkeys(("family", "source", "revision", "dtype"), str),
            **dict.fromkeys(("dimension", "batch_size"), int),
            "preprocessing": dict,
            "logit_scale": (int, float) if with_text else type(None),
            "text_length": int if with_text else type(None),
        }
        for name, kind in kinds.items():
            if not isinstance(getattr(record, name), kind) or isinstance(getattr(record, name), bool):
                raise TypeError(f"{name} is {getattr(record, name)!r}")
        registry.get(record.family)
        return record

    def describe(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("family", "source", "revision", "dtype")}


class RecordedImageEncoder(ImageEncoder):
    """An encoder of images that is loaded when the first image must be encoded.

    Attributes
    ----------
    record : what is known of it.
    on_load : called just before it is loaded.
    """

    def __init__(self, record: EncoderRecord, load: Callable[[], ImageEncoder], on_change: Callable[..., None]) -> None:
        self.record = record
        self._load, self._on_change = load, on_change
        self.family = record.family  # type: ignore[misc]
        self.source, self.revision, self.dimension = record.source, record.revision, record.dimension
        self.batch_size = record.batch_size
        self.on_load: Callable[[], None] | None = None

    @property
    def is_loaded(self) -> bool:
        return "loaded" in vars(self)

    @cached_property
    def loaded(self) -> ImageEncoder:
        """The encoder itself."""
        if self.on_load is not None:
            self.on_load()
        encoder = self._load()
        found = EncoderRecord.of(encoder)
        if replace(found, batch_size=self.record.batch_size) != self.record:
            self._on_change(encoder)
            raise EncoderChangedError(self, encoder)
        self.batch_size = encoder.batch_size
        return encoder

    def describe(self) -> dict[str, Any]:
        return self.record.describe()

    def describe_preprocessing(self) -> dict[str, Any]:
        return self.record.preprocessing

    @property
    def preprocessing(self) -> Preprocessing:  # type: ignore[override]
        return self.loaded.preprocessing

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.loaded.device

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        return self.loaded.dtype

    def encode_pixels(self, batch: Pixels) -> np.ndarray:
        return self.loaded.encode_pixels(batch)

    def _image_features(self, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return self.loaded._image_features(batch)


class RecordedEncoder(RecordedImageEncoder, Encoder):
    """An encoder of images and text that is loaded when the first image or prompt must be encoded."""

    loaded: Encoder

    def __init__(self, record: EncoderRecord, load: Callable[[], Encoder], on_change: Callable[..., None]) -> None:
        super().__init__(record, load, on_change)
        assert record.logit_scale is not None
        assert record.text_length is not None
        self.logit_scale, self.logit_bias = record.logit_scale, record.logit_bias
        self.text_length = record.text_length

    @property
    def tokenizer(self) -> Any:
        return self.loaded.tokenizer if self.is_loaded else None

    def encode_texts(self, prompts: Sequence[str], *, warn: bool = True) -> np.ndarray:
        return self.loaded.encode_texts(prompts, warn=warn)

    def count_tokens(self, prompts: Sequence[str]) -> list[int]:
        return self.loaded.count_tokens(prompts)

    def _text_features(self, prompts: Sequence[str]) -> torch.Tensor:
        return self.loaded._text_features(prompts)


class RecordedComposedEncoder(SentencePrototypes, RecordedEncoder):
    """The composed encoder, whose prototypes need its fitted map, which is also in the cache."""

    cache: Path | None = None

    @property
    def targets(self) -> np.ndarray:
        loaded: Any = self.loaded
        return np.asarray(loaded.targets)


def load_when_needed(
    source: str | os.PathLike[str] = registry.DEFAULT_ENCODER,
    *,
    device: str = "auto",
    dtype: str = "auto",
    revision: str | None = None,
    batch_size: int | None = None,
    cache: str | os.PathLike[str] | None = None,
    images_only: bool = False,
) -> ImageEncoder:
    """As `load_encoder` (with `images_only`, `load_image_encoder`), but an encoder that `cache` has a record of is
    loaded when something must be encoded: what is in the cache is then extracted without importing torch.

    The record of a folder or a file is used as long as its files have the same content, that of a hub's model as long
    as the local copy is at the same commit; a newer one on the hub is found when the model is loaded. Models of
    open_clip are always loaded. Without a cache, every encoder is loaded at once.
    """
    source = os.path.expanduser(os.fspath(source) if isinstance(source, os.PathLike) else source)
    folder = cache_folder(cache)
    options: dict[str, Any] = {"device": device, "dtype": dtype, "revision": revision, "batch_size": batch_size}
    load: Callable[[], Any] = (
        partial(registry.load_image_encoder, source, **options)
        if images_only
        else partial(registry.load, source, **options, cache=folder)
    )
    if folder is None:
        return load()
    file = _RecordFile(folder, source, revision, {"device": device, "dtype": dtype, "text": not images_only})
    fingerprint = file.fingerprint()
    record = file.read(fingerprint)
    if record is None:
        encoder: ImageEncoder = load()
        file.write(encoder, before=fingerprint)
        return encoder
    if batch_size is not None:
        record = replace(record, batch_size=int(Number(1, integer=True).check("batch_size", batch_size)))
    if images_only:
        return RecordedImageEncoder(record, load, file.write)
    if record.family != "composed":
        return RecordedEncoder(record, load, file.write)
    composed = RecordedComposedEncoder(record, load, file.write)
    composed.cache = folder
    return composed


Fingerprint = dict[str, str]


class _RecordFile:
    """The file of the record of one model, loaded with these options."""

    def __init__(self, cache: Path, source: str, revision: str | None, options: Mapping[str, Any]) -> None:
        self.cache, self.source, self.revision = cache, source, revision
        self.request = {
            "source": str(Path(source).resolve()) if os.path.exists(source) else source,
            "revision": revision,
            **options,
            "versions": {"zeroshift": __version__, **{name: _version(name) for name in ("torch", "transformers")}},
        }
        self.path = cache / KIND / f"{settings_key(self.request)}.json"

    def fingerprint(self) -> Fingerprint | None:
        """What identifies the model's files, without loading them; None if that is not known."""
        if self.source == "composed":
            return {"revision": composed_models.revision()} if not registry.get("composed").missing else None
        if self.source == registry.LITE0:
            return {"revision": efficientnet_lite.revision()} if not registry.get("efficientnet_lite").missing else None
        path = Path(self.source.removeprefix("albef:"))
        if path.is_dir() and path == Path(self.source):
            return self._digests(model_files(path))
        if path.is_file():  # an ALBEF checkpoint; its vocabulary could also come from the hub, which is not followed
            vocabulary = path.with_name("vocab.txt")
            return self._digests([path, vocabulary]) if vocabulary.is_file() else None
        commit = _downloaded_commit(self.source, self.revision)
        return None if commit is None else {"commit": commit}

    def _digests(self, paths: Sequence[Path]) -> Fingerprint:
        with closing(FileDigests(self.cache)) as known:
            return {path.name: known.digest(path).hex() for path in paths}

    def read(self, fingerprint: Fingerprint | None) -> EncoderRecord | None:
        """The record, if it is complete and the model's files are those it was made from."""
        if fingerprint is None or not self.path.is_file():
            return None
        try:
            content = read_json(self.path)
            if content["schema"] != SCHEMA or content["request"] != self.request:
                raise ValueError("it is of another version")
            record = EncoderRecord.parse(content["encoder"], with_text=self.request["text"])
            return record if content["files"] == fingerprint else None
        except (OSError, FileFormatError, KeyError, TypeError, ValueError):
            message = f"{self.path} is damaged, so that the encoder is loaded and recorded again"
            warnings.warn(message, UserWarning, stacklevel=3)
            return None

    def write(self, encoder: ImageEncoder, *, before: Fingerprint | None = None) -> None:
        """Record an encoder that was just loaded. `before` identifies the files before it was loaded: if they changed
        meanwhile, nothing is recorded."""
        files = self.fingerprint()
        current = files is not None and (files == before or files.get("commit") == encoder.revision)
        if not current or encoder.revision == UNKNOWN_REVISION:
            return
        content = {
            "schema": SCHEMA,
            "request": self.request,
            "files": files,
            "encoder": asdict(EncoderRecord.of(encoder)),
        }
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_path(self.path) as temporary:
                temporary.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
        except OSError:
            pass  # a cache that cannot be written is reported where features are stored


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _downloaded_commit(source: str, revision: str | None) -> str | None:
    """The commit of a hub's model that its local copy is at; None if there is none."""
    owner, slash, name = source.partition("/")
    if not slash or ":" in source or "/" in name or source.startswith(("/", ".")):
        return None
    try:
        from huggingface_hub.constants import HF_HUB_CACHE
    except ImportError:
        return None
    folder = Path(HF_HUB_CACHE) / f"models--{owner}--{name}"
    named = revision or "main"
    try:
        reference = folder / "refs" / named
        commit = reference.read_text().strip() if reference.is_file() else named
        return commit if commit and (folder / "snapshots" / commit).is_dir() else None
    except (OSError, ValueError):
        return None

"""`TransformersEncoder`, the base class for models of the transformers library; hub access, digests, preprocessing."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

import numpy as np

from zeroshift.encode.encoder import UNKNOWN_REVISION, Encoder, choose_device, choose_dtype, is_out_of_memory
from zeroshift.encode.preprocessing import RESAMPLING, PixelPreprocessing, Pixels, Preprocessing

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

__all__ = [
    "ProcessorPreprocessing",
    "TransformersEncoder",
    "check_revision",
    "convert_load_errors",
    "folder_digest",
    "hub_arguments",
    "identity_of",
    "model_files",
    "preprocessing_from_processor",
    "refuse_random_weights",
    "weights_digest",
]


WEIGHT_SUFFIXES = (".safetensors", ".bin", ".json", ".txt", ".model")
"""Suffixes of the files that determine what a model computes: weights, configuration, vocabulary."""


class TransformersEncoder(Encoder):
    """A model with `get_image_features` and `get_text_features`. Subclasses define what differs between families."""

    model_class: ClassVar[str] = "AutoModel"
    """The class in transformers with both encoders and their projections."""

    max_prompt_tokens: ClassVar[int | None] = None
    """Maximum number of tokens of the family's processor, if less than the model could read."""

    padding: ClassVar[str] = "longest"
    """Padding of prompts in a batch: to the longest one, or to the maximum length."""

    def __init__(
        self, source: str, revision: str, model: Any, tokenizer: Any, processor: Any, *, device: Any, dtype: Any
    ) -> None:
        self.source, self.revision = source, revision
        self.device, self.dtype = device, dtype
        self.model, self.tokenizer = model.eval(), tokenizer
        self.preprocessing = preprocessing_from_processor(processor, side=self._side())
        self.text_length = self._text_length()
        # Before the weights are converted: in bfloat16 a scale of 100 would become 98.9.
        self.logit_scale, self.logit_bias = self._scale_and_bias()
        self.model = self.model.to(device=device, dtype=dtype)
        self.dimension = self._dimension()

    @classmethod
    def load(
        cls, source: str, *, device: str = "auto", dtype: str = "auto", revision: str | None = None
    ) -> TransformersEncoder:
        """Load weights, tokenizer and image processor from a hub id or a local folder."""
        import transformers

        torch_device = choose_device(device)
        torch_dtype = choose_dtype(dtype, torch_device)
        with convert_load_errors(source, revision):
            arguments = hub_arguments(source, revision)
            model_class = getattr(transformers, cls.model_class)
            model, report = model_class.from_pretrained(source, output_loading_info=True, **arguments)
            refuse_random_weights(model, report["missing_keys"])
            tokenizer = transformers.AutoTokenizer.from_pretrained(source, **arguments)
            _refuse_empty_tokenizer(tokenizer)
            # The Pillow backend, even if torchvision is installed: equal features on every machine.
            processor = transformers.AutoImageProcessor.from_pretrained(source, backend="pil", **arguments)
        name, model_revision = identity_of(source, model, revision)
        return cls(name, model_revision, model, tokenizer, processor, device=torch_device, dtype=torch_dtype)

    def prepare_text(self, prompt: str) -> str:
        """Convert a prompt to the form the models were trained on, if the tokenizer does not."""
        return prompt

    def count_tokens(self, prompts: Sequence[str]) -> list[int]:
        encoded = self.tokenizer([self.prepare_text(prompt) for prompt in prompts], verbose=False)
        return [len(ids) for ids in encoded["input_ids"]]

    def _tokens(self, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
        encoded = self.tokenizer(
            [self.prepare_text(prompt) for prompt in prompts],
            padding=self.padding,
            truncation=True,
            max_length=self.text_length,
            return_tensors="pt",
        )
        return {name: encoded[name].to(self.device) for name in self.text_inputs(encoded)}

    def text_inputs(self, encoded: Any) -> list[str]:
        """The tokenizer outputs that the text encoder takes."""
        return [name for name in ("input_ids", "attention_mask", "token_type_ids") if name in encoded]

    def _text_features(self, prompts: Sequence[str]) -> torch.Tensor:
        return _pooled(self.model.get_text_features(**self._tokens(prompts)))

    def _image_features(self, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return _pooled(self.model.get_image_features(pixel_values=batch[0]))

    def _scale_and_bias(self) -> tuple[float, float | None]:
        bias = getattr(self.model, "logit_bias", None)
        return float(self.model.logit_scale.detach().float().exp()), None if bias is None else float(bias.detach())

    def _dimension(self) -> int:
        return int(self.encode_texts(["a"], warn=False).shape[1])

    def _side(self) -> int:
        return int(getattr(self.model.config.vision_config, "image_size", None) or 224)

    def _text_length(self) -> int:
        """The minimum of the model's positions, the tokenizer's maximum and the processor's maximum."""
        configured = getattr(self.model.config, "text_config", self.model.config)
        limits = [getattr(configured, "max_position_embeddings", None), self.max_prompt_tokens]
        # A tokenizer without a maximum has a very large number here.
        limits.append(self.tokenizer.model_max_length)
        return int(min(length for length in limits if length))


def identity_of(source: str, model: Any, revision: str | None) -> tuple[str, str]:
    """Name and revision of a loaded model. Of a folder the name and not the path: the same model elsewhere gives the
    same files."""
    folder = Path(source)
    if folder.is_dir():
        return folder.resolve().name, folder_digest(folder)
    return source, getattr(model.config, "_commit_hash", None) or revision or UNKNOWN_REVISION


def refuse_random_weights(model: Any, missing: Iterable[str]) -> None:
    """Raise for missing weights, which transformers initialises randomly: a BLIP for captions has no projections."""
    if lacking := sorted(set(missing) & {name for name, _ in model.named_parameters()}):
        more = f" and {len(lacking) - 1} more" if lacking[1:] else ""
        raise ValueError(f"its weights lack {lacking[0]}{more}: it was made for another task, or is damaged")


def _refuse_empty_tokenizer(tokenizer: Any) -> None:
    """Raise for missing tokenizer files, for which transformers creates a tokenizer without words."""
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
        raise ValueError("the files of its tokenizer are missing or contain no words")


def folder_digest(folder: Path) -> str:
    """A hash of the names and contents of the files that determine what the model computes."""
    digest = hashlib.sha256()
    for path in model_files(folder):
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        with open(path, "rb") as handle:
            while block := handle.read(1 << 20):
                digest.update(block)
    return f"sha256:{digest.hexdigest()[:16]}"


def model_files(folder: Path) -> list[Path]:
    """The files in a model's folder that determine what the model computes."""
    return [path for path in sorted(folder.iterdir()) if path.suffix in WEIGHT_SUFFIXES and path.is_file()]


def _pooled(output: Any) -> torch.Tensor:
    """transformers 5 returns an object, earlier versions the tensor."""
    return getattr(output, "pooler_output", output)


ENDPOINT = "https://huggingface.co"


def hub_arguments(source: str, revision: str | None) -> dict[str, object]:
    """Arguments for `from_pretrained`. If the hub's host name cannot be resolved, only local files are used: otherwise
    transformers would retry for half a minute."""
    arguments: dict[str, object] = {"revision": revision}
    if not Path(source).is_dir() and not _can_resolve(os.environ.get("HF_ENDPOINT") or ENDPOINT):
        arguments["local_files_only"] = True
    return arguments


def _can_resolve(endpoint: str) -> bool:
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True  # the proxy resolves names
    try:
        socket.getaddrinfo(urlsplit(endpoint).hostname, 443)
    except OSError:
        return False
    return True


@contextmanager
def convert_load_errors(source: str, revision: str | None) -> Iterator[None]:
    """Convert the errors of transformers and the hub into one error with a fix."""
    from safetensors import SafetensorError
    from transformers.utils import logging

    # Its progress bars and advice would disturb ours.
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError, UnpicklingError) as error:
        if is_out_of_memory(error):
            raise
        raise _load_error(source, revision, error) from error
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _load_error(source: str, revision: str | None, error: BaseException) -> Exception:
    what = source if revision is None else f"{source} at revision {revision}"
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    if isinstance(error, ImportError):
        return ImportError(f"{what} needs a package that is not installed ({first}). Fix: install it.")
    if Path(source).exists():
        return ValueError(
            f"{what} is not a complete model folder ({first}). Fix: it needs config.json, the weights, and the files "
            "of tokenizer and image processor, as save_pretrained writes them."
        )
    return OSError(
        f"{what} cannot be loaded from the hub ({first}). Fix: check the id and the network, or pass the folder of a "
        "downloaded model; `--encoder composed` needs no hub."
    )


PROBE_SIZES = ((61, 97), (97, 61), (300, 20))
"""Sizes of the images on which two preprocessings are compared: tall, wide, and wider than any crop."""


def preprocessing_from_processor(processor: Any, *, side: int) -> Preprocessing:
    """The preprocessing of `processor`: as `PixelPreprocessing` if that gives equal values on images of several shapes.

    `side` is the image's height and width for processors without a fixed size, which return a variable number of
    patches.
    """
    simple = _as_pixel_preprocessing(processor)
    if simple is not None and all(_same_output(simple, processor, size) for size in PROBE_SIZES):
        return simple
    return ProcessorPreprocessing(processor, side)


class ProcessorPreprocessing(Preprocessing):
    """Calls the model's processor in the worker processes, which start more slowly because they import transformers."""

    def __init__(self, processor: Any, side: int) -> None:
        self.processor = processor
        self.size = (side, side)

    def __call__(self, image: Image) -> Pixels:
        return self._process(image)

    def to_pixels(self, image: Image) -> Pixels:
        # A processor that resizes and crops would crop the centre again. One that does not crop finds the right size.
        crops = getattr(self.processor, "do_center_crop", False)
        return self._process(image, **({"do_resize": False, "do_center_crop": False} if crops else {}))

    def _process(self, image: Image, **settings: Any) -> Pixels:
        outputs = self.processor(images=image, return_tensors="np", **settings)
        return tuple(np.asarray(outputs[name][0]) for name in self.processor.model_input_names if name in outputs)

    def describe(self) -> dict[str, Any]:
        settings = {name: value for name, value in self.processor.to_dict().items() if not name.startswith("_")}
        return {"processor": json.loads(json.dumps(settings, default=str))}


def _as_pixel_preprocessing(processor: Any) -> PixelPreprocessing | None:
    """The processor's settings as resize, crop and table; None if they cannot be expressed so."""
    names = {number: name for name, number in RESAMPLING.items()}
    resample = names.get(int(getattr(processor, "resample", None) or 0))
    resize = _resize(processor)
    crop = None
    if getattr(processor, "do_center_crop", False):
        crop = (processor.crop_size["height"], processor.crop_size["width"])
    table = _table(processor)
    if resample is None or table is None or (crop is None and (resize is None or resize[0] == "shorter")):
        return None
    return PixelPreprocessing(resize, crop, resample, table)


def _resize(processor: Any) -> tuple[Any, ...] | None:
    size = getattr(processor, "size", None)
    if not getattr(processor, "do_resize", False) or not size:
        return None
    if size.get("shortest_edge"):
        return ("shorter", int(size["shortest_edge"]))
    return ("exact", int(size["height"]), int(size["width"]))


def _table(processor: Any) -> np.ndarray | None:
    """The processor's output for each of the 256 values, so that the table is exact to the last bit."""
    from PIL import Image

    ramp = np.repeat(np.arange(256, dtype=np.uint8).reshape(16, 16, 1), 3, axis=2)
    try:
        outputs = processor(images=Image.fromarray(ramp), do_resize=False, do_center_crop=False, return_tensors="np")
        values = np.asarray(outputs["pixel_values"][0], np.float32)
    except (TypeError, ValueError, KeyError):
        return None
    return values.reshape(3, 256) if values.shape == (3, 16, 16) else None


def _same_output(simple: PixelPreprocessing, processor: Any, size: tuple[int, int]) -> bool:
    from PIL import Image

    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    (pixels,) = simple(image)
    expected = np.asarray(processor(images=image, return_tensors="np")["pixel_values"][0])
    return expected.shape == pixels.shape and bool(np.array_equal(simple.values(pixels), expected.astype(np.float32)))


def weights_digest(tensors: Mapping[str, torch.Tensor], vocabulary: Mapping[str, int] | None = None) -> str:
    """A hash of names, types, shapes and values, independent of their order; and of the vocabulary, if given.

    >>> import torch
    >>> weights_digest({"a": torch.zeros(2), "b": torch.ones(1)})
    'sha256:831a61fb1ec25cf4'
    """
    import torch

    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        # As bytes, because NumPy does not support all types of torch.
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    for word, number in sorted((vocabulary or {}).items()):
        digest.update(f"{word}\0{number}\0".encode())
    return f"sha256:{digest.hexdigest()[:16]}"


def check_revision(requested: str | None, found: str, source: str) -> None:
    """Raise if local weights do not have the requested revision."""
    if requested is not None and requested != found:
        raise ValueError(
            f"revision={requested!r} was requested, but {source} has {found!r}. Fix: pass the checkpoint with this "
            "hash, or omit revision."
        )

"""Dual encoders of the transformers library: everything that is the same for all of their families."""

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

from zeroshift.encode.encoder import UNKNOWN, Encoder, choose_device, choose_dtype, out_of_memory
from zeroshift.encode.preprocessing import RESAMPLING, PixelPreprocessing, Pixels, Preprocessing

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

__all__ = [
    "OwnProcessor",
    "TransformersEncoder",
    "check_revision",
    "folder_digest",
    "from_hub",
    "loading",
    "preprocessing_of",
    "weights_digest",
]


# Which weights exactly, where no hub gives them a name: a hash of the numbers themselves.


def weights_digest(tensors: Mapping[str, torch.Tensor], vocabulary: Mapping[str, int] | None = None) -> str:
    """One hash of names, types, shapes and numbers, in any order; and of the vocabulary, where that is read apart.

    >>> import torch
    >>> weights_digest({"a": torch.zeros(2), "b": torch.ones(1)})
    'sha256:831a61fb1ec25cf4'
    """
    import torch

    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        # As bytes, because NumPy does not know every type torch has.
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    for word, number in sorted((vocabulary or {}).items()):
        digest.update(f"{word}\0{number}\0".encode())
    return f"sha256:{digest.hexdigest()[:16]}"


def check_revision(asked: str | None, found: str, source: str) -> None:
    """Refuse weights that are not the ones asked for: there is no hub to fetch others from."""
    if asked is not None and asked != found:
        raise ValueError(
            f"revision={asked!r} was asked for, but {source} is {found!r}. Fix: give the checkpoint that has this "
            "hash, or leave revision out."
        )


# Getting a model: from the hub, from what was downloaded before, or from a folder; and saying why when it fails.


ENDPOINT = "https://huggingface.co"


def from_hub(source: str, revision: str | None) -> dict[str, object]:
    """Arguments of every `from_pretrained`. Where the hub's name cannot be resolved, only local files are looked for:
    else half a minute of attempts would pass before anyone is told."""
    arguments: dict[str, object] = {"revision": revision}
    if not Path(source).is_dir() and not _resolved(os.environ.get("HF_ENDPOINT") or ENDPOINT):
        arguments["local_files_only"] = True
    return arguments


def _resolved(endpoint: str) -> bool:
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True  # names are then resolved by the proxy, not here
    try:
        socket.getaddrinfo(urlsplit(endpoint).hostname, 443)
    except OSError:
        return False
    return True


@contextmanager
def loading(source: str, revision: str | None) -> Iterator[None]:
    """Turns what transformers and the hub raise over a model that cannot be had into one error with the fix."""
    from safetensors import SafetensorError
    from transformers.utils import logging

    # Its bars and advice (about a torchvision that is not needed here) would run through ours.
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError, UnpicklingError) as error:
        if out_of_memory(error):
            raise
        raise _cannot_load(source, revision, error) from error
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _cannot_load(source: str, revision: str | None, error: BaseException) -> Exception:
    what = source if revision is None else f"{source} at revision {revision}"
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    if isinstance(error, ImportError):
        return ImportError(f"{what} needs a package that is not installed ({first}). Fix: install it.")
    if Path(source).exists():
        return ValueError(
            f"{what} is not a whole model folder ({first}). Fix: it needs config.json, the weights, and the files of "
            "tokenizer and image processor, as save_pretrained writes them."
        )
    return OSError(
        f"{what} cannot be had from the hub ({first}). Fix: check the id and the network, or give the folder of a "
        "downloaded model; `--encoder composed` needs no hub."
    )


# A model's own image processor, taken over: as resize, crop and table where that is all, as itself where not.


PROBES = ((61, 97), (97, 61), (300, 20))
"""Width and height of the pictures both ways are compared on: upright, lying, and longer than any crop."""


def preprocessing_of(processor: Any, *, side: int) -> Preprocessing:
    """What `processor` does, as `PixelPreprocessing` if that gives the very same values on pictures of several shapes.

    `side` is the picture's height and width where the processor does not say (it then makes patches of any number).
    """
    simple = _as_pixels(processor)
    if simple is not None and all(_agree(simple, processor, size) for size in PROBES):
        return simple
    return OwnProcessor(processor, side)


class OwnProcessor(Preprocessing):
    """The model's own processor, called in the worker processes; slower to start, since they load transformers."""

    def __init__(self, processor: Any, side: int) -> None:
        self.processor = processor
        self.size = (side, side)

    def __call__(self, image: Image) -> Pixels:
        return self._made(image)

    def ready(self, image: Image) -> Pixels:
        # One that scales to more than it then crops would take the picture's middle again. One that does not crop finds
        # the picture of the right size already.
        cropping = getattr(self.processor, "do_center_crop", False)
        return self._made(image, **({"do_resize": False, "do_center_crop": False} if cropping else {}))

    def _made(self, image: Image, **settings: Any) -> Pixels:
        made = self.processor(images=image, return_tensors="np", **settings)
        return tuple(np.asarray(made[name][0]) for name in self.processor.model_input_names if name in made)

    def describe(self) -> dict[str, Any]:
        settings = {name: value for name, value in self.processor.to_dict().items() if not name.startswith("_")}
        return {"processor": json.loads(json.dumps(settings, default=str))}


def _as_pixels(processor: Any) -> PixelPreprocessing | None:
    """The settings read as resize, crop and table; None where they say something else."""
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
    """What the processor makes of each of the 256 values, asked of itself: whatever its arithmetic, to the last bit."""
    from PIL import Image

    ramp = np.repeat(np.arange(256, dtype=np.uint8).reshape(16, 16, 1), 3, axis=2)
    try:
        made = processor(images=Image.fromarray(ramp), do_resize=False, do_center_crop=False, return_tensors="np")
        values = np.asarray(made["pixel_values"][0], np.float32)
    except (TypeError, ValueError, KeyError):
        return None
    return values.reshape(3, 256) if values.shape == (3, 16, 16) else None


def _agree(simple: PixelPreprocessing, processor: Any, size: tuple[int, int]) -> bool:
    from PIL import Image

    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    (pixels,) = simple(image)
    own = np.asarray(processor(images=image, return_tensors="np")["pixel_values"][0])
    return own.shape == pixels.shape and bool(np.array_equal(simple.values(pixels), own.astype(np.float32)))


WEIGHT_SUFFIXES = (".safetensors", ".bin", ".json", ".txt", ".model")
"""Files of a model's folder that decide what it computes: weights, configuration, vocabulary."""


class TransformersEncoder(Encoder):
    """A model with `get_image_features` and `get_text_features`. Subclasses say what is particular to a family."""

    model_class: ClassVar[str] = "AutoModel"
    """The class in transformers that has both towers and their projections."""

    longest_prompt: ClassVar[int | None] = None
    """Tokens the family's own processor cuts at, where that is less than the model could read."""

    padding: ClassVar[str] = "longest"
    """How shorter prompts of a batch are filled up: to the longest among them, or to the most the model reads."""

    def __init__(
        self, source: str, revision: str, model: Any, tokenizer: Any, processor: Any, *, device: Any, dtype: Any
    ) -> None:
        self.source, self.revision = source, revision
        self.device, self.dtype = device, dtype
        self.model, self.tokenizer = model.eval(), tokenizer
        self.preprocessing = preprocessing_of(processor, side=self._side())
        self.text_length = self._text_length()
        # Before the weights are narrowed: in bfloat16 a scale of 100 would become 98.9.
        self.logit_scale, self.logit_bias = self._scale_and_bias()
        self.model = self.model.to(device=device, dtype=dtype)
        self.dimension = self._dimension()

    @classmethod
    def load(
        cls, source: str, *, device: str = "auto", dtype: str = "auto", revision: str | None = None
    ) -> TransformersEncoder:
        """From a hub id or a local folder: the model's own weights, tokenizer and image processor."""
        import transformers

        where = choose_device(device)
        numbers = choose_dtype(dtype, where)
        with loading(source, revision):
            how = from_hub(source, revision)
            kind = getattr(transformers, cls.model_class)
            model, report = kind.from_pretrained(source, output_loading_info=True, **how)
            _refuse_random_weights(model, report["missing_keys"])
            tokenizer = transformers.AutoTokenizer.from_pretrained(source, **how)
            _refuse_empty_tokenizer(tokenizer)
            # The pillow backend, whether torchvision is installed or not: the same features on every machine.
            processor = transformers.AutoImageProcessor.from_pretrained(source, backend="pil", **how)
        folder = Path(source)
        if folder.is_dir():
            # The folder's name and not where it lies: the same model elsewhere makes the same files.
            name, exactly = folder.resolve().name, folder_digest(folder)
        else:
            name, exactly = source, getattr(model.config, "_commit_hash", None) or revision or UNKNOWN
        return cls(name, exactly, model, tokenizer, processor, device=where, dtype=numbers)

    def prepare_text(self, prompt: str) -> str:
        """What the family's models were trained to read, where their tokenizer does not see to it."""
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
        """Which of the tokenizer's answers the text tower is given."""
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
        """The least of what the model has positions for, its tokenizer says and its processor cuts at."""
        configured = getattr(self.model.config, "text_config", self.model.config)
        said = [getattr(configured, "max_position_embeddings", None), self.longest_prompt]
        # A tokenizer that was not told says an astronomical number, which never is the least.
        said.append(self.tokenizer.model_max_length)
        return int(min(length for length in said if length))


def _refuse_random_weights(model: Any, missing: Iterable[str]) -> None:
    """transformers fills weights that a file lacks with random numbers: a BLIP for captions has no projections."""
    if lacking := sorted(set(missing) & {name for name, _ in model.named_parameters()}):
        more = f" and {len(lacking) - 1} more" if lacking[1:] else ""
        raise ValueError(f"its weights lack {lacking[0]}{more}: it was made for another task, or is damaged")


def _refuse_empty_tokenizer(tokenizer: Any) -> None:
    """transformers makes up a tokenizer without a single word where there are no files of one."""
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
        raise ValueError("the files of its tokenizer are missing, or hold no word")


def folder_digest(folder: Path) -> str:
    """One hash of the files that decide what the model computes, names included."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix in WEIGHT_SUFFIXES and path.is_file():
            digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
            with open(path, "rb") as handle:
                while block := handle.read(1 << 20):
                    digest.update(block)
    return f"sha256:{digest.hexdigest()[:16]}"


def _pooled(output: Any) -> torch.Tensor:
    """transformers 5 answers with an object, earlier ones with the tensor."""
    return getattr(output, "pooler_output", output)

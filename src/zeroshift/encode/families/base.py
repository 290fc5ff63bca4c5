"""Dual encoders of the transformers library: everything that is the same for all of their families."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from zeroshift.encode.devices import choose_device, choose_dtype
from zeroshift.encode.encoder import UNKNOWN, Encoder
from zeroshift.encode.families.hub import from_hub, loading
from zeroshift.encode.families.processor import preprocessing_of

if TYPE_CHECKING:
    import torch

__all__ = ["TransformersEncoder", "folder_digest"]

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

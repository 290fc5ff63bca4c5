"""Vision models of transformers without text, such as DINOv2: second encoders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from zeroshift.encode.encoder import ImageEncoder, choose_device, choose_dtype
from zeroshift.encode.families.base import (
    convert_load_errors,
    hub_arguments,
    identity_of,
    preprocessing_from_processor,
    refuse_random_weights,
)

if TYPE_CHECKING:
    import torch

__all__ = ["VisionEncoder"]

WITH_CLASS_TOKEN = ("deit", "dinov2", "dinov2_with_registers", "dinov3_vit", "vit", "vit_msn")
"""Types whose feature is the class token of the last layer. The others average over positions themselves."""

WITH_OPTIONAL_POOLER = ("deit", "vit")
"""Types with a layer after the class token that most published weights lack, so that it is left out."""


class VisionEncoder(ImageEncoder):
    """The class token of a vision transformer, or the mean over positions of a convolutional or Swin network."""

    family: ClassVar[str] = "vision"

    def __init__(self, source: str, revision: str, model: Any, processor: Any, *, device: Any, dtype: Any) -> None:
        self.source, self.revision = source, revision
        self.device, self.dtype = device, dtype
        config = model.config
        self.class_token = config.model_type in WITH_CLASS_TOKEN
        side = getattr(config, "image_size", None) or 224
        self.preprocessing = preprocessing_from_processor(processor, side=side if isinstance(side, int) else side[0])
        self.model = model.eval().to(device=device, dtype=dtype)
        self.dimension = int(getattr(config, "hidden_size", None) or config.hidden_sizes[-1])

    @classmethod
    def load(
        cls, source: str, *, device: str = "auto", dtype: str = "auto", revision: str | None = None
    ) -> VisionEncoder:
        """Load weights and image processor from a hub id or a local folder."""
        import transformers

        torch_device = choose_device(device)
        torch_dtype = choose_dtype(dtype, torch_device)
        with convert_load_errors(source, revision):
            arguments = hub_arguments(source, revision)
            model_type = transformers.AutoConfig.from_pretrained(source, **arguments).model_type
            options = {"add_pooling_layer": False} if model_type in WITH_OPTIONAL_POOLER else {}
            model, report = transformers.AutoModel.from_pretrained(
                source, output_loading_info=True, **options, **arguments
            )
            refuse_random_weights(model, report["missing_keys"])
            # The Pillow backend, even if torchvision is installed: equal features on every machine.
            processor = transformers.AutoImageProcessor.from_pretrained(source, backend="pil", **arguments)
        name, model_revision = identity_of(source, model, revision)
        return cls(name, model_revision, model, processor, device=torch_device, dtype=torch_dtype)

    def _image_features(self, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        output = self.model(pixel_values=batch[0])
        return output.last_hidden_state[:, 0] if self.class_token else output.pooler_output.flatten(1)

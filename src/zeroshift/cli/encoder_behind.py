"""`--encoder` beside features: the encoder they come from, for methods that tune its prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zeroshift.cli.console import console
from zeroshift.features import FeatureSet
from zeroshift.methods import MethodInfo
from zeroshift.methods.parts.prompt_tuned import PromptTuned

if TYPE_CHECKING:
    from zeroshift.evaluate import EncoderBehind

__all__ = ["check_encoder_options", "check_models", "first_words", "load_behind", "models_for"]

AUTO = "auto"
TEXT, VISION = "text", "vision"


def check_encoder_options(encoder: str | None, *, revision: str | None, device: str, dtype: str) -> None:
    """Refuse options of an encoder where none is named."""
    said = {"--revision": revision is not None, "--device": device != AUTO, "--dtype": dtype != AUTO}
    alone = [option for option, given in said.items() if given]
    if encoder is None and alone:
        raise ValueError(f"{alone[0]} is that of an encoder, and none is named. Fix: add --encoder SOURCE.")


def load_behind(encoder: str | None, *, revision: str | None, device: str, dtype: str) -> EncoderBehind | None:
    """The encoder, loaded; None where none is named."""
    if encoder is None:
        return None
    from zeroshift.evaluate import EncoderBehind

    with console(stderr=True).status(f"loading {encoder}"):
        return EncoderBehind.named(encoder, device=device, dtype=dtype, revision=revision)


def check_models(info: MethodInfo, encoder: str | None, prompt: str | None) -> None:
    """Refuse a method without the encoder it computes with, an encoder without a use, and prompts it would not take."""
    models = [model for model in info.cls.model_parameters if model in info.needs]
    if VISION in models:
        raise ValueError(
            f"{info.name} looks at images through the encoder, and features are no images. "
            f"Fix: in Python, zeroshift.encode.make_method({info.name!r}, encoder, class_names, ...), for images."
        )
    if TEXT in models and encoder is None:
        raise ValueError(
            f"{info.name} tunes the prompts of the encoder the features come from. Fix: --encoder SOURCE, that encoder."
        )
    if TEXT not in models and encoder is not None:
        raise ValueError(f"--encoder: {info.name} takes features alone. Fix: leave it out.")
    own = first_words(info)
    if own is not None and prompt is not None:
        raise ValueError(f"--prompt {prompt}: {info.name} begins with words of its own, {own!r}. Fix: leave it out.")


def models_for(info: MethodInfo, behind: EncoderBehind | None, features: FeatureSet, source: str) -> dict[str, Any]:
    """The models the method is made with, from an encoder that fits the features."""
    if behind is None:
        return {}
    from zeroshift.evaluate import Contestant
    from zeroshift.evaluate.encoders import check_fit

    check_fit(source, features, behind, [first_words(info) or PromptTuned.words])
    return {TEXT: behind.text(features.class_names, Contestant(info.name).words)}


def first_words(info: MethodInfo) -> str | None:
    """The words whose text features are a method's first classifier; None for one that begins with the prototypes."""
    from zeroshift.evaluate import Contestant

    contestant = Contestant(info.name)
    return contestant.words if contestant.begins_with_words else None

"""`pipeline`: one call from images to answers, which encodes images and adapts a method to them."""

from __future__ import annotations

import inspect
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias, cast

import numpy as np

from zeroshift import methods, serialization
from zeroshift._version import __version__
from zeroshift.arrays import Array, to_numpy
from zeroshift.data.images import TRANSPARENCY, ImageError, ImageSource, decode
from zeroshift.data.readers import read_folder
from zeroshift.encode import registry
from zeroshift.encode.encoder import Encoder, ImageEncoder, stack_pixels
from zeroshift.encode.extraction import default_cache
from zeroshift.encode.extraction.store import content_digest
from zeroshift.encode.methods import make_method, model_sources
from zeroshift.encode.preprocessing import Pixels, read_image_bytes, to_rgb_image
from zeroshift.encode.prompts import Prompts
from zeroshift.encode.tuning.text import check_class_names
from zeroshift.encode.views import Views
from zeroshift.files import FileFormatError, TemporaryFolder, checked_path
from zeroshift.method import EpisodicMethod, Method, ViewMethod
from zeroshift.methods.inputs import SECOND
from zeroshift.mixture import OnlineAnchoredMixture, TransductiveAnchoredMixture
from zeroshift.parameters import Flag, Number
from zeroshift.reject import REJECT_ABOVE, RejectRule, checked_distances, class_distances, rejected_label
from zeroshift.suggest import did_you_mean
from zeroshift.tensor_files import read_tensors, write_tensors

if TYPE_CHECKING:
    from PIL.Image import Image

    from zeroshift.encode.preprocessing import AnyImage

    Generate: TypeAlias = Callable[[Image], Sequence[Image]]

__all__ = ["Pipeline", "pipeline"]

AUTO = "auto"

KIND = "pipeline"
SCHEMA = 2
"""Version of the file that `Pipeline.save` writes."""

REMEMBERED = 2000
"""Number of the last images whose distances to the classes are kept, to find the cut of `reject`."""

LEAST_SCORE = 0.5
"""Score of "none of these" where the reject score is lower: it is then still the first answer."""

MOST_NAMED = 5
"""Number of unreadable images of a folder that a warning names."""


def pipeline(
    encoder: str | os.PathLike[str] | Encoder = registry.DEFAULT_ENCODER,
    classes: Sequence[str] = (),
    method: str | Method = AUTO,
    *,
    prompts: Prompts | str | Array | None = None,
    reject: bool | float = False,
    device: str = "auto",
    dtype: str = "auto",
    revision: str | None = None,
    batch_size: int | None = None,
    second: ImageEncoder | None = None,
    views: Views | None = None,
    generate: Generate | None = None,
    upright: bool = True,
    transparency: str = "white",
    repeated_names: bool = False,
    **parameters: Any,
) -> Pipeline:
    """A classifier of images from class names alone, which adapts to the images it is given, without labels.

    Parameters
    ----------
    encoder : a hub id, a folder or a name, as for `encode.load_encoder`, or a loaded encoder.
    classes : names of the classes.
    method : a name that `zeroshift methods` lists, a method made for the encoder, or "auto": the anchored mixture. If
        nothing has been learned yet, "auto" learns from a list as a whole (transductive), and then answers it. After
        that, and for single images and iterators, it adapts as it goes (online), from what it has learned so far.
    prompts : see `encode.make_method`.
    reject : True answers "none of these" for images that are far from all classes. The cut is found without labels,
        from the last 2000 images, and exists from the 21st image on. A number from 0 to 1 is the reject score above
        which images are rejected, in place of 0.5; see `zeroshift.reject`.
    device, dtype, revision : see `encode.load_encoder`, if it is loaded here.
    batch_size : images encoded together, and learned from in one call. By default that is the batch size of the encoder
        for lists, and of the method, for most methods 1, for iterators and several views.
    second, views, generate : for methods that take them: a second encoder (`encode.load_image_encoder`); how views are
        made (64 by default if the method needs them); a function that makes more views of an image, as DiffTPT needs.
    upright : rotate photographs as their EXIF orientation says.
    transparency : "white" or "black", what shows through transparent pixels; "drop" ignores transparency.
    repeated_names : allow a class name twice.
    parameters : the method's own, such as `lag=5`.
    """
    # Before any download.
    _refuse_words_of_transformers(encoder, parameters)
    names = check_class_names(classes, repeated=repeated_names, argument="classes", least=2)
    name = OnlineAnchoredMixture.name if isinstance(method, str) and method == AUTO else method
    if not isinstance(name, Method):
        _check_parameters(name, parameters)
    loading, source = {"device": device, "dtype": dtype, "revision": revision}, None
    if not isinstance(encoder, Encoder):
        loaded = registry.load(encoder, cache=default_cache(), device=device, dtype=dtype, revision=revision)
        source = _lasting_source(encoder)
        encoder = loaded
    elif changed := [name for name, value in loading.items() if value not in ("auto", None)]:
        raise ValueError(
            f"{changed[0]} cannot be given with a loaded encoder. Fix: load_encoder(..., {changed[0]}=...)."
        )
    if isinstance(name, Method):
        if parameters or prompts is not None:
            given = ", ".join([*(["prompts"] if prompts is not None else []), *parameters])
            raise ValueError(f"{given} cannot be given with a method that exists. Fix: method={name.name!r}.")
        made = name
    else:
        made = make_method(name, encoder, names, prompts=prompts, repeated_names=repeated_names, **parameters)
    return Pipeline(
        encoder, names, made, whole_first=isinstance(method, str) and method == AUTO, reject=reject,
        batch_size=batch_size, second=second, views=views, generate=generate, upright=upright,
        transparency=transparency, repeated_names=repeated_names, source=source,
    )  # fmt: skip


OPTIONS = tuple(inspect.signature(pipeline).parameters)[:-1]
"""Names of the arguments of `pipeline` itself."""

TRANSFORMERS = {
    "task": "pipeline('openai/clip-vit-base-patch16', classes=['cat', 'dog'])",
    "model": "pipeline('openai/clip-vit-base-patch16', classes=['cat', 'dog'])",
    "candidate_labels": "pipeline(ENCODER, classes=['cat', 'dog'])",
    "hypothesis_template": "pipeline(..., prompts=zeroshift.encode.Prompts.from_templates(['a photo of a {}.']))",
}
"""What to write instead of the arguments of transformers' pipelines."""


def _refuse_words_of_transformers(encoder: Any, parameters: Mapping[str, Any]) -> None:
    if isinstance(encoder, str) and encoder.endswith("-classification"):
        model = parameters.get("model", registry.DEFAULT_ENCODER)
        raise ValueError(
            f"encoder must be a hub id, a folder or a name, not a task; got {encoder!r}. "
            f"Fix: pipeline({model!r}, classes=['cat', 'dog'])."
        )
    for name in parameters:
        if name in TRANSFORMERS:
            raise TypeError(f"pipeline has no argument {name!r}. Fix: {TRANSFORMERS[name]}.")


def _refuse_call_arguments(names: Iterable[str]) -> None:
    """Say for an argument that a pipeline is not called with where it belongs."""
    for name in names:
        guess, fix = did_you_mean(name, ["top_k", "learn"]), f"leave out {name}"
        if name in TRANSFORMERS or name in OPTIONS:
            guess, fix = "", TRANSFORMERS.get(name, f"pipeline(..., {name}=...)")
        raise TypeError(f"a pipeline is called with images, top_k and learn; got {name!r}. {guess}Fix: {fix}.")


def _check_parameters(method: str, parameters: Iterable[str]) -> None:
    """Refuse a name that is neither an argument of `pipeline` nor a parameter of the method."""
    known = methods.get(method).cls.declared_parameters
    for name in parameters:
        if name not in known:
            guess = did_you_mean(name, [*OPTIONS, *known])
            fix = f"Fix: `zeroshift methods {method}` lists the parameters of the method, help(pipeline) its own."
            raise TypeError(f"pipeline has no argument {name!r}, and {method} no such parameter. {guess}{fix}")


class _Prepared(NamedTuple):
    """An image as the encoders take it."""

    pixels: Pixels
    """For the encoder; with several views, of all of them."""
    picture: Image | None
    """For the second encoder."""


class _Folder:
    """The images of a folder: those that were read so far, and the problems of the others."""

    def __init__(self, images: ImageSource) -> None:
        self.images = images
        self.read: list[Path] = []
        self.skipped: list[str] = []

    def warn(self) -> None:
        """Warn about the images that were skipped, as `zeroshift classify` does."""
        if self.skipped:
            more = [f"and {len(self.skipped) - MOST_NAMED} more"] if len(self.skipped) > MOST_NAMED else []
            named = "\n".join([*self.skipped[:MOST_NAMED], *more])
            text = f"{len(self.skipped)} of {len(self.images)} images were skipped:\n{named}"
            warnings.warn(text, stacklevel=4)


class _Encoded(NamedTuple):
    """Images as a method takes them."""

    images: np.ndarray
    """Features (n, d), or of views (n, V, d), or pixels of either."""
    second: np.ndarray | None
    """Features of the second encoder."""


class Pipeline:
    """What `pipeline` returns: call it with images. It adapts to them, and answers with class names and scores.

    Threads may share a pipeline; batches of images are learned from one at a time.

    Attributes
    ----------
    method : the method with what it has learned so far.
    encoder : the loaded encoder.
    classes : the class names, in the order of the prototypes.
    reject : see `pipeline`; it may be changed at any time.
    """

    def __init__(
        self,
        encoder: Encoder,
        classes: Sequence[str],
        method: Method,
        *,
        whole_first: bool = False,
        reject: bool | float = False,
        batch_size: int | None = None,
        second: ImageEncoder | None = None,
        views: Views | None = None,
        generate: Generate | None = None,
        upright: bool = True,
        transparency: str = "white",
        repeated_names: bool = False,
        source: str | None = None,
    ) -> None:
        self._runner = _ImageRunner(
            method, encoder, second, views, generate, upright=upright, transparency=transparency
        )
        self.classes = tuple(check_class_names(classes, repeated=repeated_names, argument="classes", least=2))
        if len(self.classes) != method.n_classes:
            raise ValueError(
                f"classes has {len(self.classes)} names, but the method has {method.n_classes} prototypes. "
                "Fix: one name for each prototype, in their order."
            )
        self.encoder, self.method = encoder, method
        self.batch_size = None if batch_size is None else int(Number(1, integer=True).check("batch_size", batch_size))
        self._whole_first = whole_first
        self._repeated_names = repeated_names
        self._source = source or encoder.source
        self._distances = np.zeros((0, 2))
        self._lock = threading.RLock()
        self.reject = reject

    @property
    def reject(self) -> bool | float:
        return self._reject

    @reject.setter
    def reject(self, value: bool | float) -> None:
        if not isinstance(value, bool):
            value = float(Number(0, 1).check("reject", value))
        if value is not False and self._runner.takes_pixels:
            raise ValueError(
                f"reject needs features of the images, and {self.method.name} encodes them itself. Fix: reject=False."
            )
        self._reject = value

    @property
    def reject_rule(self) -> RejectRule | None:
        """The rule that `reject` uses, from the last images; None before the first one."""
        with self._lock:
            return RejectRule.fit(self._distances) if len(self._distances) else None

    def __call__(self, images: Any, *, top_k: int | None = None, learn: bool = True, **others: Any) -> Any:
        """Classify images; the answers have the form of transformers' zero-shot-image-classification.

        One image gives `[{"label": ..., "score": ...}, ...]`, the highest score first. Several images, such as a list
        or an array (N, H, W, C), give a list with one answer each. An iterator or a generator gives an iterator, which
        reads images only when the next answer is requested. No images give no answers.

        A folder gives a dictionary, from the path of each image in it and its subfolders to its answer. Images that
        cannot be read are skipped, with a warning.

        An image is a path, the bytes of a file, a Pillow image, or a uint8 array (H, W), (H, W, 3) or (H, W, 4).
        Outside a folder, an image that cannot be read raises an error. Images of the batches before it have then been
        learned from.

        A transductive method learns from the images of each call alone. A single image is answered with what it has
        learned from the last call.

        A rejected image has "none of these" as its first label, with its reject score, at least 0.5. The classes share
        what remains to 1.

        Parameters
        ----------
        top_k : the number of labels in an answer; all by default.
        learn : False answers with what has been learned so far, and learns nothing.
        """
        _refuse_call_arguments(others)
        if top_k is not None:
            top_k = int(Number(1, integer=True).check("top_k", top_k))
        if isinstance(images, (str, Path)) and os.path.isdir(images):
            return self._answer_folder(images, top_k, learn=learn)
        if _is_single(images):
            alone = learn and self.method.protocol != "transductive"
            ((probabilities, score),) = self._scored([images], learn=alone)
            return self._answer(probabilities, score, top_k)
        found = (self._answer(*scored, top_k) for scored in self._scored(_checked_images(images), learn=learn))
        return found if isinstance(images, Iterator) else list(found)

    def _answer_folder(self, path: str | Path, top_k: int | None, *, learn: bool) -> dict[Path, list[dict[str, Any]]]:
        folder = _Folder(read_folder(path, labelled=False, **self._runner.decoding).images)
        answers = [self._answer(*scored, top_k) for scored in self._scored(folder, learn=learn)]
        folder.warn()
        return dict(zip(folder.read, answers, strict=True))

    def probabilities(self, images: Iterable[Any], *, learn: bool = True) -> Iterator[np.ndarray]:
        """Like calling the pipeline with several images, but an iterator of the probabilities (K,) of each image. What
        `reject` is does not matter."""
        return (row for row, _ in self._scored(_checked_images(images), learn=learn))

    def reset(self) -> None:
        """Forget everything learned."""
        with self._lock:
            self.method.reset()
            self._distances = np.zeros((0, 2))

    def _scored(self, images: Iterable[Any] | _Folder, *, learn: bool) -> Iterator[tuple[np.ndarray, float | None]]:
        """The probabilities of each image, and its reject score if it is rejected."""
        for given in self._batches(images, learn=learn):
            with self._lock:
                probabilities = self._learn(given) if learn else self._runner.answer(self.method, given, learn=False)
                scores, rejected = self._reject_scores(given, remember=learn)
            for row, score, reject in zip(probabilities, scores, rejected, strict=True):
                yield row, float(score) if reject else None

    def _batches(self, images: Iterable[Any] | _Folder, *, learn: bool) -> Iterator[_Encoded]:
        lazy, runner = isinstance(images, Iterator), self._runner
        together = self.method.protocol == "transductive" or (self._begins_whole and not lazy)
        own = self.method._adapted_together
        by_method = (lazy and not together) or runner.several or runner.takes_pixels
        size = self.batch_size or (own if by_method else self.encoder.batch_size)
        batches = runner.batches(images, size)
        if not (together and learn):
            yield from batches
        elif parts := list(batches):
            _check_same_count(part.images[0] for part in parts)
            seconds = [part.second for part in parts if part.second is not None]
            rows = np.concatenate([part.images for part in parts])
            yield _Encoded(rows, np.concatenate(seconds) if seconds else None)

    @property
    def _begins_whole(self) -> bool:
        return self._whole_first and self.method.n_seen == 0

    def _learn(self, given: _Encoded) -> np.ndarray:
        if not self._begins_whole or len(given.images) == 1:
            return self._runner.answer(self.method, given, learn=True)
        names = TransductiveAnchoredMixture.declared_parameters
        shared = {name: value for name, value in self.method.get_params().items() if name in names}
        mixture = TransductiveAnchoredMixture(**shared)
        probabilities = self._runner.answer(mixture, given, learn=True)
        own = {name: value for name, value in self.method.get_params().items() if name not in names}
        self.method = OnlineAnchoredMixture.from_set(mixture, **own)
        return probabilities

    def _reject_scores(self, given: _Encoded, *, remember: bool) -> tuple[np.ndarray, np.ndarray]:
        """Reject scores (n,), and whether each image is rejected; its distances are used for the cut of later ones."""
        nothing = np.zeros(len(given.images)), np.zeros(len(given.images), dtype=bool)
        features = self._runner.features(given)
        if features is None:
            return nothing
        distances = class_distances(features, self.method.prototypes)
        known = np.concatenate([self._distances, distances]) if remember else self._distances
        if remember:
            self._distances = known[-REMEMBERED:]
        if self._reject is False or not len(known):
            return nothing
        rule = RejectRule.fit(known)
        above = REJECT_ABOVE if self._reject is True else float(self._reject)
        return rule.scores(distances), rule.rejected(distances, above=above)

    def _answer(self, probabilities: np.ndarray, reject: float | None, top_k: int | None) -> list[dict[str, Any]]:
        scores = probabilities.astype(np.float64)
        order = np.argsort(-scores, kind="stable")
        first: list[dict[str, Any]] = []
        if reject is not None:
            reject = max(reject, LEAST_SCORE)
            first = [{"label": rejected_label(self.classes), "score": reject}]
            scores = scores * (1 - reject)
        found = first + [{"label": self.classes[k], "score": float(scores[k])} for k in order]
        return found[:top_k]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what was learned, the class names and the name of the encoder to one file, completely or not at all.

        The weights of the encoder are not in it, nor are `second`, `views` and `generate`.
        """
        with self._lock, TemporaryFolder() as folder:
            state = Path(folder) / "state.safetensors"
            self.method.save(state)
            state_bytes: np.ndarray = np.frombuffer(state.read_bytes(), np.uint8)
            arrays = {"state": state_bytes, "distances": self._distances}
        header = {
            "kind": KIND, "schema": SCHEMA, "zeroshift": __version__, "classes": list(self.classes),
            "encoder": {**self.encoder.describe(), "source": self._source},
            "key": self.encoder.key(), "reject": self._reject,
            "whole_first": self._whole_first, "batch_size": self.batch_size, "repeated_names": self._repeated_names,
            **self._runner.decoding,
        }  # fmt: skip
        write_tensors(checked_path(path), arrays, header)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        encoder: str | os.PathLike[str] | Encoder | None = None,
        *,
        device: str = "auto",
        second: ImageEncoder | None = None,
        views: Views | None = None,
        generate: Generate | None = None,
    ) -> Self:
        """A saved pipeline that continues where it stopped.

        `encoder` is where the same encoder is now, or the loaded one; None loads it from where it was.
        """
        arrays, header = _read_saved(checked_path(path))
        if not isinstance(encoder, Encoder):
            encoder = _load_saved_encoder(header, encoder, device)
        if encoder.key() != header.get("key"):
            raise ValueError(
                f"{path} was saved with another encoder ({header.get('key')}) than the one given ({encoder.key()}). "
                "Fix: the same model, revision and dtype."
            )
        with TemporaryFolder() as folder:
            state = Path(folder) / "state.safetensors"
            state.write_bytes(arrays["state"].tobytes())
            repeated = header["repeated_names"]
            try:
                method = _load_method(state, encoder, header["classes"], repeated_names=repeated)
            except FileFormatError as error:
                raise FileFormatError(str(error).replace(str(state), f"the state in {path}")) from error
        pipe = cls(
            encoder, header["classes"], method, whole_first=header["whole_first"], reject=header["reject"],
            batch_size=header["batch_size"], second=second, views=views, generate=generate,
            upright=header["upright"], transparency=header["transparency"], repeated_names=repeated,
            source=header["encoder"]["source"],
        )  # fmt: skip
        pipe._distances = arrays["distances"]
        return pipe

    def __repr__(self) -> str:
        names = ", ".join(self.classes[:5]) + (", ..." if len(self.classes) > 5 else "")
        return f"Pipeline({self.encoder.source!r}, {len(self.classes)} classes: {names}; {self.method})"


def _lasting_source(encoder: str | os.PathLike[str]) -> str:
    """Where the encoder is, for a file that is loaded from another working folder."""
    source = os.fspath(encoder)
    return str(Path(source).expanduser().resolve()) if Path(source).expanduser().is_dir() else source


SAVED: Mapping[str, type | tuple[type, ...]] = {
    "classes": list, "encoder": dict, "key": dict, "reject": (bool, int, float), "whole_first": bool,
    "batch_size": (int, type(None)), "repeated_names": bool, "upright": bool, "transparency": str,
}  # fmt: skip
"""The kinds of what the header of a saved pipeline has."""


def _read_saved(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays and the header of a file that `Pipeline.save` wrote."""
    arrays, header = read_tensors(path, kind=KIND, schema=SCHEMA)
    faulty = [name for name, kind in SAVED.items() if name not in header or not isinstance(header[name], kind)]
    faulty += [name for name in ("state", "distances") if name not in arrays]
    if "encoder" not in faulty and not {"source", "revision", "dtype"} <= set(header["encoder"]):
        faulty.append("encoder")
    if "distances" not in faulty and arrays["distances"].size:
        try:
            checked_distances(arrays["distances"])
        except (TypeError, ValueError):
            faulty.append("distances")
    if faulty:
        raise FileFormatError(f"{path} has no usable {', '.join(faulty)}. Fix: save the pipeline again.")
    return arrays, header


def _load_method(state: Path, encoder: Encoder, classes: Sequence[str], *, repeated_names: bool) -> Method:
    """The method in a state file, with the models that it computes with."""
    saved = serialization.read_header(state)
    sources = model_sources(methods.get(str(saved.get("method"))), encoder, classes, repeated_names=repeated_names)
    stored = saved.get("models", {})
    models = {name: make() for name, make in sources.items() if stored.get(name) is not None}
    if encoder.device.type == "cuda":
        return methods.load(state, library="torch", device=str(encoder.device), **models)
    return methods.load(state, library="numpy", **models)


def _load_saved_encoder(header: Mapping[str, Any], given: Any, device: str) -> Encoder:
    described = header["encoder"]
    revision = str(described["revision"])
    # A folder's revision is a hash of its files; that of a hub's model is a commit.
    from_hub = given is None and len(revision) == 40 and not Path(described["source"]).exists()
    return registry.load(
        described["source"] if given is None else given,
        device=device,
        dtype=described["dtype"],
        revision=revision if from_hub else None,
        cache=default_cache(),
    )


def _is_single(images: Any) -> bool:
    if isinstance(images, np.ndarray):
        return images.ndim < 4
    return isinstance(images, (str, Path, bytes, bytearray, memoryview)) or hasattr(images, "convert")


def _checked_images(images: Any) -> Iterable[Any]:
    if isinstance(images, (str, bytes, Path, Mapping)) or not isinstance(images, Iterable):
        raise TypeError(
            f"images must be an image, or several in a list or another iterable; got {type(images).__name__}. "
            "Fix: a path, the bytes of a file, a Pillow image, an array, or [image]."
        )
    if hasattr(images, "read"):
        raise TypeError(f"an image must not be an open file; got {type(images).__name__}. Fix: file.read().")
    return images


class _ImageRunner:
    """Encodes images as the method needs them; refuses options that do not fit the method."""

    def __init__(
        self,
        method: Method,
        encoder: Encoder,
        second: ImageEncoder | None,
        views: Views | None,
        generate: Generate | None,
        *,
        upright: bool,
        transparency: str,
    ) -> None:
        _check_method(method, encoder)
        if second is not None:
            _check_second(method, second, views is not None or generate is not None or "views" in method.needs)
        elif SECOND in method.needs and not getattr(method, "alone", False):
            raise TypeError(
                f"{method.name} needs a second encoder. Fix: second=encode.load_image_encoder('facebook/dinov2-base')."
            )
        several = isinstance(method, ViewMethod)
        for name, value in (("views", views), ("generate", generate)):
            if value is not None and not several:
                raise ValueError(f"{name} cannot be given to {method.name}, which takes one view. Fix: leave it out.")
        if views is not None and not isinstance(views, Views):
            raise TypeError(f"views must be Views; got {type(views).__name__}. Fix: zeroshift.encode.Views(64).")
        if generate is not None and not callable(generate):
            raise TypeError(
                f"generate must be a function from an image to images; got {type(generate).__name__}. "
                "Fix: generate=lambda image: [...]."
            )
        self.encoder, self.second, self.generate = encoder, second, generate
        self.name = method.name
        self.decoding = {
            "upright": bool(Flag().check("upright", upright)),
            "transparency": TRANSPARENCY.check("transparency", transparency),
        }
        self.views = Views() if views is None and "views" in method.needs else views
        models = (getattr(method, name, None) for name in ("vision", *method.model_parameters))
        self.takes_pixels = getattr(method, "takes_images", False) and any(model is not None for model in models)

    @property
    def several(self) -> bool:
        """Whether there are several views of an image."""
        return self.views is not None or self.generate is not None

    def batches(self, images: Iterable[AnyImage] | _Folder, size: int) -> Iterator[_Encoded]:
        """What is encoded of the images, `size` of them at a time, when it is requested."""
        if isinstance(images, _Folder):
            prepared = self._prepare_folder(images)
        else:
            prepared = (self._prepare(*self._open(image)) for image in images)
        while (first := next(prepared, None)) is not None:
            yield self._encode(chain([first], islice(prepared, size - 1)))

    def answer(self, method: Method, given: _Encoded, *, learn: bool) -> np.ndarray:
        """Probabilities (n, K) of encoded images."""
        if given.second is not None:
            call: Callable[..., Array] = method.adapt if learn else method.predict
            return to_numpy(call(given.images, second=given.second))
        if self.several and learn:
            assert isinstance(method, ViewMethod)  # as was checked
            return to_numpy(method.adapt_views(given.images))
        if self.several and isinstance(method, EpisodicMethod):
            return to_numpy(method.predict_views(given.images))
        images = given.images[:, 0] if self.several else given.images
        return to_numpy(method.adapt(images) if learn else method.predict(images))

    def features(self, given: _Encoded) -> np.ndarray | None:
        """(n, d) features of the images themselves; None if the method has the encoder, and is given pixels."""
        if self.takes_pixels:
            return None
        return given.images[:, 0] if self.several else given.images

    def _encode(self, batch: Iterable[_Prepared]) -> _Encoded:
        """Features (B, d), or of views (B, V, d), or pixels of either for a method with an image side of its own."""
        encode = self._single_array if self.takes_pixels else self.encoder.encode_pixels
        if self.several:
            # One image at a time: the views of a whole batch would be gigabytes.
            encoded = [encode(image.pixels) for image in batch]
            _check_same_count(encoded)
            return _Encoded(np.stack(encoded), None)
        images = list(batch)
        first = encode(stack_pixels([image.pixels for image in images]))
        pictures = [image.picture for image in images if image.picture is not None]
        return _Encoded(first, None if self.second is None else self.second.encode_images(pictures))

    def _prepare_folder(self, folder: _Folder) -> Iterator[_Prepared]:
        """The images that can be read; problems are noted. Raises if there are none."""
        images = folder.images
        for i in range(len(images)):
            try:
                content = images.read(i)
                prepared = self._prepare(images.decode_bytes(content, i).image, content_digest(content))
            except ValueError as error:  # ImageError, or too long and thin to be resized
                folder.skipped.append(str(error) if isinstance(error, ImageError) else f"{images.name(i)}: {error}")
                continue
            folder.read.append(cast(Path, images.path(i)))
            yield prepared
        if not folder.read:
            raise ValueError(f"none of the {len(images)} images can be used. The first: {folder.skipped[0]}")

    def _prepare(self, picture: Image, key: bytes) -> _Prepared:
        pixels = self._views(picture, key) if self.several else self.encoder.preprocessing(picture)
        return _Prepared(pixels, None if self.second is None else picture)

    def _views(self, picture: Image, key: bytes) -> Pixels:
        preprocessing = self.encoder.preprocessing
        crops = (self.views or Views(1))(picture, preprocessing, key)
        if self.generate is None:
            return crops
        made = self.generate(picture)
        if isinstance(made, (str, bytes)) or not isinstance(made, Iterable):
            raise TypeError(
                f"generate must return a list of images; got {type(made).__name__}. Fix: [image], or [] for none."
            )
        others = [preprocessing(self._open(one)[0]) for one in made]
        if not others:
            return crops
        # AugMix makes floats from 0 to 255 instead of bytes.
        return tuple(
            np.concatenate([crop, other.astype(crop.dtype)])
            for crop, other in zip(crops, stack_pixels(others), strict=True)
        )

    def _single_array(self, pixels: Pixels) -> np.ndarray:
        if len(pixels) != 1:
            raise ValueError(
                f"{self.name} takes images as one array, and the family {self.encoder.family!r} makes "
                f"{len(pixels)} of each. Fix: an encoder whose images have one size."
            )
        return pixels[0]

    def _open(self, image: AnyImage) -> tuple[Image, bytes]:
        """The image in RGB, and a digest of its content: of a file's bytes, as in `extract`, or of its pixels."""
        if isinstance(image, (str, Path, bytes, bytearray, memoryview)):
            content, name = read_image_bytes(image)
            return decode(content, name, **self.decoding).image, content_digest(content)
        picture = to_rgb_image(image, **self.decoding)
        content = image.tobytes() if isinstance(image, np.ndarray) else picture.tobytes()
        return picture, content_digest(content)


def _check_method(method: Method, encoder: Encoder) -> None:
    if not isinstance(method, Method):
        raise TypeError(
            f"method must be a method of zeroshift.methods; got {type(method).__name__}. "
            "Fix: zeroshift.encode.make_method(name, encoder, class_names)."
        )
    if not isinstance(encoder, Encoder):
        raise TypeError(
            f"encoder must be a loaded encoder; got {type(encoder).__name__}. Fix: zeroshift.encode.load_encoder(...)."
        )
    if method.dimension != encoder.dimension:
        raise ValueError(
            f"method has prototypes of d = {method.dimension}, the encoder gives d = {encoder.dimension}. "
            "Fix: zeroshift.encode.make_method(name, encoder, class_names)."
        )
    for name in method.model_parameters:
        model = getattr(method, name)
        source = None if model is None else model.identity.get("encoder")
        if source is not None and source != encoder.key():
            raise ValueError(
                f"{name} of {method.name} was made from another encoder ({source}) than the one given "
                f"({encoder.key()}). "
                "Fix: zeroshift.encode.make_method(name, encoder, class_names)."
            )


def _check_second(method: Method, second: Any, several_views: bool) -> None:
    if not isinstance(second, ImageEncoder):
        raise TypeError(
            f"second must be an encoder of images; got {second!r:.80}. "
            "Fix: encode.load_image_encoder('facebook/dinov2-base')."
        )
    if SECOND not in method.takes:
        raise ValueError(f"second cannot be given to {method.name}, which takes one encoder. Fix: leave it out.")
    if several_views:
        raise ValueError("second cannot be given together with views of the images. Fix: leave out one of them.")


def _check_same_count(arrays: Iterable[np.ndarray]) -> None:
    counts = sorted({len(array) for array in arrays})
    if len(counts) > 1:
        raise ValueError(
            f"images of one batch need the same number of views; generate made from {counts[0]} to {counts[-1]} in "
            "all. Fix: batch_size=1, or the same number for every image."
        )

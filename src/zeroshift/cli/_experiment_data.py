"""Encoders side by side: each loaded once, whatever number of data sets it is to see."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import typer

from zeroshift.cli._encoder_options import EncodingOptions, tell_images
from zeroshift.cli._inputs import DATA_VARIABLE, is_pack, load_features
from zeroshift.cli._output_paths import check_folder
from zeroshift.cli.compare import chosen_datasets
from zeroshift.cli.console import console, harmless, print_warning
from zeroshift.cli.experiment import FEATURES
from zeroshift.cli.progress import progress_bar
from zeroshift.data import catalogue
from zeroshift.data import packs as bundled
from zeroshift.data.catalogue.data_sets import DataSetInfo
from zeroshift.data.catalogue.files import find_data_set
from zeroshift.data.corruptions import KINDS, SEVERITIES
from zeroshift.data.image_set import ImageSet
from zeroshift.encode.encoder import Encoder
from zeroshift.encode.extraction import Extraction, extract
from zeroshift.encode.prompts import Prompts
from zeroshift.encode.registry import DEFAULT_ENCODER
from zeroshift.experiments import Member, Suite
from zeroshift.suggest import did_you_mean

__all__ = ["DataSets", "Encoding", "chosen_suite", "slugs"]

STORAGE = "float16"


@dataclass(frozen=True)
class Encoding:
    names: tuple[str, ...]
    options: tuple[EncodingOptions, ...]

    @classmethod
    def of(cls, encoders: Sequence[str], **options: Any) -> Encoding:
        names = tuple(dict.fromkeys(encoders or [DEFAULT_ENCODER]))
        return cls(names, tuple(EncodingOptions(encoder=name, **options) for name in names))

    def encoders(self) -> Iterator[tuple[str, Encoder]]:
        """(slug, encoder), all loaded before the first is used: a name misspelt is not found out hours later."""
        loaded = [options.load_encoder() for options in self.options]
        yield from zip(slugs(self.names), loaded, strict=True)

    def extract(self, images: ImageSet, encoder: Encoder, prompts: Sequence[Prompts], *, quiet: bool) -> Extraction:
        options = self.options[0]
        with progress_bar(images.name, len(images), quiet=quiet, unit="images") as advance:

            def on_step(what: str, done: int, total: int) -> None:
                advance(done if what == "images" else 0, f"{images.name}{': class names' if what == 'texts' else ''}")

            extraction = extract(
                images,
                encoder,
                prompts,
                cache=options.kept_in,
                workers=options.workers,
                on_error=options.on_error,
                storage=STORAGE,
                progress=on_step,
            )
        tell_images(extraction)
        return extraction


def slugs(names: Sequence[str]) -> list[str]:
    """A word for file names for each encoder: the last part of its name, or the whole where two end alike.

    >>> slugs(["openai/clip-vit-base-patch16", "composed"]), slugs(["a/clip", "b/clip"])
    (['clip-vit-base-patch16', 'composed'], ['a-clip', 'b-clip'])
    """
    short = [_word(Path(name.rstrip("/")).name) for name in names]
    if len(set(short)) == len(short):
        return short
    whole = [_word(name) for name in names]
    return whole if len(set(whole)) == len(whole) else [f"{word}-{place}" for place, word in enumerate(whole, 1)]


def _word(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.") or "encoder"


# Data sets on the disk as `zeroshift experiment` takes them: found below a folder, encoded, kept as feature files.


MODES = "ensemble,vanilla,clip_template"
DESCRIBED_MODES = "descriptions,descriptions_ensemble,descriptions_clip_template"
CORRUPTED = "imagenet_c"
AUTO = "auto"


@dataclass(frozen=True)
class Place:
    """One set that lies there."""

    info: DataSetInfo
    asked: dict[str, Any]
    """Corruption and severity, of ImageNet-C."""

    def load(self, root: Path) -> ImageSet:
        return catalogue.load(self.info.id, root, **self.asked)


@dataclass(frozen=True)
class DataSets:
    """What the command line asks for; how it is encoded is in `encoding`."""

    root: Path
    places: tuple[Place, ...]
    named: bool
    """Whether the user named them: then one that cannot be read is an error."""
    prompts: str | None
    descriptions: Path | None
    encoding: Encoding

    @classmethod
    def asked(
        cls,
        root: Path | None,
        *,
        data_sets: str | None,
        severities: str | None,
        encoders: list[str],
        prompts: str | None,
        descriptions: Path | None,
        **encoding: Any,
    ) -> DataSets | None:
        """Checked; None where nothing of the kind is asked for."""
        needing = {
            "--data-sets": data_sets, "--severities": severities, "--encoder": encoders or None, "--prompts": prompts,
            "--descriptions": descriptions, **_changed(encoding),
        }  # fmt: skip
        given = [option for option, value in needing.items() if value is not None]
        if root is None and data_sets is not None and os.environ.get(DATA_VARIABLE):
            root = Path(os.environ[DATA_VARIABLE])
        if root is None and given:
            raise ValueError(
                f"{given[0]} is for data sets on the disk, and none are asked for. Fix: add --data ROOT, the folder "
                "they lie below; feature files and packs are encoded already."
            )
        if root is None:
            return None
        if not root.is_dir():
            raise FileNotFoundError(f"--data: no folder at {root}. Fix: name the folder the data sets lie below.")
        if descriptions is not None and not descriptions.exists():
            raise FileNotFoundError(
                f"--descriptions: nothing at {descriptions}. Fix: a JSON file, or a folder of them."
            )
        _check_prompts(prompts, descriptions)

        wanted = None if data_sets is None else _infos(data_sets)
        places = tuple(_places(root, wanted, _severities(severities)))
        if not places:
            raise FileNotFoundError(
                f"none of {'the catalogue' if wanted is None else data_sets}'s data sets lies below {root}. "
                f"Fix: `zeroshift data check {root}` says where each is looked for."
            )
        if severities is not None and not any(place.info.id == CORRUPTED for place in places):
            raise FileNotFoundError(
                f"--severities {severities}: no {CORRUPTED} of that severity is asked for and lies below {root}. "
                f"Fix: leave it out, or see `zeroshift data check {root}`."
            )
        return cls(root, places, wanted is not None, prompts, descriptions, Encoding.of(encoders, **encoding))

    def members(self, out: Path, *, quiet: bool) -> Iterator[Member]:
        """Encode what is not in the cache, save each set and say what it is."""
        folder = out / FEATURES
        total = len(self.places) * len(self.encoding.names)
        said = 0
        for slug, encoder in self.encoding.encoders():
            for place in self.places:
                images = self._images(place)
                said += 1
                if images is None:
                    continue
                path = folder / f"{images.name}-{slug}.safetensors"
                done = self.encoding.extract(images, encoder, self._prompts(images), quiet=quiet)
                check_folder(folder)
                done.features.save(path)
                if not quiet and not console(stderr=True).is_terminal:
                    what = f"{images.name} by {slug}, {done.features.n_samples:,} images, {done.computed:,} encoded now"
                    typer.echo(harmless(f"features {said} of {total}: {what}"), err=True)
                name = images.name if len(self.encoding.names) == 1 else path.stem
                load = partial(load_features, str(path), normalize=False, beside={})
                yield Member.of(name, load(), load)

    def _images(self, place: Place) -> ImageSet | None:
        try:
            return place.load(self.root)
        except (OSError, ValueError) as error:
            if self.named:
                raise
            print_warning(f"left out: {place.info.id}: {error}")
            return None

    def _prompts(self, images: ImageSet) -> list[Prompts]:
        from zeroshift.cli._prompt_options import chosen_prompts

        path = self.descriptions
        if path is not None and path.is_dir():
            path = None if images.descriptions is None else path / images.descriptions
        if self.prompts is not None or path is None:
            return chosen_prompts(self.prompts or MODES, images, descriptions=path)
        try:
            return chosen_prompts(f"{MODES},{DESCRIBED_MODES}", images, descriptions=path)
        except (OSError, ValueError) as error:  # the file is another set's
            print_warning(f"{images.name}: without descriptions: {error}")
            return chosen_prompts(MODES, images)


def _check_prompts(prompts: str | None, descriptions: Path | None) -> None:
    """What can be known of them before there is a data set."""
    if prompts is None:
        return
    from zeroshift.cli._prompt_options import asked_mode

    modes = [mode.strip() for mode in prompts.split(",")]
    try:
        needs = {need for mode in modes for need in asked_mode(mode).needs}
    except ValueError as error:
        raise ValueError(f"--prompts {prompts}: {error}") from None
    if len(set(modes)) < len(modes):
        raise ValueError(f"--prompts has a mode twice; got {prompts}. Fix: keep one of each.")
    if "descriptions" in needs and descriptions is None:
        raise ValueError(f"--prompts {prompts} needs --descriptions. Fix: give the JSON file, or a folder of them.")
    if descriptions is not None and "descriptions" not in needs:
        raise ValueError(f"--descriptions is not used by --prompts {prompts}. Fix: leave one of them out.")


def _changed(encoding: Mapping[str, Any]) -> dict[str, Any]:
    """How images are to be encoded, by option, where it is not as it is anyway."""
    return {
        f"--{name.replace('_', '-')}": value
        for name, value in encoding.items()
        if value not in (None, AUTO) and value is not False
    }


def _infos(listed: str) -> list[DataSetInfo]:
    names = [name.strip() for name in listed.split(",") if name.strip()]
    if not names:
        raise ValueError(f"--data-sets names no data set; got {listed!r}. Fix: such as --data-sets dtd,imagenet_a.")
    return list({info.id: info for info in map(catalogue.get, names)}.values())


def _severities(listed: str | None) -> list[int]:
    if listed is None:
        return list(SEVERITIES)
    words = [word.strip() for word in listed.split(",")]
    if not all(word in map(str, SEVERITIES) for word in words):
        raise ValueError(f"--severities must be of 1 to 5, separated by commas; got {listed!r}. Fix: --severities 5.")
    return sorted({int(word) for word in words})


def _places(root: Path, wanted: list[DataSetInfo] | None, severities: list[int]) -> Iterator[Place]:
    for info in catalogue.list() if wanted is None else wanted:
        every: list[dict[str, Any]] = [{}]
        if info.id == CORRUPTED:
            every = [{"corruption": kind, "severity": severity} for kind in KINDS for severity in severities]
        there = [Place(info, asked) for asked in every if find_data_set(info, root, **asked) is not None]
        if wanted is not None and not there:
            raise FileNotFoundError(
                f"--data-sets: {info.id} is not below {root}. Fix: `zeroshift data check {root}` says where it is "
                "looked for."
            )
        yield from there


# Which sets `zeroshift experiment` runs on: packs, feature files, and data sets on the disk once they are encoded.


def chosen_suite(
    sources: Sequence[str], packs: str | None, on_disk: DataSets | None, *, out: Path, normalize: bool, quiet: bool
) -> Suite:
    """Packs and files first, each set once whatever it is called; with neither and no data sets, the bundled packs."""
    _check_sources(sources, packs)
    members: list[Member] = []
    if sources or packs is not None or on_disk is None:
        datasets = chosen_datasets(sources, packs, prompt=None, normalize=normalize)
        members = [Member.of(dataset.name, dataset.load(), dataset.load) for dataset in datasets]
    for member in on_disk.members(out, quiet=quiet) if on_disk is not None else ():
        twin = next((other for other in members if other.dataset.digest == member.dataset.digest), None)
        if twin is None:
            members.append(member)
        else:
            print_warning(f"left out: {member.name} holds the same as {twin.name}")
    if not members:
        raise ValueError(
            "there is no set to do experiments on: everything was left out. Fix: mend what the warnings above name, or "
            "leave out --data for the bundled packs."
        )
    return Suite(tuple(_told_apart(members)))


def _check_sources(sources: Sequence[str], packs: str | None) -> None:
    """Slips of the command line, before anything is loaded."""
    known = [info.name for info in bundled.list()]
    named = [name.strip() for name in (packs or "").split(",") if name.strip()]
    for name in named:
        if name not in (*known, "all"):
            raise ValueError(
                f"--packs: no pack is called {name!r}. {did_you_mean(name, known)}Fix: all, or some of "
                f"{', '.join(known)}."
            )
    for source in sources:
        if not is_pack(source) and source not in known and not os.path.exists(source):
            raise FileNotFoundError(
                f"no file or folder at {source}. Fix: check the path; bundled packs are named as pack:cifar10."
            )
    for name, count in Counter([*sources, *(f"pack:{name}" for name in named)]).items():
        if count > 1:
            print_warning(f"{name} is named {count} times; it counts once")


def _told_apart(members: Sequence[Member]) -> list[Member]:
    """With longer names where several have the same: the file's with its folder, or its whole path."""
    found = list(members)
    for lengthen in (_with_folder, _whole_path):
        count = Counter(member.name for member in found)
        found = [_renamed(one, lengthen(_source(one))) if count[one.name] > 1 else one for one in found]
    return found


def _renamed(member: Member, name: str) -> Member:
    title = name if member.title == member.name else member.title
    return replace(member, dataset=replace(member.dataset, name=name, title=title))


def _source(member: Member) -> str:
    """The file or pack it is loaded from."""
    load = member.dataset.load
    return str(load.args[0]) if isinstance(load, partial) and load.args else member.name


def _with_folder(source: str) -> str:
    path = Path(source).resolve()
    return source if is_pack(source) else f"{path.parent.name}/{path.name}"


def _whole_path(source: str) -> str:
    return source if is_pack(source) else str(Path(source).resolve())

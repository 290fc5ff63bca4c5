"""Data sets on the disk as `zeroshift experiment` takes them: found below a folder, encoded, kept as feature files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from zeroshift.cli.console import console, harmless, print_warning
from zeroshift.cli.experiment_outputs import FEATURES
from zeroshift.cli.image_sources import DATA_VARIABLE
from zeroshift.cli.sources import load_features
from zeroshift.cli.targets import check_folder
from zeroshift.data import catalogue
from zeroshift.data.catalogue.data_sets import DataSetInfo
from zeroshift.data.catalogue.locating import find
from zeroshift.data.corruptions import KINDS, SEVERITIES
from zeroshift.data.image_set import ImageSet
from zeroshift.experiments import Member

if TYPE_CHECKING:
    from zeroshift.cli.experiment_encoding import Encoding
    from zeroshift.encode.prompts import Prompts

__all__ = ["DataSets"]

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
        from zeroshift.cli.experiment_encoding import Encoding

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
        from zeroshift.cli.prompting import chosen_prompts

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
    from zeroshift.cli.prompting import asked_mode

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
        there = [Place(info, asked) for asked in every if find(info, root, **asked) is not None]
        if wanted is not None and not there:
            raise FileNotFoundError(
                f"--data-sets: {info.id} is not below {root}. Fix: `zeroshift data check {root}` says where it is "
                "looked for."
            )
        yield from there

"""The sets `zeroshift experiment` runs on: packs, feature files, and data sets of the catalogue on the disk, which are
encoded and kept as feature files."""

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

from zeroshift.cli._encoder_options import AUTO, EncodingOptions, run_extraction, warn_about_images
from zeroshift.cli._inputs import DATA_VARIABLE, file_with_folder, is_pack, load_datasets, load_features, split_names
from zeroshift.cli._prompt_options import find_mode, make_prompts, split_modes
from zeroshift.cli.console import console, print_warning
from zeroshift.data import catalogue
from zeroshift.data import packs as bundled_packs
from zeroshift.data.catalogue.data_sets import DataSetInfo
from zeroshift.data.catalogue.files import find_data_set
from zeroshift.data.corruptions import KINDS, SEVERITIES
from zeroshift.data.image_set import ImageSet
from zeroshift.encode.prompts import Prompts
from zeroshift.encode.registry import DEFAULT_ENCODER
from zeroshift.experiments import Member, Suite
from zeroshift.report.formatting import visible
from zeroshift.suggest import did_you_mean

__all__ = ["FEATURES", "CatalogueSource", "encoder_slugs", "load_suite"]

FEATURES = "features"
"""Folder of the feature files."""


def load_suite(
    sources: Sequence[str],
    packs: str | None,
    on_disk: CatalogueSource | None,
    *,
    out: Path,
    normalize: bool,
    quiet: bool,
) -> Suite:
    """Packs and files first, each set once whatever its name; without any source, the bundled packs."""
    _check_sources(sources, packs)
    members: list[Member] = []
    if sources or packs is not None or on_disk is None:
        datasets = load_datasets(sources, packs, prompt=None, normalize=normalize)
        members = [replace(Member.of(one.name, one.load(), one.load), dataset=one) for one in datasets]
    for member in on_disk.load(out, quiet=quiet) if on_disk is not None else ():
        twin = next((other for other in members if other.dataset.digest == member.dataset.digest), None)
        if twin is None:
            members.append(member)
        else:
            print_warning(f"skipped: {member.name} has the same content as {twin.name}")
    if not members:
        raise ValueError(
            "there is no set to run experiments on: all were skipped. Fix: see the warnings above, or leave out --data "
            "for the bundled packs."
        )
    return Suite(tuple(_with_unique_names(members)))


def _check_sources(sources: Sequence[str], packs: str | None) -> None:
    """Check names and paths before anything is loaded."""
    known = [info.name for info in bundled_packs.list()]
    named = split_names(packs)
    for name in named:
        if name not in (*known, "all"):
            raise ValueError(
                f"--packs: no pack is called {name!r}. {did_you_mean(name, known)}Fix: all, or some of "
                f"{', '.join(known)}."
            )
    for source in sources:
        if not is_pack(source) and source not in known and not os.path.exists(source):
            raise FileNotFoundError(
                f"no such file or folder: {source}. Fix: check the path; bundled packs are named as pack:cifar10."
            )
    for name, count in Counter([*sources, *(f"pack:{name}" for name in named)]).items():
        if count > 1:
            print_warning(f"{name} is named {count} times; it counts once")


def _with_unique_names(members: Sequence[Member]) -> list[Member]:
    """With longer names where several have the same: the file's with its folder, or its whole path."""
    found = list(members)
    for longer_name in (file_with_folder, _whole_path):
        count = Counter(member.name for member in found)
        found = [_rename(one, longer_name(_source(one))) if count[one.name] > 1 else one for one in found]
    return found


def _rename(member: Member, name: str) -> Member:
    title = name if member.title == member.name else member.title
    return replace(member, dataset=replace(member.dataset, name=name, title=title))


def _source(member: Member) -> str:
    """The file or pack it is loaded from."""
    load = member.dataset.load
    return str(load.args[0]) if isinstance(load, partial) and load.args else member.name


def _whole_path(source: str) -> str:
    return source if is_pack(source) else os.path.realpath(source)


MODES = "ensemble,vanilla,clip_template"
DESCRIBED_MODES = "descriptions,descriptions_ensemble,descriptions_clip_template"
CORRUPTED = "imagenet_c"


@dataclass(frozen=True)
class FoundDataSet:
    """A data set on the disk."""

    info: DataSetInfo
    arguments: dict[str, Any]
    """Corruption and severity, for ImageNet-C."""

    def load(self, root: Path) -> ImageSet:
        return catalogue.load(self.info.id, root, **self.arguments)


@dataclass(frozen=True)
class CatalogueSource:
    """Data sets in a folder, and the encoders and prompts to encode them with."""

    root: Path
    found: tuple[FoundDataSet, ...]
    named: bool
    """Whether the user named them: then one that cannot be read is an error."""
    prompts: str | None
    descriptions: Path | None
    encodings: tuple[EncodingOptions, ...]
    """One per encoder."""

    @classmethod
    def from_options(
        cls,
        root: Path | None,
        *,
        data_sets: str | None,
        severities: str | None,
        encoders: list[str],
        prompts: str | None,
        descriptions: Path | None,
        **encoding: Any,
    ) -> CatalogueSource | None:
        """Check the options; None if no data sets are requested."""
        dependent = {
            "--data-sets": data_sets, "--severities": severities, "--encoder": encoders or None, "--prompts": prompts,
            "--descriptions": descriptions, **_non_default(encoding),
        }  # fmt: skip
        given = [option for option, value in dependent.items() if value is not None]
        if root is None and data_sets is not None and os.environ.get(DATA_VARIABLE):
            root = Path(os.environ[DATA_VARIABLE])
        if root is None and given:
            raise ValueError(
                f"{given[0]} is for data sets on the disk. Fix: add --data ROOT, the folder that contains them; "
                "feature files and packs are already encoded."
            )
        if root is None:
            return None
        if not root.is_dir():
            raise FileNotFoundError(f"--data: no folder at {root}. Fix: name the folder that contains the data sets.")
        if descriptions is not None and not descriptions.exists():
            raise FileNotFoundError(
                f"--descriptions: no such file or folder: {descriptions}. Fix: a JSON file, or a folder of them."
            )
        _check_prompts(prompts, descriptions)
        infos = None if data_sets is None else _parse_data_sets(data_sets)
        found = tuple(_find_data_sets(root, infos, _parse_severities(severities)))
        if not found:
            raise FileNotFoundError(
                f"none of the data sets of {'the catalogue' if infos is None else data_sets} is in {root}. "
                f"Fix: `zeroshift data check {root}` shows where each is expected."
            )
        if severities is not None and not any(one.info.id == CORRUPTED for one in found):
            raise FileNotFoundError(
                f"--severities {severities}: no {CORRUPTED} of that severity is chosen and in {root}. "
                f"Fix: leave it out, or see `zeroshift data check {root}`."
            )
        names = dict.fromkeys(encoders or [DEFAULT_ENCODER])
        encodings = tuple(EncodingOptions(encoder=name, **encoding) for name in names)
        return cls(root, found, infos is not None, prompts, descriptions, encodings)

    def load(self, out: Path, *, quiet: bool) -> Iterator[Member]:
        """Encode what is not in the cache, and save each set as a feature file."""
        folder = out / FEATURES
        total, count = len(self.found) * len(self.encodings), 0
        # All encoders are loaded first: a misspelt name is found now and not hours later.
        encoders = [options.load_encoder() for options in self.encodings]
        slugs = encoder_slugs([str(options.encoder) for options in self.encodings])
        for slug, encoder, options in zip(slugs, encoders, self.encodings, strict=True):
            for data_set in self.found:
                images = self._load_images(data_set)
                count += 1
                if images is None:
                    continue
                path = folder / f"{images.name}-{slug}.safetensors"
                prompts = self._make_prompts(images)
                extraction = run_extraction(images, prompts, options, quiet=quiet, encoder=encoder, label=images.name)
                warn_about_images(extraction)
                folder.mkdir(parents=True, exist_ok=True)
                extraction.features.save(path)
                if not quiet and not console(stderr=True).is_terminal:
                    sizes = f"{extraction.features.n_samples:,} images, {extraction.computed:,} encoded now"
                    line = f"features {count} of {total}: {images.name} by {slug}, {sizes}"
                    typer.echo(visible(line), err=True)
                name = images.name if len(encoders) == 1 else path.stem
                load = partial(load_features, str(path), normalize=False)
                yield Member.of(name, load(), load)

    def _load_images(self, data_set: FoundDataSet) -> ImageSet | None:
        try:
            return data_set.load(self.root)
        except (OSError, ValueError) as error:
            if self.named:
                raise
            print_warning(f"skipped: {data_set.info.id}: {error}")
            return None

    def _make_prompts(self, images: ImageSet) -> list[Prompts]:
        path = self.descriptions
        if path is not None and path.is_dir():
            path = None if images.descriptions is None else path / images.descriptions
        if self.prompts is not None or path is None:
            return make_prompts(self.prompts or MODES, images, descriptions=path)
        try:
            return make_prompts(f"{MODES},{DESCRIBED_MODES}", images, descriptions=path)
        except (OSError, ValueError) as error:  # the file belongs to another set
            print_warning(f"{images.name}: without descriptions: {error}")
            return make_prompts(MODES, images)


def encoder_slugs(names: Sequence[str]) -> list[str]:
    """A part of a file name for each encoder: the last part of its name, or the whole name if two end alike.

    >>> encoder_slugs(["openai/clip-vit-base-patch16", "composed"]), encoder_slugs(["a/clip", "b/clip"])
    (['clip-vit-base-patch16', 'composed'], ['a-clip', 'b-clip'])
    """
    short = [_slug(Path(name.rstrip("/")).name) for name in names]
    if len(set(short)) == len(short):
        return short
    whole = [_slug(name) for name in names]
    return whole if len(set(whole)) == len(whole) else [f"{slug}-{i}" for i, slug in enumerate(whole, 1)]


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.") or "encoder"


def _check_prompts(prompts: str | None, descriptions: Path | None) -> None:
    """Check what does not depend on a data set."""
    if prompts is None:
        return
    try:
        needs = {need for mode in split_modes(prompts) for need in find_mode(mode).needs}
    except ValueError as error:
        message = str(error)
        raise ValueError(message if "--prompts" in message else f"--prompts {prompts}: {message}") from None
    if "descriptions" in needs and descriptions is None:
        raise ValueError(f"--prompts {prompts} needs --descriptions. Fix: add the JSON file, or a folder of them.")
    if descriptions is not None and "descriptions" not in needs:
        raise ValueError(f"--descriptions is not used by --prompts {prompts}. Fix: leave one of them out.")


def _non_default(encoding: Mapping[str, Any]) -> dict[str, Any]:
    """The encoding options that differ from their defaults, by the name of the option."""
    return {
        f"--{name.replace('_', '-')}": value
        for name, value in encoding.items()
        if value not in (None, AUTO) and value is not False
    }


def _parse_data_sets(listed: str) -> list[DataSetInfo]:
    names = split_names(listed)
    if not names:
        raise ValueError(f"--data-sets names no data set; got {listed!r}. Fix: such as --data-sets dtd,imagenet_a.")
    return list({info.id: info for info in map(catalogue.get, names)}.values())


def _parse_severities(listed: str | None) -> list[int]:
    if listed is None:
        return list(SEVERITIES)
    items = split_names(listed)
    if not items or not all(item in map(str, SEVERITIES) for item in items):
        raise ValueError(f"--severities must be from 1 to 5, separated by commas; got {listed!r}. Fix: --severities 5.")
    return sorted({int(item) for item in items})


def _find_data_sets(
    root: Path, infos: Sequence[DataSetInfo] | None, severities: Sequence[int]
) -> Iterator[FoundDataSet]:
    for info in catalogue.list() if infos is None else infos:
        variants: list[dict[str, Any]] = [{}]
        if info.id == CORRUPTED:
            variants = [{"corruption": kind, "severity": severity} for kind in KINDS for severity in severities]
        found = [
            FoundDataSet(info, variant) for variant in variants if find_data_set(info, root, **variant) is not None
        ]
        if infos is not None and not found:
            raise FileNotFoundError(
                f"--data-sets: {info.id} is not in {root}. Fix: `zeroshift data check {root}` shows where it is "
                "expected."
            )
        yield from found

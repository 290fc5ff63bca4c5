"""Where a command's data comes from: features from a file or a bundled pack (`pack:NAME`), the labelled sets that
`compare` and `experiment` run on, and images from a folder, a table, an array or the catalogue."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from zeroshift.arrays import UnitLengthError
from zeroshift.cli.console import print_warning
from zeroshift.data import catalogue
from zeroshift.data import packs as bundled_packs
from zeroshift.data.image_set import ImageSet
from zeroshift.data.readers import open_images
from zeroshift.data.readers.table import TABLE_SUFFIXES
from zeroshift.encode.prompts import parse_class_names
from zeroshift.evaluate import DatasetRef
from zeroshift.features import FeatureSet
from zeroshift.features.checks import normalize_fields
from zeroshift.features.files import FEATURE_SUFFIXES, FileArgumentError, names_in, read_arrays
from zeroshift.features.torch_files import TORCH_SUFFIXES
from zeroshift.files import FileFormatError
from zeroshift.parsers import check_regular_file
from zeroshift.report.formatting import counted
from zeroshift.suggest import did_you_mean

__all__ = [
    "DATA_VARIABLE",
    "FeaturesKey",
    "LabelsKey",
    "PrototypesKey",
    "absolute_paths",
    "check_exists",
    "file_with_folder",
    "has_only_features",
    "is_feature_file",
    "is_pack",
    "load_datasets",
    "load_features",
    "load_images",
    "load_rows",
    "pack_names",
    "split_names",
    "stores_logit_scale",
]


NAMES_PANEL = "Names of arrays in a file of another program"


def _key(what: str) -> Any:
    return typer.Option(metavar="NAME", help=f"Of the {what}.", rich_help_panel=NAMES_PANEL)


FeaturesKey = Annotated[str | None, _key("image features in FEATURES")]
PrototypesKey = Annotated[str | None, _key("text features of the classes, in FEATURES or in --prototypes")]
LabelsKey = Annotated[str | None, _key("labels, in FEATURES or in --labels")]


def split_names(listed: str | None) -> list[str]:
    """The names in a list with commas."""
    return [name.strip() for name in (listed or "").split(",") if name.strip()]


# Features of one file or pack.

PACK_PREFIX = "pack:"


def is_pack(source: str) -> bool:
    return source.startswith(PACK_PREFIX)


def load_features(source: str, *, normalize: bool, **parts: Any) -> FeatureSet:
    """The set `source` names; `parts` are those missing from the file (prototypes, labels, class_names, logit_scale),
    None where not given."""
    given = {name: value for name, value in parts.items() if value is not None}
    if not is_pack(source):
        check_exists(source)
        try:
            # The caller prints the hints; Python warnings would repeat them.
            return FeatureSet.load(Path(source), normalize=normalize, check=False, **given)
        except FileArgumentError as error:
            raise ValueError(error.message_with(_option)) from error
        except FileFormatError as error:
            if isinstance(error.__cause__, UnitLengthError):
                raise FileFormatError(f"{error} Here: --normalize does it.") from error
            raise
    if given:
        options = ", ".join(map(_option, given))
        raise ValueError(f"{source} is a bundled pack with its own; leave out {options}.")
    return bundled_packs.load(source.removeprefix(PACK_PREFIX))


def check_exists(source: str) -> None:
    """Refuse a path where there is nothing."""
    try:
        check_regular_file(source)
    except FileNotFoundError:
        pass
    except (OSError, ValueError):
        return  # a folder, for example: `FeatureSet.load` says what is wrong
    else:
        return
    names = [info.name for info in bundled_packs.list()]
    if source in names:
        raise FileNotFoundError(f"no file at {source}; it is the name of a bundled pack. Fix: {PACK_PREFIX}{source}.")
    folder, name = os.path.split(source.rstrip("/"))
    there = os.listdir(folder or ".") if os.path.isdir(folder or ".") else []
    raise FileNotFoundError(
        f"no file at {source}. {did_you_mean(name, there)}Fix: check the path; bundled packs are named as "
        f"{PACK_PREFIX}{names[0]}."
    )


def stores_logit_scale(source: str, *, named_keys: bool = False) -> bool:
    """Whether the set, which has been loaded, contains its encoder's logit scale: an array does not, an archive may.
    With `named_keys`, the file is another program's."""
    if is_pack(source) or (Path(source).suffix == ".safetensors" and not named_keys):
        return True
    return "logit_scale" in names_in(source)


def has_only_features(source: str) -> bool:
    """Whether the file is an array of features, without prototypes and labels."""
    path = Path(source)
    return not is_pack(source) and path.suffix in (".npy", *TORCH_SUFFIXES) and not names_in(path)


def is_feature_file(source: str) -> bool:
    """Whether the argument of an option is the name of a file or pack, by its suffix or prefix."""
    return is_pack(source) or Path(source).suffix in FEATURE_SUFFIXES


def load_rows(source: str, *, normalize: bool) -> FeatureSet:
    """Features whose classes do not matter; where the file has no prototypes, they are a placeholder."""
    path = Path(source)
    arrays: dict[str, Any] = {}
    if not is_pack(source) and path.suffix in FEATURE_SUFFIXES and path.suffix != ".safetensors":
        check_exists(source)
        content = read_arrays(path)
        if isinstance(content, np.ndarray):
            arrays["features"] = content
        elif "features" in content[1] and not any(name.startswith("prototypes") for name in content[0]):
            arrays = content[1]
    if not arrays:
        return load_features(source, normalize=normalize)
    rows, labels = arrays["features"], arrays.get("labels")
    numbers = None if labels is None else np.asarray(labels)
    classes = 1 if numbers is None or numbers.dtype.kind not in "iu" or not numbers.size else int(numbers.max()) + 1
    placeholder = np.eye(1, max([1, *rows.shape[1:]])).repeat(max(1, classes), axis=0)
    fields = {"features": rows, "labels": labels, "prototypes": placeholder}
    try:
        return FeatureSet(**(normalize_fields(fields) if normalize else fields))
    except UnitLengthError as error:
        raise FileFormatError(f"{path}: {error} Here: --normalize does it.") from error
    except (TypeError, ValueError) as error:
        raise FileFormatError(f"{path}: {error}") from error


def _option(name: str, value: str = "") -> str:
    """The option of an argument of `FeatureSet.load`."""
    return f"--{'classes' if name == 'class_names' else name.replace('_', '-')} {value}".rstrip()


# Labelled sets to compare methods on: files, folders of files, and packs.

COMPARABLE_SUFFIXES = (".npz", ".safetensors")
"""Of a folder, these files are compared on."""


def absolute_paths(sources: Sequence[str], on: str | None) -> list[str]:
    """The sources as processes of a cluster can open them, which start in other folders."""
    if on is None or on.startswith("local"):
        return list(sources)
    return [os.path.abspath(source) if os.path.exists(source) else source for source in sources]


def load_datasets(
    sources: Sequence[str],
    packs: str | None,
    *,
    prompt: str | None,
    normalize: bool,
    names_matter: bool = False,
    **keys: str | None,
) -> list[DatasetRef]:
    """The labelled sets, each once whatever its name; without sources and packs, the bundled packs. Files of a folder
    that cannot be compared on are skipped with a warning.

    `names_matter` if prompts are made of the class names: the same features with other names are then another set.
    `keys` are names of arrays in files of another program.
    """
    _check_pack_prefix(sources, packs)
    use_packs = packs is not None or not sources
    named = [*(f"{PACK_PREFIX}{name}" for name in (pack_names(packs) if use_packs else ())), *sources]
    datasets: list[DatasetRef] = []
    for source, name, required in _name_sources(named):
        load = partial(load_features, source, normalize=normalize, **({} if is_pack(source) else keys))
        features = _load_labelled(source, load, required=required)
        if features is None:
            continue
        dataset = DatasetRef.of(name, features, prompt, load)
        same = (other for other in datasets if other.digest == dataset.digest)
        twin = next((other for other in same if not names_matter or other.class_names == dataset.class_names), None)
        if twin is not None:
            print_warning(f"skipped: {source} has the same content as {twin.name}")
            continue
        if is_pack(source):  # its labels are known to be right
            dataset = replace(dataset, hints=())
        if not stores_logit_scale(source, named_keys=any(keys.values())):
            assumed = f"the logit scale is assumed to be {features.logit_scale:g}, because the file stores none"
            dataset = replace(dataset, hints=(*dataset.hints, f"{assumed}. Fix: add an array called logit_scale"))
        for hint in dataset.hints:
            print_warning(f"{source}: {hint}")
        datasets.append(dataset)
    if not datasets:
        raise ValueError("there is no set to compare on. Fix: name feature files with labels.")
    return datasets


def _check_pack_prefix(sources: Sequence[str], packs: str | None) -> None:
    """Refuse the bare name of a pack, which is read as the name of a file."""
    known = {info.name for info in bundled_packs.list()}
    for source in sources:
        if source in known and not Path(source).exists():
            listed = "" if packs is None else f", or --packs {packs},{source}"
            raise ValueError(f"no file at {source}; it is the name of a bundled pack. Fix: pack:{source}{listed}.")


def pack_names(listed: str | None) -> list[str]:
    """The packs in a list with commas, each once; `all`, and None, are all packs without views."""
    infos = bundled_packs.list()
    plain = [info.name for info in infos if info.n_views == 0]
    names = plain if listed is None else split_names(listed)
    if not names:
        raise ValueError(f"--packs names no pack. Fix: all, or some of {', '.join(info.name for info in infos)}.")
    return list(dict.fromkeys(one for name in names for one in (plain if name == "all" else [name])))


def _name_sources(sources: Sequence[str]) -> Iterator[tuple[str, str, bool]]:
    """(source, a unique name, whether the source itself was named), with folders replaced by their files."""
    found: list[tuple[str, bool]] = []
    for source in sources:
        if is_pack(source) or not Path(source).is_dir():
            found.append((source, True))
        else:
            found += [(file, False) for file in _feature_files(Path(source))]
    found = list({source: (source, required) for source, required in found}.values())
    count = Counter(_short_name(source) for source, _ in found)
    for source, required in found:
        short = _short_name(source)
        yield source, short if count[short] == 1 else file_with_folder(source), required


def _feature_files(folder: Path) -> list[str]:
    files = sorted(str(path) for path in folder.iterdir() if path.suffix in COMPARABLE_SUFFIXES and path.is_file())
    if not files:
        raise ValueError(
            f"no feature files ({', '.join(COMPARABLE_SUFFIXES)}) found in {folder}. Fix: name another folder, or the "
            "files."
        )
    return files


def _short_name(source: str) -> str:
    return source.removeprefix(PACK_PREFIX) if is_pack(source) else Path(source).stem


def file_with_folder(source: str) -> str:
    """The file's name with its folder, for files of the same name."""
    path = Path(os.path.realpath(source))
    return source if is_pack(source) else f"{path.parent.name}/{path.name}"


def _load_labelled(source: str, load: Callable[[], FeatureSet], *, required: bool) -> FeatureSet | None:
    """The set; for a file of a folder that cannot be compared on, a warning and None."""
    if has_only_features(source):
        raise ValueError(
            f"{source} contains only features; to compare, labels and prototypes are needed too. "
            "Fix: FeatureSet.load(FEATURES, prototypes=..., labels=..., logit_scale=...).save('mine.safetensors')."
        )
    if required:
        return load()
    try:
        features = load()
        reason = _why_not_comparable(features)
    except (ValueError, TypeError) as error:
        reason = str(error)
    if reason is None:
        return features
    without_source = reason.removeprefix(f"{source}: ").removeprefix(f"{source} ")
    print_warning(f"skipped: {source}: {without_source}")
    return None


def _why_not_comparable(features: FeatureSet) -> str | None:
    if features.labels is None:
        return "it has no labels"
    if features.views is not None:
        return "it contains views (name the file itself to compare on it, with and without views)"
    return None


# Images of a folder, a table, an array, or a data set of the catalogue.

DATA_VARIABLE = "ZEROSHIFT_DATA"


def load_images(
    source: str,
    *,
    classes: str | None = None,
    root: Path | None = None,
    split: str | None = None,
    corruption: str | None = None,
    severity: int = 5,
    labelled: bool | None = None,
    labels: Path | None = None,
    upright: bool = True,
) -> ImageSet:
    """The images `source` names; an existing path takes precedence over a data set of the same name."""
    names = None if classes is None else parse_class_names(classes, "--classes")
    if os.path.exists(source):
        if split is not None:
            raise ValueError(f"--split is for data sets of the catalogue; {source} is a path. Fix: leave it out.")
        if root is not None and Path(source).suffix.lower() not in TABLE_SUFFIXES:
            raise ValueError(f"--data is for data sets and tables; {source} is neither. Fix: leave it out.")
        images = open_images(source, names, labelled=labelled, root=root, labels=labels, upright=upright)
        if images.ignored_files:
            # Otherwise a folder of .heic photographs and a few .jpg would silently be a folder of a few images.
            skipped = counted(images.ignored_files, "file")
            print_warning(f"{source}: skipped {skipped}: no image by the suffix, or a link to nothing")
        return images
    try:
        info = catalogue.get(source)
    except ValueError:
        raise ValueError(_describe_missing(source)) from None
    folder = root or (Path(os.environ[DATA_VARIABLE]) if os.environ.get(DATA_VARIABLE) else None)
    if folder is None:
        raise ValueError(
            f"{info.id} is a data set; the folder that contains it is needed. Fix: --data ROOT, or "
            f"{DATA_VARIABLE}=ROOT; `zeroshift data check ROOT` shows what is there."
        )
    for option, given in (("--classes", names), ("--labelled or --unlabelled", labelled), ("--labels", labels)):
        if given is not None:
            raise ValueError(f"{info.id} has its own classes and labels; got {option}. Fix: leave it out.")
    stored = corruption if info.id == "imagenet_c" else None
    return catalogue.load(info.id, folder, split or "test", corruption=stored, severity=severity)


def _describe_missing(source: str) -> str:
    """Why there are no images at `source`, and the fix."""
    if "://" in source:
        return f"images must be a path, not a URL; got {source}. Fix: download them, and pass the folder or file."
    if set(source) & set("*?["):
        folder = os.path.dirname(source) or "."
        return f"no file is called {source}; patterns are not expanded. Fix: pass the folder, {folder}."
    guess = did_you_mean(source, [info.id for info in catalogue.list()])
    return (
        f"{source} is neither a file or folder nor a data set of the catalogue. {guess}"
        "Fix: check the path, or see `zeroshift data list`."
    )

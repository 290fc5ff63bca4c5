"""Which feature sets `zeroshift compare` runs on: files, folders of files, and bundled packs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from zeroshift.cli.console import print_warning
from zeroshift.cli.sources import PACK_PREFIX, holds_features_alone, is_pack, load_features
from zeroshift.data import packs as bundled
from zeroshift.evaluate import Entry
from zeroshift.features import FeatureSet

__all__ = ["chosen_entries"]

SUFFIXES = (".npz", ".safetensors")


def chosen_entries(
    sources: Sequence[str], packs: str | None, *, prompt: str | None, normalize: bool, names_matter: bool = False
) -> list[Entry]:
    """The sets, each once whatever it is called; of a folder those that can be compared on, the others named.

    `names_matter` where prompts are made of the names of the classes: the same features are then another set under
    other names.
    """
    _check_no_pack(sources, packs)
    named = [*_pack_sources(packs, default=not sources), *sources]
    entries: list[Entry] = []
    for source, name, must in _places(named):
        load = partial(load_features, source, normalize=normalize, beside={})
        features = _loaded(source, load, must=must)
        if features is None:
            continue
        entry = Entry.of(name, features, prompt, load)
        twins = (other for other in entries if other.digest == entry.digest)
        twin = next((other for other in twins if not names_matter or other.class_names == entry.class_names), None)
        if twin is not None:
            print_warning(f"left out: {source} holds the same as {twin.name}")
            continue
        for hint in () if is_pack(source) else entry.hints:
            print_warning(f"{source}: {hint}")
        entries.append(entry)
    if not entries:
        raise ValueError("nothing to compare on: no set is left. Fix: name feature files that hold labels.")
    return entries


def _check_no_pack(sources: Sequence[str], packs: str | None) -> None:
    """A bare name beside `--packs a` reads as a second pack, and is taken for a file."""
    known = {info.name for info in bundled.list()}
    for source in sources:
        if source in known and not Path(source).exists():
            listed = "" if packs is None else f", or --packs {packs},{source}"
            raise ValueError(f"no file at {source}; a bundled pack is called so. Fix: pack:{source}{listed}.")


def _pack_sources(packs: str | None, *, default: bool) -> list[str]:
    if packs is None and not default:
        return []
    infos = bundled.list()
    plain = [info.name for info in infos if info.n_views == 0]
    names = plain if packs is None else [name.strip() for name in packs.split(",") if name.strip()]
    if not names:
        raise ValueError(f"--packs names no pack. Fix: all, or some of {', '.join(info.name for info in infos)}.")
    wanted = dict.fromkeys(one for name in names for one in (plain if name == "all" else [name]))
    return [f"{PACK_PREFIX}{name}" for name in wanted]


def _places(sources: Sequence[str]) -> Iterator[tuple[str, str, bool]]:
    """(source, a name no other has, whether it was named itself) of every set."""
    found: list[tuple[str, bool]] = []
    for source in sources:
        if is_pack(source) or not Path(source).is_dir():
            found.append((source, True))
        else:
            found += [(file, False) for file in _files(Path(source))]
    found = list({source: (source, must) for source, must in found}.values())
    count = Counter(_short(source) for source, _ in found)
    for source, must in found:
        yield source, _short(source) if count[_short(source)] == 1 else _long(source), must


def _files(folder: Path) -> list[str]:
    files = sorted(str(path) for path in folder.iterdir() if path.suffix in SUFFIXES and path.is_file())
    if not files:
        raise ValueError(
            f"{folder} holds no feature files ({', '.join(SUFFIXES)}). Fix: name another folder, or the files."
        )
    return files


def _short(source: str) -> str:
    return source.removeprefix(PACK_PREFIX) if is_pack(source) else Path(source).stem


def _long(source: str) -> str:
    """With the folder, where the file's own name is not enough."""
    if is_pack(source):
        return source
    path = Path(source).resolve()
    return f"{path.parent.name}/{path.name}"


def _loaded(source: str, load: Callable[[], FeatureSet], *, must: bool) -> FeatureSet | None:
    """The set; None, and a word why, for one that only lies in a folder and cannot be compared on."""
    if holds_features_alone(source):
        raise ValueError(
            f"{source} holds features alone; to compare, labels and prototypes are needed too. "
            "Fix: FeatureSet(features, prototypes=..., labels=...).save('features.safetensors')."
        )
    if must:
        return load()
    try:
        features = load()
        reason = _unfit(features)
    except (ValueError, TypeError) as error:
        reason = str(error)
    if reason is None:
        return features
    said = reason.removeprefix(f"{source}: ").removeprefix(f"{source} ")
    print_warning(f"left out: {source}: {said}")
    return None


def _unfit(features: FeatureSet) -> str | None:
    if features.labels is None:
        return "it has no labels to count by"
    if features.views is not None:
        return "it holds views (name the file itself to compare on it, its plain images and its views)"
    return None

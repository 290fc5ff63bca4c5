"""State files of earlier versions: their arrays under the names and in the layout that the methods have now."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

__all__ = ["as_written_now"]

Tensors = dict[str, np.ndarray]


def as_written_now(method: str, tensors: Mapping[str, np.ndarray]) -> Tensors:
    """The tensors of a state file, whatever version wrote it. Those it cannot convert are left for later checks."""
    converted = dict(tensors)
    with np.errstate(all="ignore"):  # numbers that no method writes are refused later
        for convert in CONVERTERS.get(method, ()):
            convert(converted)
    return converted


def _wide(*names: str) -> Callable[[Tensors], None]:
    """These arrays were in the precision of the prototypes; now they are in float64."""

    def convert(tensors: Tensors) -> None:
        for name in names:
            if (array := tensors.get(f"state/{name}")) is not None and array.dtype == np.float32:
                tensors[f"state/{name}"] = array.astype(np.float64)

    return convert


def _memory_by_class(prefix: str = "") -> Callable[[Tensors], None]:
    """`features` (K, M, d) with empty slots became `entries`, one row for each sample, and the `rows` of the slots."""

    def convert(tensors: Tensors) -> None:
        name = f"state/{prefix}"
        if f"{name}features" not in tensors or f"{name}arrivals" not in tensors:
            return
        features, arrivals = tensors.pop(f"{name}features"), tensors[f"{name}arrivals"]
        held = arrivals > 0
        entries = np.zeros((1 + held.size, features.shape[-1]))
        entries[1 : 1 + held.sum()] = features[held]
        rows = np.zeros(held.shape, dtype=np.int64)
        rows[held] = 1 + np.arange(held.sum())
        tensors |= {f"{name}entries": entries, f"{name}rows": rows}

    return convert


def _prototypes_in_bank(tensors: Tensors) -> None:
    """`entries` (1 + M, K, d) began with the prototypes, and came with their inner products."""
    if "state/grams" in tensors:
        del tensors["state/grams"]
        tensors["state/features"] = tensors.pop("state/entries")[1:].transpose(1, 0, 2)


def _waiting_samples(tensors: Tensors) -> None:
    """Of `dota`: the last samples waited outside the sums, and the mean covariance was kept."""
    tensors.pop("state/shared", None)
    samples, labels = (tensors.pop(f"state/{name}", np.zeros((0, 0))) for name in ("waiting", "waiting_labels"))
    means, counts, sums = (tensors.get(f"state/{name}") for name in ("means", "counts", "sums"))
    if means is None or counts is None or sums is None or not len(samples):
        return
    n, (classes, d) = len(samples), means.shape
    shapes = [one.shape for one in (samples, labels, counts, sums)]
    # Of samples without numbers, a small file may contain any number.
    if shapes != [(n, d), (n, classes), (classes,), (classes, d, d)] or not means.size:
        raise ValueError("the samples that waited do not fit the means of the classes")
    for x, y in zip(samples, labels, strict=True):
        centred = (x - means) * (y**0.5)[:, None]
        sums = sums + centred[:, :, None] * centred[:, None, :]
        means = (counts[:, None] * means + y[:, None] * x) / (counts + y)[:, None]
        counts = counts + y
    tensors |= {"state/means": means, "state/counts": counts, "state/sums": sums}


def _search_by_name(tensors: Tensors) -> None:
    """Of `b2tpt`: the arrays of the search had no prefix. Its eigenvectors were kept, too."""
    for name in ("mean", "covariance", "path_sigma", "path_c"):
        if f"state/{name}" in tensors:
            tensors[f"state/search_{name}"] = tensors.pop(f"state/{name}")


def _parameters_together(tensors: Tensors) -> None:
    """What is trained was one array per layer, that of the second layer transposed."""
    first, second = (tensors.pop(f"state/parameters_{i}", None) for i in (0, 1))
    if first is not None and second is not None and first.T.shape == second.shape:
        tensors["state/parameters"] = np.stack([first, second.T])
    elif first is not None:
        tensors["state/parameters"] = first


def _keys_by_support(tensors: Tensors) -> None:
    """Keys were sorted by the size of their class, their place in it, and their class; now as the support samples."""
    keys, labels = tensors.pop("state/parameters_0", None), tensors.get("parameter/support/1")
    if keys is None or labels is None or keys.ndim != 2 or labels.shape != keys.shape[:1]:
        return
    by_class = np.argsort(labels, kind="stable")
    _, inverse, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    place = np.empty_like(by_class)
    place[by_class] = np.arange(len(labels)) - np.searchsorted(labels[by_class], labels[by_class])
    order = np.lexsort((labels, place, sizes[inverse]))
    tensors["state/parameters"] = np.empty_like(keys)
    tensors["state/parameters"][order] = keys


CONVERTERS: dict[str, tuple[Callable[[Tensors], None], ...]] = {
    "tda": (_wide("positive_entries", "negative_entries", "negative_masks"),),
    "b2tpt": (_search_by_name,),
    "boostadapter": (_wide("positive_entries", "negative_entries", "negative_masks"),),
    "clip_adapter": (_parameters_together,),
    "cosmic": (_memory_by_class("memories_first_"), _memory_by_class("memories_second_")),
    "dmn": (_prototypes_in_bank, _memory_by_class()),
    "dota": (_wide("sums"), _waiting_samples),
    "dpe": (_memory_by_class(),),
    "histpt": (_wide("local", "hard"),),
    "oga": (_memory_by_class(),),
    "t3a": (_memory_by_class(),),
    "taskres": (_parameters_together,),
    "tip_adapter_f": (_keys_by_support,),
}

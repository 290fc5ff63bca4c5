"""What T3A's released code does when it is told to keep all supports."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from zeroshift.arrays import Array, Home, to_numpy
from zeroshift.methods.parts.supports import Changes, Offered

__all__ = ["DroppedSupports"]


class DroppedSupports:
    """With every batch, each class loses its support of highest entropy, be it the only one."""

    def __init__(self, first: Offered, n_classes: int) -> None:
        self._home, self._n_classes = Home.of(first.features), n_classes
        self._held = first

    def changes(self, offered: Offered, batch_size: int) -> Changes:
        home, held = self._home, self._held
        starts: list[int] = []
        changed: list[int] = []
        sums: list[Array] = []
        for start in range(0, len(offered.classes), batch_size):
            batch = slice(start, start + batch_size)
            features = home.xp.concat([held.features, offered.features[batch, :]], axis=0)
            classes = np.concatenate([held.classes, offered.classes[batch]])
            entropies = np.concatenate([held.entropies, offered.entropies[batch]])
            order = np.lexsort((entropies, classes))
            dropped = order[np.append(classes[order][1:] != classes[order][:-1], True)]
            kept = np.setdiff1d(np.arange(len(classes)), dropped)
            for k in np.unique(classes).tolist():
                members = kept[classes[kept] == k]
                if not np.array_equal(members, np.flatnonzero(held.classes == k)):
                    starts.append(start)
                    changed.append(k)
                    sums.append(home.xp.sum(features[home.index(members), :], axis=0))
            held = Offered(features[home.index(kept), :], classes[kept], entropies[kept])
        together = home.xp.stack(sums) if sums else held.features[:0, :]
        return Changes(
            np.array(starts, dtype=np.int64), np.array(changed, dtype=np.int64), together, partial(self._keep, held)
        )

    def _keep(self, held: Offered) -> None:
        self._held = held

    def arrays(self) -> dict[str, Array]:
        """What to save."""
        return {
            "features": self._held.features,
            "classes": self._home.xp.asarray(self._held.classes, device=self._home.device),
            "entropies": self._home.bring(self._held.entropies, self._home.xp.float64),
        }

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Take up what `arrays` gave."""
        classes, entropies = to_numpy(arrays["classes"]), to_numpy(arrays["entropies"])
        n, width = arrays["features"].shape
        if classes.shape != (n,) or entropies.shape != (n,) or width != self._held.features.shape[1]:
            raise ValueError(f"{n} supports of width {width}, {classes.shape} classes and {entropies.shape} entropies")
        if n and not 0 <= classes.min() <= classes.max() < self._n_classes:
            raise ValueError(f"classes of supports must be from 0 to {self._n_classes - 1}")
        self._held = Offered(arrays["features"], classes.copy(), entropies.copy())

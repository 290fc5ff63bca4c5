"""A sparse matrix on a GPU whose products always give the same bits: torch's own add in whatever order threads come."""

from __future__ import annotations

from typing import NamedTuple

from zeroshift.arrays import Array, Home

__all__ = ["Entries"]

WORK_NUMBERS = 1 << 26
"""Numbers worked on at once: 512 MB in float64."""


class Entries(NamedTuple):
    """Rows, columns and values (e,) of the entries, row after row; entries at the same place add up."""

    rows: Array
    columns: Array
    values: Array
    lengths: Array
    """Entries of each row."""
    shape: tuple[int, int]

    @classmethod
    def of(cls, rows: Array, columns: Array, values: Array, shape: tuple[int, int]) -> Entries:
        """From entries in any order."""
        home = Home.of(values)
        rows, columns = (home.xp.asarray(places, device=home.device) for places in (rows, columns))
        order = home.xp.argsort(rows, stable=True)
        lengths = home.xp.bincount(rows, minlength=shape[0])
        return cls(rows[order], columns[order], values[order], lengths, shape)

    @property
    def T(self) -> Entries:  # noqa: N802 (as arrays call it)
        return Entries.of(self.columns, self.rows, self.values, (self.shape[1], self.shape[0]))

    def plus_transpose(self) -> Entries:
        """The matrix plus its transpose."""
        xp = Home.of(self.values).xp
        rows, columns = xp.concat([self.rows, self.columns]), xp.concat([self.columns, self.rows])
        return Entries.of(rows, columns, xp.concat([self.values, self.values]), self.shape)

    def scaled(self, left: Array, right: Array) -> Entries:
        """Entry (i, j) times left[i] right[j]."""
        return self._replace(values=self.values * left[self.rows] * right[self.columns])

    def dense(self) -> Array:
        """All entries, as an array."""
        home = Home.of(self.values)
        return self.times(home.xp.eye(self.shape[1], dtype=self.values.dtype, device=home.device))

    def times(self, dense: Array) -> Array:
        """The product with a dense matrix: each row's entries summed one after the other."""
        home = Home.of(dense)
        answer = home.zeros((self.shape[0], dense.shape[1]), dense.dtype)
        size = max(1, WORK_NUMBERS // max(1, self.values.shape[0]))
        for start in range(0, dense.shape[1], size):
            told = self.values[:, None] * dense[:, start : start + size][self.columns]
            answer[:, start : start + size] = home.xp.segment_reduce(told, "sum", lengths=self.lengths, axis=0)
        return answer

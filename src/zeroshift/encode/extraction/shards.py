"""The image side of an extraction: decoded beside the encoder, shard by shard, each put on the disk when it is done.

Shards are cut from the whole list of images, not from what is left to do: a run that was stopped and goes on makes the
same batches as one that was not, and so the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from zeroshift.data.images import ImageError, ImageSource, Stat
from zeroshift.encode.encoder import Encoder
from zeroshift.encode.extraction.contents import Contents
from zeroshift.encode.extraction.decoding import Picture
from zeroshift.encode.extraction.encoding import ShardEncoding
from zeroshift.encode.extraction.store import FeatureStore

__all__ = ["Outcome", "encode_shards"]


class Outcome(NamedTuple):
    """What became of the images."""

    indices: list[int]
    """Those that have features."""
    rows: np.ndarray
    """(n, V, d), of those."""
    skipped: tuple[ImageError, ...]
    notes: tuple[tuple[str, str], ...]
    computed: int
    """Different pictures the encoder had to look at."""


@dataclass
class _Plan:
    """What is known of the images before any is opened."""

    digests: dict[int, bytes] = field(default_factory=dict)
    """Of images that have features already."""
    stats: dict[int, tuple[Path, Stat]] = field(default_factory=dict)
    """Of the others that have a file."""
    to_read: list[int] = field(default_factory=list)
    looked: int = field(default_factory=time.time_ns)
    """When `stats` began to be taken."""


def encode_shards(
    images: ImageSource,
    encoder: Encoder,
    decode: Callable[[Sequence[int]], Iterator[Picture]],
    store: FeatureStore,
    contents: Contents,
    *,
    shard_images: int,
    storage: np.dtype,
    stop: bool,
    progress: Callable[[int], None],
) -> Outcome:
    """Features of every image, into the store where they are not in it already; see `extract`."""
    plan = _planned(images, store, contents)
    progress(len(plan.digests))
    digests, skipped, notes = dict(plan.digests), list[ImageError](), list[tuple[str, str]]()
    submitted: set[bytes] = set()
    with ShardEncoding(encoder, store, storage) as encoding:
        read: list[int] = []
        for picture in decode(plan.to_read):
            if read and picture.index // shard_images != read[-1] // shard_images:
                encoding.end_shard()
                contents.keep(_entries(read, plan, digests), plan.looked)
                read = []
            read.append(picture.index)
            progress(1)
            if picture.error is not None:
                if stop:
                    raise picture.error
                skipped.append(picture.error)
                continue
            assert picture.digest is not None
            assert picture.pixels is not None
            digests[picture.index] = picture.digest
            if picture.note is not None:
                notes.append((images.name(picture.index), picture.note))
            # The same picture can be there twice, or be known under a name it no longer has.
            if picture.digest not in submitted and picture.digest not in store:
                submitted.add(picture.digest)
                encoding.add(picture.digest, picture.pixels)
        encoding.end_shard()
    contents.keep(_entries(read, plan, digests), plan.looked)
    indices = sorted(digests)
    if not indices:
        raise ValueError(f"none of the {len(images)} images can be used. The first: {skipped[0]}")
    return Outcome(indices, store.rows([digests[i] for i in indices]), tuple(skipped), tuple(notes), len(submitted))


def _planned(images: ImageSource, store: FeatureStore, contents: Contents) -> _Plan:
    plan = _Plan()
    for i in range(len(images)):
        path = images.path(i)
        try:
            stat = None if path is None else images.stat(i)
        except ImageError:
            stat = None  # reading it will say so again, and be answered as was asked for
        if path is not None and stat is not None:
            plan.stats[i] = (path.absolute(), stat)
            digest = contents.find(*plan.stats[i])
            if digest is not None and digest in store:
                plan.digests[i] = digest
                continue
        plan.to_read.append(i)
    return plan


def _entries(read: list[int], plan: _Plan, digests: dict[int, bytes]) -> Iterator[tuple[Path, Stat, bytes]]:
    """What `Contents` is to remember. The state is that before reading: a file that changed meanwhile is read again."""
    for i in read:
        if i in plan.stats and i in digests:
            yield (*plan.stats[i], digests[i])

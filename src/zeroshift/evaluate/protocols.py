"""Protocols: how others evaluate methods, as settings of `zeroshift compare`. docs/compare.md says where each fact
comes from and what is not known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zeroshift.evaluate.metrics.calibration import BINS
from zeroshift.evaluate.streams import StreamSpec
from zeroshift.suggest import did_you_mean

__all__ = ["PROTOCOLS", "Protocol", "find_protocol"]


@dataclass(frozen=True)
class Protocol:
    """Streams, batch size and metrics of an evaluation."""

    name: str
    title: str
    streams: Mapping[str, StreamSpec]
    """Streams that online methods run on, by name. Each holds every row once, so that methods which do not depend on
    the order need one run for all of them."""
    averaged: tuple[str, ...]
    """The streams that the accuracy averages; the others are shown next to it."""
    every: int | None
    """Images per call of an online method; None is all of them. Methods with a batch size of their own get whole
    batches."""
    bins: int
    """Bins of the calibration error."""
    notes: tuple[str, ...]
    """What a reader must know: where labels are used, and what is ours."""


RANDOM = StreamSpec("random")

PROTOCOLS = {
    one.name: one
    for one in (
        Protocol(
            name="three-orders",
            title="random, bursts and class-sorted",
            streams={kind: StreamSpec(kind) for kind in ("random", "bursts", "class_sorted")},
            averaged=("random", "bursts", "class_sorted"),
            every=None,
            bins=BINS,
            notes=("Labels arrange the streams bursts and class_sorted; methods do not see them.",),
        ),
        Protocol(
            name="ttabc",
            title="TTABC",
            streams={"random": RANDOM, "dirichlet": StreamSpec("dirichlet")},
            averaged=("random",),
            every=1,
            bins=20,
            notes=(
                "Accuracy is the mean over sets in random order, as in TTABC's averages; the label-shift stream "
                "(dirichlet) is next to it.",
                "Labels arrange the dirichlet stream; methods do not see them. Its concentration (1 over all slots) is "
                "ours: the published material that we found does not state TTABC's.",
            ),
        ),
        Protocol(
            name="tta-vlm",
            title="TTA-VLM",
            streams={"random": RANDOM, "dirichlet": StreamSpec("dirichlet")},
            averaged=("random",),
            every=1,
            bins=BINS,
            notes=(
                "Accuracy is the mean over sets in random order. The dirichlet stream is an addition of zeroshift, "
                "for which labels arrange the rows; TTA-VLM has no label-shift stream that we know of.",
                "TTA-VLM also measures attacks and unknown classes, which features of clean images cannot show.",
            ),
        ),
    )
}
"""All protocols, by name."""


def find_protocol(name: str) -> Protocol:
    """The protocol called `name`.

    >>> find_protocol("ttabc").bins
    20
    """
    if name not in PROTOCOLS:
        raise ValueError(
            f"--protocol must be one of {', '.join(PROTOCOLS)}; got {name!r}. {did_you_mean(name, PROTOCOLS)}".rstrip()
        )
    return PROTOCOLS[name]

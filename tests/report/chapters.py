"""Synthetic chapters with one finding of every kind, and their sets; nothing is run."""

from __future__ import annotations

import numpy as np

from feature_sets import unit
from zeroshift import FeatureSet
from zeroshift.experiments import Chapter, Experiment, Suite
from zeroshift.experiments._shared.findings import (
    Bar,
    Bars,
    Column,
    Confusion,
    HeatMap,
    HeatMaps,
    Lines,
    Region,
    Regions,
    Reliability,
    ReliabilityPanel,
    Remark,
    Row,
    Series,
    Table,
    Value,
)

ODD = "a|b `c` <d> & 50% $x$ _e_ {f} \\g #1 ~h ^i \"j\", 'k'"
"""A name with what every format would take for something else."""

CONTROL = "red\x1b[31m\nrow\u202e"
"""A name that would recolour a terminal, break a line and turn the direction of writing."""

CLASSES = ("cat", ODD, "t-shirt")

GAINS = Table(
    "gains",
    "Accuracy, gain, time and memory",
    (
        Column("method", "text"),
        Column("accuracy", "percent", "two sets, 12 samples"),
        Column("gain", "points"),
        Column("time", "seconds"),
        Column("memory", "bytes"),
        Column("samples", "count"),
        Column("alpha", "number"),
        Column("prompts", "text"),
    ),
    (
        Row(("zero-shot", Value(0.5, paper=0.6873), None, Value(0.0000123), None, Value(1200), None, "plain")),
        Row(
            (
                "online ADAPT",
                Value(0.78512, 0.77934, 0.79046, paper=0.7091, best=True),
                Value(28.512, 27.934, 29.046, best=True),
                Value(0.0421),
                Value(3_450_000),
                Value(1200),
                Value(0.9),
                "plain",
            ),
            group="online",
            strong=True,
        ),
        Row(
            (ODD, Value(0.45, 0.449, 0.451), Value(-5.0), Value(75.0), Value(12_345_678), Value(7), None, ODD), "online"
        ),
        Row((CONTROL, None, Value(-0.01), Value(5400.0), None, None, Value(1e-5), "words"), f"all at once {ODD}"),
    ),
    notes=("Three random orders.", f"On {ODD}."),
)

PRINTED = Table(
    "printed",
    "Table 5 of the paper",
    (Column("what moves", "text"), Column("Task 1"), Column("Task 2")),
    (Row(("nothing", Value(0.591), Value(0.249))), Row(("all", Value(0.6504, best=True), Value(0.2856, best=True)))),
    reference=True,
)

SWEEP = Lines(
    "sweep",
    "Accuracy by bank size",
    "samples per class",
    "accuracy (%)",
    (
        Series("online ADAPT", (1, 4, 16), (70.5, 76.25, 75.0), (70.0, 75.0, 74.0), (71.0, 77.0, 76.0), "adapt_online"),
        Series(ODD, (1, 4, 16), (60.0, 60.0, 60.0)),
    ),
    caption="The bank need not be large.",
    log_x=True,
    marked_x=16,
    steps=True,
)

INTERVALS = Bars(
    "intervals",
    "Gain over zero-shot",
    "points",
    (
        Bar("cifar10", 4.9, 3.8, 6.1, "natural", "adapt_online"),
        Bar(ODD, -1.25, -2.5, 0.5, "corruption"),
        Bar("fmnist", 0.0, group="corruption"),
    ),
    caption="Intervals hold 95% of 1,000 resamples.",
)

MAPS = HeatMaps(
    "covariances",
    "Covariance of two classes",
    (
        HeatMap("cat", np.array([[1.0, 0.25], [0.25, 0.5]]), ("1", "2"), ("1", "2")),
        HeatMap(ODD, np.array([[0.75, -0.5], [-0.5, 2.0]])),
    ),
    caption="Nearly the same.",
    unit="covariance",
    diverging=True,
    written=True,
)

RELIABILITY = Reliability(
    "reliability",
    "Does confidence mean what it says?",
    (
        ReliabilityPanel("zero-shot", (0.3, 0.6, 0.9), (0.5, 0.7, 0.95), (0.25, 0.25, 0.5), 0.1, "zero_shot"),
        ReliabilityPanel(ODD, (0.5, 0.95), (0.25, 0.75), (0.5, 0.5), 0.225),
    ),
)

CONFUSION = Confusion(
    "confusion",
    "Which classes are taken for which",
    CLASSES,
    np.array([[0.75, 0.25, 0.0], [0.5, 0.5, 0.0], [0.0, 0.125, 0.875]]),
    np.array([[1.0, 0.0, 0.0], [0.25, 0.75, 0.0], [0.0, 0.0, 1.0]]),
    after_label="online ADAPT",
    caption="Fractions of each true class.",
)

REGIONS = Regions(
    "regions",
    "How the plane is divided",
    (
        Region("zero-shot", np.array([[0, 0, 1], [0, 2, 1], [2, 2, 1]]), 0.5, "zero_shot"),
        Region("online ADAPT", np.array([[0, 1, 1], [0, 1, 1], [2, 2, 2]]), 1.0, "adapt_online"),
    ),
    (-1.0, 1.0, -1.0, 1.0),
    np.array([[-0.5, -0.5], [0.5, 0.0], [0.0, 0.75], [-0.75, 0.0]]),
    np.array([0, 1, 2, 0]),
    CLASSES,
    anchors=np.array([[-0.6, -0.4], [0.6, 0.1], [0.1, 0.8]]),
)

REMARKS = (
    Remark(f"A note on {ODD}."),
    Remark("Ours ran on other data than the paper's.", kind="data"),
    Remark("Online ADAPT lost on one set.", kind="warning"),
)


def _experiment(name: str, title: str, where: str = "") -> Experiment:
    return Experiment(name, title, f"What is to be known of {name}?", lambda *_: (), lambda *_: (), where)


def example_chapters() -> list[Chapter]:
    """Two: one with every kind of finding, one short."""
    everything = (GAINS, PRINTED, SWEEP, INTERVALS, MAPS, RELIABILITY, CONFUSION, REGIONS, *REMARKS)
    return [
        Chapter(
            _experiment("every-kind", f"Every kind of finding: {ODD}", "Table 5"),
            everything,
            failed=(f"tda on {ODD}: ValueError: <no> {CONTROL}",),
            seconds=75.0,
        ),
        Chapter(_experiment("short", "A short one"), (Remark("Nothing could be run on these sets.", kind="data"),)),
    ]


def example_suite() -> Suite:
    """Two sets of six samples; the second has an odd name."""
    made = {}
    for seed, (name, data_set) in enumerate({"cifar10": "CIFAR-10", ODD: "mine"}.items()):
        provenance = {"title": f"Six of {name}", "data_set": data_set, "encoder": {"statement": "a composed encoder"}}
        made[name] = FeatureSet(
            unit(6, 4, seed=seed),
            prototypes=unit(3, 4, seed=seed + 10),
            labels=[0, 1, 2, 0, 1, 2],
            class_names=CLASSES,
            logit_scale=20.0,
            provenance=provenance,
        )
    return Suite.of(made)

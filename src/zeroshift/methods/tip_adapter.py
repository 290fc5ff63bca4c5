"""Tip-Adapter, training-free: labelled samples vote for their class through a kernel, added to the zero-shot logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from zeroshift.frozen import Expression
from zeroshift.methods._shared.similarity import SHARPNESS
from zeroshift.methods._shared.support_votes import STEPS, SupportVotes, candidates
from zeroshift.parameters import Number, Pair, parameter

SEARCH_START = 0.1
"""Smallest candidate of the search, for both parameters."""


class TipAdapter(SupportVotes):
    """Adds votes of labelled support samples to the zero-shot logits; nearer samples have more weight. With a
    validation set, the sharpness and the weight of the votes are searched there.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import TipAdapter
    >>> support = np.array([[0.8, 0.6], [0.6, 0.8]]), np.array([0, 1])
    >>> method = TipAdapter(np.eye(2), support=support, logit_scale=5.0, alpha=1.0)
    >>> method.predict_scores(np.array([0.96, 0.28])).round(6)
    array([5.738005, 2.218731])

    Notes
    -----
    Zhang et al., *Tip-Adapter: Training-free Adaption of CLIP for Few-shot Classification*, ECCV 2022. The defaults are
    those of the authors' ImageNet configuration. Their code searches on every data set, for ImageNet on the test set
    itself, with the ranges in `presets`. A class without support samples gets no vote. Differences: the authors average
    ten augmentations of an image into one support sample, here samples are used as given; if no pair gets a single
    validation sample right, the first is chosen, not (0, 0).
    """

    name = "tip_adapter"
    headline = "Labelled samples vote by similarity"
    state_size = "N (d + K) for N support samples"
    complexity = "O(N (d + K)) per sample"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        dataset: {"beta": 1.0, "alpha": alpha, "search_scale": search_scale}
        for dataset, alpha, search_scale in (
            ("imagenet", 1.17, (7.0, 3.0)),
            ("caltech101", 3.0, (12.0, 5.0)),
            ("dtd", 2.0, (13.0, 13.0)),
            ("eurosat", 2.0, (12.0, 10.0)),
            ("fgvc_aircraft", 5.0, (30.0, 30.0)),
            ("food101", 1.17, (10.0, 10.0)),
            ("oxford_flowers", 10.0, (50.0, 50.0)),
            ("oxford_pets", 1.17, (7.0, 3.0)),
            ("stanford_cars", 3.0, (20.0, 10.0)),
            ("sun397", 1.17, (12.0, 10.0)),
            ("ucf101", 3.0, (7.0, 3.0)),
        )
    }

    search_scale: tuple[float, float] = parameter(
        Pair(Number(SEARCH_START, SHARPNESS.high), Number(low=SEARCH_START), ("beta", "alpha")),
        "Upper ends of the search. Candidates start at 0.1 and stop one step before the end.",
        default=(7.0, 3.0),
    )
    search_steps: tuple[int, int] = parameter(
        Pair(STEPS, STEPS, ("beta", "alpha")),
        "Number of candidates of each. All pairs are tried; of equally good ones, the smallest beta is chosen, then "
        "the smallest alpha.",
        default=(200, 20),
    )

    @property
    def _grid(self) -> dict[str, Sequence[float]]:
        ends = zip(("beta", "alpha"), self.search_scale, self.search_steps, strict=True)
        return {name: candidates(SEARCH_START, end, steps) for name, end, steps in ends}

    def _frozen(self, x: Expression) -> Expression:
        return self._frozen_scores(x, x, 1.0)

"""B2TPT: text and visual prompts found by a search without gradients, batch by batch."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from zeroshift.arrays import Array, check_matrix, namespace, to_numpy
from zeroshift.methods._shared.cma_es import CMAES, LARGEST
from zeroshift.methods._shared.image_method import VISION, ImageMethod, images_together
from zeroshift.methods._shared.prompt_tuned import TEXT
from zeroshift.methods._shared.towers import PromptedText, PromptedVision, check_classes
from zeroshift.methods._shared.training import label_loss
from zeroshift.parameters import Number, Optional, model_parameter, parameter, state
from zeroshift.state_checks import within
from zeroshift.zero_shot import log_softmax, logits, pseudo_class, quantize

PATCH_NUMBERS = 3072
"""Scale of the matrix of the image side in the authors' code, for every encoder: the numbers of a patch of 32 x 32
pixels, 3 x 32 x 32."""


class SearchStep(NamedTuple):
    """What a batch leads to."""

    scores: Array
    """(B, K), under the prompts of the chosen candidate."""
    search: CMAES
    chosen: np.ndarray
    """(m,), the candidate of the last generation with the lowest loss."""


class B2TPT(ImageMethod):
    """Searches with CMA-ES, without gradients, for the text prompt and the visual prompt whose predictions of a batch
    agree best with the zero-shot pseudo-labels, and predicts with the best candidate of the last generation. A
    candidate is a short vector: the context of the text prompt is a random matrix times one part of it, the visual
    tokens are another times the rest. The search continues from batch to batch.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import B2TPT
    >>> from zeroshift.testing.examples import ExampleText
    >>> prototypes = np.eye(2)
    >>> b2tpt = B2TPT(prototypes, text=ExampleText(prototypes), logit_scale=5.0, text_latent=3, population=6)
    >>> b2tpt.adapt(np.array([[0.8, 0.6], [1.0, 0.0]])).argmax(axis=1)
    array([0, 0])

    Notes
    -----
    Meng, Cui, Dai and Gong, *Black-Box Test-Time Prompt Tuning for Vision-Language Models*, AAAI 2025; written from the
    authors' code. The loss of a candidate is the mean cross-entropy of its logits against pseudo-labels: those of the
    zero-shot classifier or, in the last generation of a batch, for each image those of the more confident of classifier
    and candidate.

    The published accuracy is that of an oracle: for each batch the authors' script measures the accuracy of all 120
    candidates with the true labels and reports the highest. No label is used here, so expect less. The choice of the
    candidate, the lowest loss of the last generation, is ours. `predict` uses the candidate of the last batch; before
    the first batch it is the zero-shot classifier.

    The authors draw the text matrix on the scale of the whole table of token embeddings; here the scale is that of the
    embeddings of the context words. Their search is pycma's, in float16 around the model; this one is our own, after
    Hansen's tutorial, in float64.
    """

    name = "b2tpt"
    headline = "Searches for prompts without gradients"
    needs = ("prototypes", "text")
    takes = ("vision",)
    state_size = "2 m^2 of the search, m = 400 latent dimensions, and matrices for 8 words and 5 tokens"
    complexity = "P G passes of K prompts and of the images per batch, P = population, G = generations"
    reconstructed = "the authors choose the candidate by true labels; the choice by loss is ours"
    context_words: ClassVar[str] = "X X X X X X X X"
    """The words whose embeddings are replaced when `zeroshift.encode` creates the method."""
    example_parameters: ClassVar[Mapping[str, Any]] = {
        "vision": "vision",
        "batch_size": 8,
        "population": 4,
        "generations": 2,
        "text_latent": 3,
        "vision_latent": 3,
    }

    text: PromptedText = model_parameter(
        TEXT, 'Text side of the encoder, with a context of eight words, "X X X X X X X X".'
    )
    vision: PromptedVision | None = model_parameter(  # type: ignore[assignment]  # required by the others
        Optional(VISION),
        "Image side of the encoder. With None, no visual prompt is tuned, and images are given as their unit-length "
        "features (N, d).",
        default=None,
    )
    batch_size: int = images_together(32)
    population: int = parameter(Number(low=2, integer=True), "Candidates per generation.", default=30)
    generations: int = parameter(Number(low=1, integer=True), "Generations per batch.", default=4)
    text_latent: int = parameter(
        Number(low=1, integer=True), "Dimensions of the search for the text prompt.", default=200, sizes_state=True
    )
    vision_latent: int = parameter(
        Number(low=1, integer=True), "Dimensions of the search for the visual prompt.", default=200
    )
    vision_tokens: int = parameter(Number(low=1, integer=True), "Tokens of the visual prompt.", default=5)
    sigma: float = parameter(Number(low=0, above=True), "Initial standard deviation of the search.", default=1.0)
    seed: int = parameter(
        Number(low=0, integer=True), "Seed of the search and of the random matrices of the prompts.", default=42
    )

    _search: CMAES = state(lambda self: self._new_search())
    _chosen: np.ndarray = state(lambda self: self._search.mean, holds=within(-LARGEST, LARGEST))

    def _validate(self) -> None:
        if self.vision is not None:
            super()._validate()
        check_classes("text", self.text, self.prototypes)

    @property
    def _image_side(self) -> Any:
        if self.vision is not None:
            return self.vision
        return SimpleNamespace(input_shape=(self.dimension,), check=partial(check_matrix, columns=self.dimension))

    def _prepare(self) -> None:
        # Contexts vary as much as the initial one; tokens are on the scale of the patch embedding.
        draw_text, draw_vision = np.random.default_rng(self.seed).spawn(2)
        context, size = to_numpy(self.text.context), self.text_latent
        spread = float(context.std()) / (math.sqrt(size) * self.sigma)
        self._to_context = draw_text.normal(0.0, spread, size=(context.size, size))
        if self.vision is not None:
            patches, ratio = self.vision.patches, PATCH_NUMBERS / self.vision_latent
            spread = patches.std * math.sqrt(ratio) * self.sigma
            shape = (self.vision_tokens * self.vision.width, self.vision_latent)
            self._to_tokens = draw_vision.normal(patches.mean * ratio, spread, size=shape)

    def _new_search(self) -> CMAES:
        size = self.text_latent + (0 if self.vision is None else self.vision_latent)
        return CMAES(np.zeros(size), sigma=self.sigma, population=self.population, seed=self.seed)

    def plan(self, images: Array) -> SearchStep:
        zero_shot = log_softmax(self._scores(images, self.prototypes64))
        search = copy.copy(self._search)
        for generation in range(self.generations):
            candidates = search.ask()
            scores = [self._scores(images, *self._prompts(latent)) for latent in candidates]
            is_last = generation == self.generations - 1
            losses = np.array([self._loss(one, zero_shot, is_last) for one in scores])
            search.tell(candidates, losses)
        best = int(losses.argmin())
        return SearchStep(scores[best], search, candidates[best])

    def learn(self, step: SearchStep) -> None:
        _, self._search, self._chosen = step

    def score(self, images: Array) -> Array:
        prompts = self._prompts(self._chosen) if self._n_seen else (self.prototypes64, None)
        return self._scores(images, *prompts)

    def _loss(self, scores: Array, zero_shot: Array, is_last: bool) -> float:
        """Mean cross-entropy of a candidate's scores at the classes of the zero-shot log-posterior.

        In the last generation the candidate's own class is the label where it is the more confident one.
        """
        xp, classes, own = namespace(scores), pseudo_class(zero_shot), log_softmax(scores)
        if is_last:
            classes = xp.where(xp.max(own, axis=1) > xp.max(zero_shot, axis=1), pseudo_class(own), classes)
        # Rounded to nine digits: prompts with equal losses are ranked in the order they were drawn, on every machine.
        return float(quantize(label_loss(scores, classes)[0]))

    def _prompts(self, latent: np.ndarray) -> tuple[Array, Array | None]:
        """Text features (K, d) and visual tokens of a latent vector."""
        context = (self._to_context @ latent[: self.text_latent]).reshape(self.text.context.shape)
        text = self.as_float64(self.text.features(self.as_own(context)))
        if self.vision is None:
            return text, None
        tokens = self._to_tokens @ latent[self.text_latent :]
        return text, self.as_own(tokens.reshape(self.vision_tokens, self.vision.width))

    def _scores(self, images: Array, text: Array, tokens: Array | None = None) -> Array:
        features = self.as_float64(images) if self.vision is None else self._encode(images, tokens).features
        return logits(features, text, self.logit_scale)

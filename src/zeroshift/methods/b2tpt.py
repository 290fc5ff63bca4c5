"""B2TPT: text and visual prompts found by a search without gradients, batch by batch."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from zeroshift.arrays import Array, Backend, namespace, to_numpy
from zeroshift.methods._shared.cma_es import CMAES, LARGEST
from zeroshift.methods._shared.image_method import ImageMethod
from zeroshift.methods._shared.prompt_tuned import TEXT
from zeroshift.methods._shared.towers import PromptedText, PromptedVision
from zeroshift.parameters import Number, model_parameter, parameter, state
from zeroshift.state_checks import check_range
from zeroshift.zero_shot import log_softmax, logits, pseudo_class, quantize

__all__ = ["B2TPT", "LatentPrompts"]


PATCH_NUMBERS = 3072
"""Scale of the matrix of the image side in the authors' code, for every encoder: the numbers of a patch of 32 x 32
pixels, 3 x 32 x 32."""


class LatentPrompts:
    """Text and visual prompts as random linear functions of a short latent vector, so that a search without gradients
    has few dimensions.

    The first `text_size` numbers of the vector give the context of the text prompt, the others the visual tokens. Each
    is a random matrix times its part of the vector. The matrices are drawn once from a seed. For latents of standard
    deviation `sigma`, the context has the standard deviation of `text.context`; the visual tokens are drawn on the
    scale of the weights of the patch embedding.
    """

    def __init__(
        self,
        text: PromptedText,
        vision: PromptedVision | None,
        *,
        text_size: int,
        vision_size: int,
        tokens: int,
        sigma: float,
        seed: int,
    ) -> None:
        text_draw, vision_draw = np.random.default_rng(seed).spawn(2)
        context = to_numpy(text.context)
        self._text_size = text_size
        self._context_shape = context.shape
        self._context_matrix = text_draw.normal(
            0.0, float(context.std()) / (math.sqrt(text_size) * sigma), size=(context.size, text_size)
        )
        self.size = text_size
        if vision is not None:
            self.size += vision_size
            ratio = PATCH_NUMBERS / vision_size
            self._token_shape = (tokens, vision.width)
            self._token_matrix = vision_draw.normal(
                vision.patches.mean * ratio,
                vision.patches.std * math.sqrt(ratio) * sigma,
                size=(tokens * vision.width, vision_size),
            )

    def context(self, latent: np.ndarray) -> np.ndarray:
        """Context (n, width) of the text prompt."""
        return (self._context_matrix @ latent[: self._text_size]).reshape(self._context_shape)

    def tokens(self, latent: np.ndarray) -> np.ndarray:
        """Tokens (tokens, width) of the visual prompt."""
        return (self._token_matrix @ latent[self._text_size :]).reshape(self._token_shape)


class B2TPT(ImageMethod):
    """Searches with CMA-ES, without gradients, for the text prompt and the visual prompt whose predictions of a batch
    agree best with the zero-shot pseudo-labels, and predicts with the best candidate of the last generation. The search
    continues from batch to batch.

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
    batch_size: int = parameter(
        Number(low=1, integer=True),
        "Images learned from together. The images of each call are split into batches; the last may be smaller.",
        default=32,
    )
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

    _search: CMAES = state(lambda self: self._new_search(), saved_as="")
    _chosen: np.ndarray = state(
        lambda self: np.zeros(self._prompts.size),
        check=lambda self, chosen: check_range("chosen", chosen, -LARGEST, LARGEST),
    )

    def _validate(self) -> None:
        super()._validate()
        if (self.text.n_classes, self.text.dimension) != (self.n_classes, self.dimension):
            raise ValueError(
                f"text has {self.text.n_classes} classes in d = {self.text.dimension}, the prototypes have "
                f"{self.n_classes} in d = {self.dimension}. Fix: make both from the same encoder and class names."
            )

    def _prepare(self) -> None:
        backend = Backend.of(self.prototypes)
        self._zero_shot = backend.asarray(self.prototypes, backend.xp.float64)
        self._prompts = LatentPrompts(
            self.text,
            self.vision,
            text_size=self.text_latent,
            vision_size=self.vision_latent,
            tokens=self.vision_tokens,
            sigma=self.sigma,
            seed=self.seed,
        )

    def _new_search(self) -> CMAES:
        return CMAES(np.zeros(self._prompts.size), sigma=self.sigma, population=self.population, seed=self.seed)

    def _adapt_batch(self, images: Array) -> Array:
        log_y = log_softmax(self._zero_shot_scores(images))
        search = copy.deepcopy(self._search)
        for generation in range(self.generations):
            candidates = search.ask()
            losses, scores = self._evaluate(images, candidates, log_y, last=generation == self.generations - 1)
            search.tell(candidates, losses)
        with self._learning(images.shape[0]):
            self._search, self._chosen = search, candidates[int(np.argmin(losses))]
        return scores

    def _evaluate(self, images: Array, candidates: np.ndarray, log_y: Array, *, last: bool) -> tuple[np.ndarray, Array]:
        """The losses of the candidates, and the scores (B, K) of the first candidate with the lowest loss."""
        losses = np.full(len(candidates), np.inf)
        best = None
        for number, latent in enumerate(candidates):
            scores = self._scores(images, latent)
            loss = self._loss(log_softmax(scores), log_y, last=last)
            if best is None or loss < losses.min():
                best = scores
            losses[number] = loss
        return losses, best

    def _loss(self, candidate: Array, zero_shot: Array, *, last: bool) -> float:
        """Mean cross-entropy of a candidate's log-posterior against the pseudo-labels.

        In the `last` generation the candidate's own class is the label where it is the more confident one.
        """
        xp = namespace(candidate)
        classes = pseudo_class(zero_shot)
        if last:
            more_confident = xp.max(candidate, axis=1) > xp.max(zero_shot, axis=1)
            classes = xp.where(more_confident, pseudo_class(candidate), classes)
        columns = xp.arange(candidate.shape[1], device=Backend.of(candidate).device)
        chosen = xp.where(columns == classes[:, None], candidate, xp.zeros_like(candidate))
        # Rounded to nine digits: prompts with equal losses are ranked in the order they were drawn, on every machine.
        return float(quantize(-xp.sum(chosen) / candidate.shape[0]))

    def _predict_scores(self, features: Array) -> Array:
        return self._scores(features, self._chosen) if self.n_seen else self._zero_shot_scores(features)

    def _zero_shot_scores(self, images: Array) -> Array:
        return logits(self._encode(images).features, self._zero_shot, self.logit_scale)

    def _scores(self, images: Array, latent: np.ndarray) -> Array:
        """Scores (B, K) under the prompts of a latent vector."""
        backend = Backend.of(self.prototypes)
        text = backend.asarray(self.text.features(backend.asarray(self._prompts.context(latent))), backend.xp.float64)
        prompt = None if self.vision is None else backend.asarray(self._prompts.tokens(latent))
        return logits(self._encode(images, prompt).features, text, self.logit_scale)

    def _state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        # The search runs on the host. Its arrays are saved without a prefix, its numbers as one group.
        arrays, values = super()._state()
        backend = Backend.of(self.prototypes)
        return {name: backend.asarray(array) for name, array in arrays.items()}, {"search": values}

    def _restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        super()._restore(arrays, values["search"])

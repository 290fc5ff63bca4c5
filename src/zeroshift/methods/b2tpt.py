"""B2TPT: text and visual prompts found by a black-box search, batch by batch."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np

from zeroshift.arrays import Array, Home, namespace, to_numpy
from zeroshift.methods._shared.cma_es import CMAES
from zeroshift.methods._shared.image_method import VISION, ImageMethod
from zeroshift.methods._shared.prompt_tuned import TEXT
from zeroshift.methods._shared.towers import PromptedText, PromptedVision
from zeroshift.parameters import Number, Optional, model_parameter, parameter
from zeroshift.zero_shot import log_softmax, logits, pseudo_class, quantize

__all__ = ["B2TPT", "LatentPrompts"]


# Prompts as random linear functions of a short vector, so that a search without gradients has few dimensions.


PATCH_NUMBERS = 3072
"""What B2TPT's authors scale the image side's matrix with, whatever the encoder: the numbers of a patch of 32 pixels a
side, 3 x 32 x 32."""


class LatentPrompts:
    """The first `text_size` numbers of a latent vector make the words of the text prompt, the others visual tokens.

    Each is a random matrix times its part of the vector. The matrices are drawn once, from a seed, on the scale of what
    they stand in for: the words' embeddings have the standard deviation of `text.context`'s for latents of standard
    deviation `sigma`, the visual tokens are drawn after the weights of the patch embedding.
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
        for_text, for_vision = np.random.default_rng(seed).spawn(2)
        words = to_numpy(text.context)
        self._split = text_size
        self._words = words.shape
        self._to_words = for_text.normal(
            0.0, float(words.std()) / (math.sqrt(text_size) * sigma), size=(words.size, text_size)
        )
        self.size = text_size
        if vision is not None:
            self.size += vision_size
            ratio = PATCH_NUMBERS / vision_size
            self._tokens = (tokens, vision.width)
            self._to_tokens = for_vision.normal(
                vision.patches.mean * ratio,
                vision.patches.std * math.sqrt(ratio) * sigma,
                size=(tokens * vision.width, vision_size),
            )

    def words(self, latent: np.ndarray) -> np.ndarray:
        """(n, width): the text prompt's words."""
        return (self._to_words @ latent[: self._split]).reshape(self._words)

    def tokens(self, latent: np.ndarray) -> np.ndarray:
        """(tokens, width): the visual prompt."""
        return (self._to_tokens @ latent[self._split :]).reshape(self._tokens)


class B2TPT(ImageMethod):
    """Searches, with CMA-ES and no gradient, for the text prompt and the visual prompt whose predictions of a batch
    agree most surely with the zero-shot pseudo-labels, and answers with the best of its last generation. The search
    goes on from batch to batch.

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
    authors' code. A candidate's loss is the mean cross-entropy of its logits against pseudo-labels: those of the
    zero-shot classifier, and in a batch's last generation, for each image, those of the candidate where it is the surer
    of the two.

    The accuracy published for it is an oracle's: for each batch the authors' script measures the accuracy of all 120
    candidates with the true labels and reports the highest. No label is used here, and that number is not to be
    expected. The choice of the candidate, the lowest loss of the last generation, is ours. `predict` answers with the
    last batch's; before the first it is the zero-shot classifier.

    The authors draw the text matrix on the scale of the whole table of token embeddings; here it is that of the
    embeddings of the words themselves. Their search is pycma's, in float16 around the model; this one is our own, after
    Hansen's tutorial, in float64.
    """

    name = "b2tpt"
    needs = ("prototypes", "text")
    takes = ("vision",)
    state_size = "2 m^2 of the search and m latent, m = 400, and matrices to 8 words and 5 tokens"
    complexity = "P G passes of K prompts and of the batch, P = population and G = generations, for a batch"
    reconstructed = "the authors choose the candidate by true labels; the choice by loss is ours"
    words: ClassVar[str] = "X X X X X X X X"
    """The words to replace, where `zeroshift.encode` makes the method."""
    example_parameters: ClassVar[Mapping[str, Any]] = {
        "vision": "vision",
        "batch_size": 8,
        "population": 4,
        "generations": 2,
        "text_latent": 3,
        "vision_latent": 3,
    }

    text: PromptedText = model_parameter(
        TEXT, 'The text side of the encoder, as `zeroshift.encode.prompted_text` makes it for eight words "X".'
    )
    vision: PromptedVision | None = model_parameter(
        Optional(VISION),
        "The image side, as `zeroshift.encode.prompted_vision` makes it. None searches the text prompt alone, and images are given as their unit-length features, (N, d).",
        default=None,
    )
    logit_scale: float = parameter(Number(low=0, above=True), "Scale of the logits; 100 for CLIP.", default=100.0)
    batch_size: int = parameter(
        Number(low=1, integer=True),
        "Images learned from together. Each call's images are cut into batches of this size; the last may be shorter.",
        default=32,
    )
    population: int = parameter(Number(low=2, integer=True), "Candidates in a generation.", default=30)
    generations: int = parameter(Number(low=1, integer=True), "Generations for a batch.", default=4)
    text_latent: int = parameter(
        Number(low=1, integer=True), "Dimensions of the search for the text and for the visual prompt.", default=200
    )
    vision_latent: int = parameter(
        Number(low=1, integer=True), "Dimensions of the search for the text and for the visual prompt.", default=200
    )
    vision_tokens: int = parameter(Number(low=1, integer=True), "Tokens of the visual prompt.", default=5)
    sigma: float = parameter(Number(low=0, above=True), "The search's first standard deviation.", default=1.0)
    seed: int = parameter(
        Number(low=0, integer=True), "Of the random matrices from latents to prompts, and of the search.", default=42
    )

    def _validate(self) -> None:
        super()._validate()
        if (self.text.n_classes, self.text.dimension) != (self.n_classes, self.dimension):
            raise ValueError(
                f"text has {self.text.n_classes} classes in d = {self.text.dimension}, the prototypes have "
                f"{self.n_classes} in d = {self.dimension}. Fix: make both from the same encoder and class names."
            )

    def _begin(self) -> None:
        home = Home.of(self.prototypes)
        self._zero_shot = home.bring(self.prototypes, home.xp.float64)
        self._prompts = LatentPrompts(
            self.text,
            self.vision,
            text_size=self.text_latent,
            vision_size=self.vision_latent,
            tokens=self.vision_tokens,
            sigma=self.sigma,
            seed=self.seed,
        )
        start = np.zeros(self._prompts.size)
        search = CMAES(start, sigma=self.sigma, population=self.population, seed=self.seed)
        self._put(search, start)

    def _learned(self, images: Array) -> tuple[Array, partial[None]]:
        log_y = log_softmax(self._zero_shot_scores(images))
        search = copy.deepcopy(self._search)
        for generation in range(self.generations):
            candidates = search.ask()
            losses, answer = self._tried(images, candidates, log_y, last=generation == self.generations - 1)
            search.tell(candidates, losses)
        return answer, partial(self._put, search, candidates[int(np.argmin(losses))])

    def _tried(self, images: Array, candidates: np.ndarray, log_y: Array, *, last: bool) -> tuple[np.ndarray, Array]:
        """The candidates' losses, and the scores of the first with the lowest."""
        losses = np.full(len(candidates), np.inf)
        answer = None
        for number, latent in enumerate(candidates):
            scores = self._scores(images, latent)
            loss = self._loss(log_softmax(scores), log_y, last=last)
            if answer is None or loss < losses.min():
                answer = scores
            losses[number] = loss
        return losses, answer

    def _loss(self, candidate: Array, zero_shot: Array, *, last: bool) -> float:
        """Mean cross-entropy of a candidate's log-posterior against pseudo-labels, its own among them at the `last`."""
        xp = namespace(candidate)
        classes = pseudo_class(zero_shot)
        if last:
            surer = xp.max(candidate, axis=1) > xp.max(zero_shot, axis=1)
            classes = xp.where(surer, pseudo_class(candidate), classes)
        columns = xp.arange(candidate.shape[1], device=Home.of(candidate).device)
        chosen = xp.where(columns == classes[:, None], candidate, xp.zeros_like(candidate))
        # To nine digits: prompts that come to the same are ranked in the order they were drawn, on every machine.
        return float(quantize(-xp.sum(chosen) / candidate.shape[0]))

    def _predict_scores(self, features: Array) -> Array:
        return self._scores(features, self._chosen) if self.n_seen else self._zero_shot_scores(features)

    def _zero_shot_scores(self, images: Array) -> Array:
        return logits(self._see(images).features, self._zero_shot, self.logit_scale)

    def _scores(self, images: Array, latent: np.ndarray) -> Array:
        """(B, K) under the prompts of a latent vector."""
        home = Home.of(self.prototypes)
        text = home.bring(self.text.features(home.bring(self._prompts.words(latent))), home.xp.float64)
        prompt = None if self.vision is None else home.bring(self._prompts.tokens(latent))
        return logits(self._see(images, prompt).features, text, self.logit_scale)

    def _put(self, search: CMAES, chosen: np.ndarray) -> None:
        self._search, self._chosen = search, chosen

    def _state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        home = Home.of(self.prototypes)
        arrays, values = self._search.state()
        return {name: home.bring(array) for name, array in {**arrays, "chosen": self._chosen}.items()}, {
            "search": values
        }

    def _restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        own = {name: to_numpy(array) for name, array in arrays.items()}
        if own["chosen"].shape != (self._prompts.size,):
            raise ValueError(f"the array 'chosen' has the shape {own['chosen'].shape}, not ({self._prompts.size},)")
        self._search.restore(own, values["search"])
        self._chosen = own["chosen"]

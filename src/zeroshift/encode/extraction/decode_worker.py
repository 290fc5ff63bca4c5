"""A process that turns image files into pixels: this module, run as a program and spoken to through pipes.

Requests and answers are pickles on stdin and stdout, between a process and the child it started itself. The child ends
when the pipe does, so that none is left behind however its parent ends; and since it is a program of its own, scripts
that use it need no `if __name__ == "__main__"`.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from zeroshift.data.images import ImageError, ImageSource
from zeroshift.encode.extraction.store import digest_of
from zeroshift.encode.preprocessing import Pixels, Preprocessing

__all__ = ["Decoder", "Picture", "main"]


@dataclass(frozen=True)
class Picture:
    """One image on its way to the encoder, or what kept it from getting there."""

    index: int
    digest: bytes | None = None
    pixels: Pixels | None = None
    """(V, ...) for each array the model takes."""
    note: str | None = None
    error: ImageError | None = None


@dataclass(frozen=True)
class Decoder:
    """Everything that happens to an image before the encoder sees it; picklable."""

    images: ImageSource
    preprocessing: Preprocessing
    corruption: Callable[..., Any] | None = None
    views: Callable[..., Pixels] | None = None

    def __call__(self, index: int) -> Picture:
        digest = None
        try:
            content = self.images.read(index)
            digest = digest_of(content)
            image, note = self.images.open_from(content, index)
        except ImageError as error:
            return Picture(index, digest=digest, error=error)
        # What is random about an image is drawn from its content: not from its place, nor from who decodes it when.
        if self.corruption is not None:
            try:
                image = self.corruption(image, digest)
            except ValueError as error:  # most of all, a picture too small for it
                what = f"cannot be corrupted ({error})"
                return Picture(index, digest, error=ImageError(self.images.name(index), what, "leave it out"))
        if self.views is not None:
            pixels = self.views(image, self.preprocessing, digest)
        else:
            pixels = tuple(array[None] for array in self.preprocessing(image))
        return Picture(index, digest, pixels, note)


def main() -> None:
    """Answer requests until there are no more."""
    # Ctrl-C goes to the whole group of processes; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    # What a library prints must not get between the answers.
    os.dup2(2, 1)
    decoder: Decoder = pickle.load(requests)
    while True:
        try:
            indices: Sequence[int] = pickle.load(requests)
        except EOFError:
            return
        try:
            answer: Any = [decoder(index) for index in indices]
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        try:
            pickle.dump(answer, answers, protocol=pickle.HIGHEST_PROTOCOL)
            answers.flush()
        except BrokenPipeError:
            return

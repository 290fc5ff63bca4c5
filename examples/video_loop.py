"""Follow a video, or a folder that a camera fills with pictures, and print when the class changes.

    python examples/video_loop.py clip.mp4 --classes cat,dog,horse --encoder composed
    python examples/video_loop.py frames/ --watch --classes cat,dog,horse --state camera.safetensors

The classifier adapts with every frame and uses that frames next to each other usually show the same class. With
`--state`, it continues the next time where it stopped.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zeroshift
from zeroshift.data import video_frames

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")


def frames(source: Path, fps: float, watch: bool) -> Iterator[tuple[str, Any]]:
    """(time or name, image) of each frame, in order; with `watch`, waits for the next picture in the folder."""
    if source.is_file():
        yield from ((f"{seconds:8.1f} s", image) for seconds, image in video_frames(source, fps))
        return
    seen: set[Path] = set()
    while True:
        new = [path for path in sorted(source.iterdir()) if path.suffix.lower() in SUFFIXES and path not in seen]
        yield from ((path.name, path) for path in new)
        seen.update(new)
        if not watch:
            return
        time.sleep(1 / fps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, help="a video, or a folder of pictures named in their order")
    parser.add_argument("--classes", required=True, help="names with commas between them")
    parser.add_argument("--encoder", default="openai/clip-vit-base-patch16")
    parser.add_argument("--fps", type=float, default=2.0, help="frames per second")
    parser.add_argument("--watch", action="store_true", help="wait for more pictures, until Ctrl-C")
    parser.add_argument("--state", type=Path, help="what was learned: read if it exists, written at the end")
    given = parser.parse_args()
    names = [name.strip() for name in given.classes.split(",")]
    if given.state and given.state.exists():
        pipe = zeroshift.Pipeline.load(given.state)
        if list(pipe.classes) != names:
            parser.error(f"{given.state} was saved with other classes: {', '.join(pipe.classes)}")
    else:
        pipe = zeroshift.pipeline(given.encoder, names, "anchored_mixture_online", reject=True)
    before = ""
    try:
        for when, image in frames(given.source, given.fps, given.watch):
            best = pipe(image, top_k=1)[0]  # answers, then learns
            if best["label"] != before:
                print(f"{when}  {best['label']}  {best['score']:.2f}", flush=True)
                before = best["label"]
    except KeyboardInterrupt:
        pass
    if given.state:
        pipe.save(given.state)
    print(f"{pipe.method.n_seen} frames learned")


if __name__ == "__main__":
    main()

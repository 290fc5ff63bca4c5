"""Classify the images of a FiftyOne dataset into a field of it.

    python examples/fiftyone_dataset.py photos --classes cat,dog,horse --encoder composed

Needs `pip install fiftyone`.
"""

from __future__ import annotations

import argparse

import fiftyone
import numpy as np

import zeroshift


def classify(dataset: fiftyone.core.collections.SampleCollection, pipe: zeroshift.Pipeline, field: str) -> None:
    """Write a `Classification` with label, confidence and entropy for every sample."""
    answers = pipe(dataset.values("filepath"))  # learned as a whole
    found = []
    for answer in answers:
        scores = np.array([one["score"] for one in answer])
        entropy = float(-(scores * np.log(np.maximum(scores, 1e-12))).sum())
        best = answer[0]
        found.append(fiftyone.Classification(label=best["label"], confidence=best["score"], entropy=entropy))
    dataset.set_values(field, found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--classes", required=True, help="names with commas between them")
    parser.add_argument("--encoder", default="openai/clip-vit-base-patch16")
    parser.add_argument("--field", default="zeroshift")
    given = parser.parse_args()
    dataset = fiftyone.Dataset.from_images_dir(given.folder)
    names = [name.strip() for name in given.classes.split(",")]
    classify(dataset, zeroshift.pipeline(given.encoder, names, reject=True), given.field)
    print(dataset.count_values(f"{given.field}.label"))
    view = dataset.sort_by(f"{given.field}.confidence")  # the least certain first
    fiftyone.launch_app(view).wait()


if __name__ == "__main__":
    main()

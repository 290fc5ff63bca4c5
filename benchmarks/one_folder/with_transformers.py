import sys
from pathlib import Path

from transformers import pipeline

folder, model, classes = sys.argv[1], sys.argv[2], sys.argv[3].split(",")
classify = pipeline("zero-shot-image-classification", model=model, batch_size=32)
paths = sorted(map(str, Path(folder).iterdir()))
for path, answer in zip(paths, classify(paths, candidate_labels=classes), strict=True):
    print(path, answer[0]["label"], answer[0]["score"])

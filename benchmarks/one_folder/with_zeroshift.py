import sys
from pathlib import Path

from zeroshift import pipeline

folder, model, classes = sys.argv[1], sys.argv[2], sys.argv[3].split(",")
classify = pipeline(model, classes)
paths = sorted(Path(folder).iterdir())
for path, answer in zip(paths, classify(paths), strict=True):
    print(path, answer[0]["label"], answer[0]["score"])

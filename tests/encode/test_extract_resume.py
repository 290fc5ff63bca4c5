"""Extraction that is killed and resumed: the same file, and no finished shard computed twice."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

from encode.numpy_encoder import VANILLA, NumpyEncoder, bytes_of, image_set, write_images
from zeroshift.encode import extract
from zeroshift.encode.extraction.store import FeatureStore

TESTS = Path(__file__).parents[1]
COUNT, SHARD, KILLS = 80, 4, 4

PROGRAM = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from encode.numpy_encoder import VANILLA, NumpyEncoder, image_set
from zeroshift.encode import extract

encoder = NumpyEncoder(batch_size=3, batch_dependent=True, pause=0.05)
extract(image_set(Path({folder!r})), encoder, VANILLA, cache=Path({cache!r}), workers={workers}, shard_rows={shard})
"""


def parts(cache: Path) -> list[Path]:
    return sorted(cache.glob("images/*/part-*.safetensors"))


def killed(cache: Path, program: str, rng: random.Random) -> None:
    """Run until some more shards are on the disk, a moment longer, and no further."""
    enough = len(parts(cache)) + rng.randint(1, 3)
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        while len(parts(cache)) < enough:
            assert process.poll() is None, "it ended by itself"
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.1))
        process.kill()


def test_the_file_is_the_same_however_often_the_run_was_killed(tmp_path):
    folder, cache = tmp_path / "pets", tmp_path / "cache"
    write_images(folder, COUNT)
    # These are read again by every run, and must not shift its batches.
    for name in ("a/0025.png", "a/0123.png", "b/0011.png"):
        (folder / name).write_bytes(b"no picture")
    shutil.copy(folder / "a/000.png", folder / "b/zzz.png")
    options = {"shard_rows": SHARD, "workers": 0}
    # Its features depend on the batch: a run that went on with other batches would show in every bit.
    encoder = NumpyEncoder(batch_size=3, batch_dependent=True)
    whole = extract(image_set(folder), encoder, VANILLA, cache=tmp_path / "fresh", **options)
    assert sum(encoder.batches) == COUNT
    assert len(whole.skipped) == 3

    rng = random.Random(0)
    for turn in range(KILLS):
        before = {path: path.read_bytes() for path in parts(cache)}
        settings = {"tests": str(TESTS), "folder": str(folder), "cache": str(cache), "shard": SHARD}
        killed(cache, PROGRAM.format(workers=turn % 2, **settings), rng)
        assert set(before) < set(parts(cache))
        assert all(path.read_bytes() == content for path, content in before.items())

    done = sum(len(FeatureStore(place)) for place in {path.parent for path in parts(cache)})
    encoder = NumpyEncoder(batch_size=3, batch_dependent=True)
    rest = extract(image_set(folder), encoder, VANILLA, cache=cache, **options)
    assert 0 < rest.computed == COUNT - done < COUNT
    assert encoder.prompts == []  # the text side was done before the first kill
    one, other = bytes_of(whole, tmp_path / "whole.safetensors"), bytes_of(rest, tmp_path / "rest.safetensors")
    assert one == other

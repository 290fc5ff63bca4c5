"""Checks of the state over time: it can be saved, loaded and copied exactly, and stays bounded."""

from __future__ import annotations

import copy
import tempfile
from functools import partial
from pathlib import Path

import numpy as np

from zeroshift.serialization import read_header
from zeroshift.testing.case import Case, assert_same, expect_error, fingerprint, reachable_bytes

__all__ = ["CHECKS"]


def saved_and_continued_bit_for_bit(case: Case) -> None:
    problem = case.problem(samples=100, seed=6)
    uninterrupted = case.create(problem.prototypes)
    first = case.create(problem.prototypes)
    size = first._adapted_together
    cut = 40 // size * size or size
    uninterrupted.adapt(problem.features[:cut])
    first.adapt(problem.features[:cut])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        before = fingerprint(first)
        first.save(path)
        assert fingerprint(first) == before, "save changed the method"
        second = case.load(path, first)
        assert [entry.name for entry in Path(folder).iterdir()] == [path.name], "save left other files"
    assert fingerprint(second.get_params()) == fingerprint(first.get_params()), "parameters of the loaded method"
    assert second.n_seen == first.n_seen, "n_seen of the loaded method"
    assert_same(second.predict(problem.features), first.predict(problem.features), "predict after load")
    rest = problem.features[cut:]
    assert_same(second.adapt(rest), uninterrupted.adapt(rest), "the stream resumed after load")
    assert_same(second.predict(rest), uninterrupted.predict(rest), "predict at the end")


def state_file_says_what_it_is(case: Case) -> None:
    problem = case.problem()
    method = case.create(problem.prototypes)
    method.adapt(problem.features)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        method.save(path)
        header = read_header(path)
        assert header["method"] == case.cls.name, "the header names another method"
        assert (header["classes"], header["dimension"]) == problem.prototypes.shape, "class count and dimension"
        for key in ("schema", "parameters", "dtype", "library", "zeroshift"):
            assert key in header, f"the header has no {key!r}"
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        expect_error(partial(case.load, path, method), str(path), what="a truncated state file")


def deep_copy_keeps_what_was_learned(case: Case) -> None:
    problem = case.problem()
    method = case.create(problem.prototypes)
    method.adapt(problem.features[:24])
    twin = copy.deepcopy(method)
    before = fingerprint(method)
    answer = twin.adapt(problem.features[24:])
    assert fingerprint(method) == before, "adapting a deep copy changed the original"
    assert_same(method.adapt(problem.features[24:]), answer, "a deep copy predicts differently")


def memory_is_bounded(case: Case) -> None:
    """The state must not keep growing on a long stream."""
    problem = case.problem(classes=3, dimension=8, samples=600, seed=7)
    method = case.create(problem.prototypes)
    sizes = []
    for part in np.array_split(problem.features, 3):
        method.adapt(part)
        sizes.append(reachable_bytes(method))
    slack = 16 * problem.features[0].nbytes * method._adapted_together
    grown = sizes[2] - sizes[1]
    assert grown <= slack, f"the state grew by {grown} bytes between samples 400 and 600"


CHECKS = (
    saved_and_continued_bit_for_bit,
    state_file_says_what_it_is,
    deep_copy_keeps_what_was_learned,
    memory_is_bounded,
)

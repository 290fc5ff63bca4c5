"""Checks of what comes in: bad rows and shapes are refused by name, good arrays of every kind are left alone."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import numpy as np

from zeroshift.testing.case import Case, assert_same, expect_error, fingerprint

__all__ = ["CHECKS"]


def bad_rows_are_named(case: Case) -> None:
    """NaN, infinity, the zero vector and raw lengths are refused with their row; nothing is learned from the rest."""
    problem = case.problem()
    method = case.create(problem.prototypes)
    method.adapt(problem.features[:20])
    before = fingerprint(method)
    for value, word in ((np.nan, "NaN"), (np.inf, "infinite"), (-np.inf, "infinite")):
        features = problem.features.copy()
        features[17, 3] = value
        expect_error(partial(method.adapt, features), case.given, "row 17", word, what=f"{value} in adapt")
        expect_error(partial(method.predict, features), case.given, "row 17", word, what=f"{value} in predict")
    for factor, word in ((0.0, "zero"), (2.5, "unit length"), (1.03, "unit length"), (0.97, "unit length")):
        features = problem.features.copy()
        features[31] *= factor
        expect_error(partial(method.adapt, features), case.given, "row 31", word, what=f"a row of length {factor}")
    expect_error(partial(method.adapt, np.full(16, np.nan)), "row 0", "NaN", what="one NaN sample")
    assert fingerprint(method) == before, "refused input changed the state"


def wrong_shapes_are_refused(case: Case) -> None:
    problem = case.problem()
    method = case.create(problem.prototypes)
    before = fingerprint(method)
    for call in (method.adapt, method.predict):
        expect_error(partial(call, problem.features[:, :-1]), "d = 15", "d = 16", what="one column short")
        expect_error(partial(call, problem.features[None]), case.given, "dimensions", what="three dimensions")
        expect_error(partial(call, np.float64(1.0)), case.given, what="a scalar")
        expect_error(partial(call, problem.features[:0]), case.given, "empty", what="no rows")
        expect_error(partial(call, np.eye(16, dtype=int)), case.given, "int", what="integers")
        expect_error(partial(call, problem.features.astype(complex)), case.given, "complex", what="complex numbers")
        expect_error(partial(call, problem.features.tolist()), case.given, "list", what="a list")
        expect_error(partial(call, None), case.given, "None", what="None")
        masked = problem.features.view(np.ma.MaskedArray)
        expect_error(partial(call, masked), case.given, "MaskedArray", what="a masked array")
    assert fingerprint(method) == before, "refused input changed the state"


def inputs_are_untouched_and_not_aliased(case: Case) -> None:
    problem = case.problem()
    features, prototypes = problem.features.copy(), problem.prototypes.copy()
    method = case.create(prototypes)
    answer = method.adapt(features)
    assert_same(features, problem.features, "features after adapt")
    assert_same(prototypes, problem.prototypes, "prototypes after adapt")
    before = fingerprint(method)
    features[:], prototypes[:], answer[:] = 0, 0, 0
    method.get_params()["prototypes"][:] = 0
    assert fingerprint(method) == before, "writing into the caller's arrays changed the method"


def read_only_and_mapped_arrays_work(case: Case) -> None:
    """Arrays that cannot be written to, memory-mapped files, and arrays laid out column by column."""
    problem = case.problem()
    expected = case.create(problem.prototypes).adapt(problem.features)
    locked = problem.features.copy()
    locked.flags.writeable = False
    locked_prototypes = problem.prototypes.copy()
    locked_prototypes.flags.writeable = False
    assert_same(case.create(locked_prototypes).adapt(locked), expected, "read-only arrays")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "features.npy"
        np.save(path, problem.features)
        mapped = np.load(path, mmap_mode="r")
        assert_same(case.create(problem.prototypes).adapt(mapped), expected, "memory-mapped features")
        del mapped
    columnwise = np.asfortranarray(problem.features)
    every_other = np.repeat(problem.features, 2, axis=0)[::2]
    assert_same(case.create(problem.prototypes).adapt(columnwise), expected, "column-major features", tolerance=1e-9)
    assert_same(case.create(problem.prototypes).adapt(every_other), expected, "strided features", tolerance=1e-9)


CHECKS = (
    bad_rows_are_named,
    wrong_shapes_are_refused,
    inputs_are_untouched_and_not_aliased,
    read_only_and_mapped_arrays_work,
)

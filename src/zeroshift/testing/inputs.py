"""Checks of the inputs: invalid rows and shapes raise helpful errors, valid arrays stay unchanged, edge cases work."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import numpy as np

from zeroshift.testing.case import Case, assert_same, expect_error, fingerprint

__all__ = ["EDGE_CHECKS", "INPUT_CHECKS"]


def bad_rows_are_named(case: Case) -> None:
    """NaN, infinity, zero vectors and rows without unit length are rejected by row number, and change no state."""
    problem = case.problem()
    method = case.create(problem.prototypes)
    method.adapt(problem.features[:20])
    before = fingerprint(method)
    for value, word in ((np.nan, "NaN"), (np.inf, "infinite"), (-np.inf, "infinite")):
        features = problem.features.copy()
        features[17, 3] = value
        expect_error(partial(method.adapt, features), case.input_name, "row 17", word, what=f"{value} in adapt")
        expect_error(partial(method.predict, features), case.input_name, "row 17", word, what=f"{value} in predict")
    for factor, word in ((0.0, "zero"), (2.5, "unit length"), (1.03, "unit length"), (0.97, "unit length")):
        features = problem.features.copy()
        features[31] *= factor
        expect_error(partial(method.adapt, features), case.input_name, "row 31", word, what=f"a row of length {factor}")
    expect_error(partial(method.adapt, np.full(16, np.nan)), "row 0", "NaN", what="one NaN sample")
    assert fingerprint(method) == before, "rejected input changed the state"


def wrong_shapes_are_refused(case: Case) -> None:
    problem = case.problem()
    method = case.create(problem.prototypes)
    before = fingerprint(method)
    for call in (method.adapt, method.predict):
        expect_error(partial(call, problem.features[:, :-1]), "d = 15", "d = 16", what="one column short")
        expect_error(partial(call, problem.features[None]), case.input_name, "dimensions", what="three dimensions")
        expect_error(partial(call, np.float64(1.0)), case.input_name, what="a scalar")
        expect_error(partial(call, problem.features[:0, :-1]), case.input_name, what="no rows of another length")
        assert_same(call(problem.features[:0]), np.zeros((0, method.n_classes)), "the answer to no rows")
        expect_error(partial(call, np.eye(16, dtype=int)), case.input_name, "int", what="integers")
        expect_error(
            partial(call, problem.features.astype(complex)), case.input_name, "complex", what="complex numbers"
        )
        expect_error(partial(call, problem.features.tolist()), case.input_name, "list", what="a list")
        expect_error(partial(call, None), case.input_name, "None", what="None")
        masked = problem.features.view(np.ma.MaskedArray)
        expect_error(partial(call, masked), case.input_name, "MaskedArray", what="a masked array")
    assert fingerprint(method) == before, "rejected input changed the state"


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
    """Read-only arrays, memory-mapped files, and arrays in column-major order."""
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


INPUT_CHECKS = (
    bad_rows_are_named,
    wrong_shapes_are_refused,
    inputs_are_untouched_and_not_aliased,
    read_only_and_mapped_arrays_work,
)


def _check_outputs(case: Case, features: np.ndarray, prototypes: np.ndarray, what: str) -> np.ndarray:
    method = case.create(prototypes)
    for call, answer in (("adapt", method.adapt(features)), ("predict", method.predict(features))):
        assert np.isfinite(answer).all(), f"{what}: {call} is not finite"
        assert_same(answer.sum(axis=1), np.ones(len(features)), f"{what}: row sums of {call}", tolerance=1e-9)
    return case.create(prototypes).adapt(features)


def one_class(case: Case) -> None:
    problem = case.problem(classes=1, samples=30)
    answer = _check_outputs(case, problem.features, problem.prototypes, "one class")
    assert_same(answer, np.ones((30, 1)), "one class", tolerance=1e-12)


def two_classes(case: Case) -> None:
    problem = case.problem(classes=2, samples=60, noise=0.5)
    answer = _check_outputs(case, problem.features, problem.prototypes, "two classes")
    assert (answer.argmax(axis=1) == problem.labels).mean() > 0.6, "two well separated classes are not distinguished"


def one_sample(case: Case) -> None:
    problem = case.problem(samples=1)
    _check_outputs(case, problem.features, problem.prototypes, "one sample")


def more_dimensions_than_samples(case: Case) -> None:
    problem = case.problem(dimension=64, samples=10)
    _check_outputs(case, problem.features, problem.prototypes, "d > N")


def all_samples_equal(case: Case) -> None:
    problem = case.problem()
    answer = _check_outputs(case, np.repeat(problem.features[:1], 40, axis=0), problem.prototypes, "all samples equal")
    if case.cls.protocol == "transductive":
        assert_same(answer, np.repeat(answer[:1], 40, axis=0), "equal samples, equal answers", tolerance=1e-12)


def samples_on_their_prototypes(case: Case) -> None:
    """Every sample equals a prototype, so there is no variance."""
    problem = case.problem()
    labels = np.arange(30) % len(problem.prototypes)
    answer = _check_outputs(case, problem.prototypes[labels], problem.prototypes, "samples on their prototypes")
    assert (answer.argmax(axis=1) == labels).all(), "a sample equal to a prototype gets another class"


def absent_class(case: Case) -> None:
    problem = case.problem(classes=6, samples=80)
    kept = problem.features[problem.labels != 2]
    _check_outputs(case, kept, problem.prototypes, "a class that never appears")


def class_opposite_to_everything(case: Case) -> None:
    """A prototype so far away that its posterior underflows to zero."""
    problem = case.problem()
    prototypes = problem.prototypes.copy()
    prototypes[4] = -problem.features.mean(axis=0) / np.linalg.norm(problem.features.mean(axis=0))
    scaled = {"logit_scale": 1000.0} if "logit_scale" in case.cls.parameter_names() else {}
    answer = case.create(prototypes, **scaled).adapt(problem.features)
    assert np.isfinite(answer).all(), "a class of vanishing posterior: not finite"


def duplicate_prototypes(case: Case) -> None:
    problem = case.problem()
    prototypes = problem.prototypes.copy()
    prototypes[3] = prototypes[1]
    _check_outputs(case, problem.features, prototypes, "duplicate prototypes")


def cosines_of_both_signs(case: Case) -> None:
    problem = case.problem(cone=0.0, gap=0.0, samples=60)
    assert (problem.features @ problem.features.T < 0).any(), "the problem has no negative cosine"
    _check_outputs(case, problem.features, problem.prototypes, "negative cosines")


EDGE_CHECKS = (
    one_class,
    two_classes,
    one_sample,
    more_dimensions_than_samples,
    all_samples_equal,
    samples_on_their_prototypes,
    absent_class,
    class_opposite_to_everything,
    duplicate_prototypes,
    cosines_of_both_signs,
)

CHECKS = (*INPUT_CHECKS, *EDGE_CHECKS)

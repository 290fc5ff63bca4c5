"""Checks across array libraries and precisions: the same numbers, returned in the library of the input."""

from __future__ import annotations

import importlib
import importlib.util
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from zeroshift.testing.case import Case, NotApplicable, assert_same, fingerprint

__all__ = ["CHECKS"]

SAMPLES, HALF = 24, 16
"""Few: each check runs the method several times, and what a library does to one sample it does to all."""


def _torch() -> Any:
    """The torch module; zeroshift itself never imports it."""
    if importlib.util.find_spec("torch") is None:
        raise NotApplicable("torch is not installed")
    return importlib.import_module("torch")


def numpy_precisions(case: Case) -> None:
    """float64 input gives float64; float32 and float16 give float32, close to the float64 numbers."""
    problem = case.problem(samples=SAMPLES)
    for dtype, answer_dtype, tolerance in ((np.float32, np.float32, 1e-4), (np.float16, np.float32, 1e-4)):
        features = problem.features.astype(dtype)
        answer = case.create(problem.prototypes).adapt(features)
        assert answer.dtype == answer_dtype, f"{dtype.__name__} features gave {answer.dtype}"
        expected = case.create(problem.prototypes).adapt(features.astype(np.float64))
        assert expected.dtype == np.float64, f"float64 features gave {expected.dtype}"
        assert_same(answer, expected, f"{dtype.__name__} features", tolerance=tolerance)


def torch_equals_numpy(case: Case) -> None:
    torch = _torch()
    problem = case.problem(samples=SAMPLES)
    features, prototypes = torch.tensor(problem.features), torch.tensor(problem.prototypes)
    reference, method = case.create(problem.prototypes), case.create(prototypes)
    expected = reference.adapt(problem.features)
    answer = method.adapt(features)
    assert isinstance(answer, torch.Tensor), f"torch features gave {type(answer).__name__}"
    assert answer.dtype == torch.float64, f"float64 features gave {answer.dtype}"
    assert answer.device == features.device, f"features on {features.device} gave an answer on {answer.device}"
    assert_same(answer, expected, "torch against numpy", tolerance=1e-9)
    assert_same(method.predict(features[0]), reference.predict(problem.features[0]), "predict", tolerance=1e-9)


def torch_half_precision(case: Case) -> None:
    torch = _torch()
    problem = case.problem(samples=SAMPLES)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        features = torch.tensor(problem.features).to(dtype)
        method = case.create(torch.tensor(problem.prototypes, dtype=torch.float32).to(dtype))
        answer = method.adapt(features)
        assert answer.dtype == torch.float32, f"{dtype} features gave {answer.dtype}"
        wide = case.create(method.prototypes.to(torch.float64)).adapt(features.to(torch.float64))
        assert_same(answer, wide, f"{dtype} features", tolerance=1e-4)


def torch_gradients_are_left_alone(case: Case) -> None:
    torch = _torch()
    problem = case.problem(samples=SAMPLES)
    features = torch.tensor(problem.features, requires_grad=True)
    answer = case.create(torch.tensor(problem.prototypes, requires_grad=True)).adapt(features)
    assert not answer.requires_grad, "the answer carries a gradient graph"


def torch_modes_do_not_matter(case: Case) -> None:
    """A method created or used under inference_mode or autocast predicts the same and stays usable."""
    torch = _torch()
    problem = case.problem(samples=SAMPLES)
    features, prototypes = torch.tensor(problem.features), torch.tensor(problem.prototypes)
    expected = case.create(prototypes).adapt(features)
    with torch.inference_mode():
        method = case.create(prototypes * 1.0)
        first = method.adapt(features[:HALF] * 1.0)
    if case.cls.protocol == "online":
        second = method.adapt(features[HALF:])
        assert_same(torch.cat([first, second]), expected, "begun under inference_mode", tolerance=1e-9)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        narrow = case.create(prototypes.to(torch.float32)).adapt(features.to(torch.float32))
    wide = case.create(prototypes.to(torch.float32)).adapt(features.to(torch.float32))
    assert_same(narrow, wide, "under autocast", tolerance=1e-6)


def torch_state_is_saved_and_loaded(case: Case) -> None:
    """A torch state resumes bit for bit after saving and loading, and can be loaded into NumPy."""
    torch = _torch()
    problem = case.problem(samples=SAMPLES, seed=8)
    features = torch.tensor(problem.features)
    method = case.create(torch.tensor(problem.prototypes))
    method.adapt(features[:HALF])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        method.save(path)
        again, elsewhere = case.load(path, method), case.load(path, method, library="numpy")
    assert isinstance(again.prototypes, torch.Tensor), "a state saved from torch was not loaded into it"
    expected = method.adapt(features[HALF:])
    assert_same(again.adapt(features[HALF:]), expected, "the stream resumed after load")
    assert_same(elsewhere.adapt(problem.features[HALF:]), expected, "resumed in NumPy", tolerance=1e-9)


def libraries_may_be_mixed(case: Case) -> None:
    """The state uses the library of the prototypes; predictions use the library of the features."""
    torch = _torch()
    problem = case.problem(samples=SAMPLES)
    expected = case.create(problem.prototypes).adapt(problem.features)
    answer = case.create(problem.prototypes).adapt(torch.tensor(problem.features))
    assert isinstance(answer, torch.Tensor), "torch features, numpy prototypes: the answer is not a tensor"
    assert_same(answer, expected, "torch features, numpy prototypes", tolerance=1e-9)
    method = case.create(torch.tensor(problem.prototypes))
    features = problem.features.copy()
    features.flags.writeable = False
    answer = method.adapt(features)
    assert isinstance(answer, np.ndarray), "numpy features, torch prototypes: the answer is not an array"
    assert_same(answer, expected, "numpy features, torch prototypes", tolerance=1e-9)
    before = fingerprint(method)
    answer[:] = 0
    assert fingerprint(method) == before, "the answer aliases the state"


CHECKS = (
    numpy_precisions,
    torch_equals_numpy,
    torch_half_precision,
    torch_gradients_are_left_alone,
    torch_modes_do_not_matter,
    torch_state_is_saved_and_loaded,
    libraries_may_be_mixed,
)

"""Every method on a CUDA device against NumPy: same numbers, results on the device, portable state.

    python benchmarks/cuda_parity.py                               (exits with 1 if a claim does not hold)
    python benchmarks/cuda_parity.py --methods tda,dota --parts problems

One run checks every claim about CUDA, in more than ten minutes. It needs torch with CUDA; `src` must be importable.
"""

from __future__ import annotations

import argparse
import copy
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from zeroshift import FeatureSet, OnlineADAPT, OnlineAnchoredMixture, TransductiveAnchoredMixture, data, normalize
from zeroshift.arrays import to_numpy
from zeroshift.benchmarks.problems import clip_like
from zeroshift.evaluate.streams import bursts
from zeroshift.method import ViewMethod
from zeroshift.methods import MethodInfo, create, list_methods
from zeroshift.testing import Case, make_problem
from zeroshift.testing.threads import adapt_in_threads

TOLERANCE = 1e-9
HALF_TOLERANCE = 1e-4
SCORES = 1e-6
OTHER_PREDICTIONS = 1  # of 1500: float16 features in float32 may settle a near tie otherwise
MODELLED = 200
"""Samples for methods that compute with a model: hundreds of small products each."""

DEVICE = torch.device("cuda", 0)
PROBLEMS = {
    "K=6 d=16": {"classes": 6, "dimension": 16, "samples": 300, "seed": 1},
    "K=60 d=128": {"classes": 60, "dimension": 128, "samples": 400, "seed": 2},
    "negative cosines": {"classes": 8, "dimension": 24, "samples": 300, "seed": 3, "cone": 0.0, "gap": 0.0},
    "d > N": {"classes": 5, "dimension": 256, "samples": 60, "seed": 4},
}


def worst(a: object, b: object) -> float:
    return float(np.max(np.abs(to_numpy(a).astype(np.float64) - to_numpy(b).astype(np.float64))))


def check(method: MethodInfo, geometry: dict[str, float]) -> dict[str, float]:
    """Largest differences of one method on one problem; AssertionError if a result is on the wrong device."""
    case, problem = Case(method.cls), make_problem(**geometry)  # type: ignore[arg-type]
    prototypes = torch.tensor(problem.prototypes, device=DEVICE)
    features = torch.tensor(problem.features, device=DEVICE)
    on_cpu, on_gpu = case.create(problem.prototypes), case.create(prototypes)
    expected, answer = on_cpu.adapt(problem.features), on_gpu.adapt(features)
    assert answer.device == DEVICE, f"the answer is on {answer.device}"
    for name in ("means", "precision_matrix", "bank_counts"):
        held = getattr(on_gpu, name, None)
        assert held is None or held.device == DEVICE, f"{name} is on {held.device}"
    assert (to_numpy(answer).argmax(1) == expected.argmax(1)).all(), "predictions differ"
    assert torch.equal(case.create(prototypes).adapt(features), answer), "a second run gives other bits"
    found = {
        "adapt": worst(answer, expected),
        "predict": worst(on_gpu.predict(features), on_cpu.predict(problem.features)),
    }
    if isinstance(on_gpu, ViewMethod):
        views = np.stack([problem.features, np.roll(problem.features, 1, axis=0)], axis=1)
        ours = case.create(prototypes).adapt_views(torch.tensor(views, device=DEVICE))  # type: ignore[attr-defined]
        found["views"] = worst(ours, case.create(problem.prototypes).adapt_views(views))  # type: ignore[attr-defined]

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        on_gpu.save(path)
        again = case.load(path, on_gpu)
        assert again.prototypes.device == DEVICE, "a state saved from the device was not loaded to it"
        assert torch.equal(again.adapt(features[:20]), on_gpu.adapt(features[:20])), (
            "the loaded state continues differently"
        )

    with torch.inference_mode(), torch.autocast("cuda", dtype=torch.bfloat16):
        begun = case.create(prototypes * 1.0)
        size = getattr(begun, "batch_size", None) or 1
        cut = min(-(-30 // size) * size, len(features))  # whole batches
        first = begun.adapt(features[:cut])
    if method.protocol == "online":
        rest = [begun.adapt(features[cut:])] if cut < len(features) else []
        found["modes"] = worst(torch.cat([first, *rest]), expected)

    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        narrow = features.to(dtype)
        fresh = case.create(prototypes)
        wide = fresh.clone().adapt(narrow.to(torch.float64))
        answer = fresh.adapt(narrow)
        assert answer.dtype == torch.float32, f"{dtype} gave {answer.dtype}"
        found[str(dtype).removeprefix("torch.")] = worst(answer, wide)
    return found


def resumed_graphs() -> dict[str, float]:
    """The recorded graphs of streaming after every way to obtain a state: loaded, copied, after replay, alternating.

    Largest differences of scores to `direct` in NumPy from the same file: of samples that enter no bank, which are the
    first after a recording, and of a stretch of new samples.
    """
    problem = clip_like(100, 128, 4000)
    features = torch.tensor(problem.features, dtype=torch.float64, device=DEVICE)
    prototypes = torch.tensor(problem.prototypes, dtype=torch.float64, device=DEVICE)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        for engine in ("streaming", "auto"):
            adapter = OnlineADAPT(prototypes, logit_scale=problem.logit_scale, engine=engine)
            adapter.adapt(features[:2500])
            adapter.save(path)
            reference = OnlineADAPT.load(path, library="numpy", engine="direct")
            loaded, copied = OnlineADAPT.load(path, engine=engine), copy.deepcopy(adapter)
            # Seen before, and not more confident than the banks' entries: nothing enters.
            again = [row for row in range(300) if not torch.equal(features[row], features[row + 1])][:40]
            rows = [*again, *range(2500, 2700)]
            expected = np.stack([reference.adapt_scores(problem.features[row].astype(np.float64)) for row in rows])
            for name, method in (("original", adapter), ("loaded", loaded), ("copied", copied)):
                scores = torch.stack([method.adapt_scores(features[row]) for row in rows])
                found[f"{engine} {name}"] = worst(scores, expected)
        adapter = OnlineADAPT(prototypes, logit_scale=problem.logit_scale, engine="auto")
        reference = OnlineADAPT(to_numpy(prototypes), logit_scale=problem.logit_scale, engine="direct")
        for start, stop in ((0, 700), (700, 703), (703, 1500), (1500, 1560), (1560, 2600)):
            expected = reference.adapt_scores(problem.features[start:stop].astype(np.float64))
            turn = worst(adapter.adapt_scores(features[start:stop]), expected)
            found["alternating"] = max(found.get("alternating", 0.0), turn)
    return found


THREADS = 4


def in_threads() -> dict[str, float]:
    """Largest difference between `THREADS` threads and one: with an object that they share, in the order in which the
    calls ran, and with an object for each."""
    problem = clip_like(60, 128, 600, seed=5)
    features, prototypes = (torch.tensor(array, device=DEVICE) for array in (problem.features, problem.prototypes))
    probe, parts = features[:3], list(features.split(1))
    created = [OnlineADAPT(prototypes) for _ in range(2 + THREADS)]
    shared, reference, *own = created
    run = adapt_in_threads(shared, parts, probe, adapting=THREADS, predicting=1)
    for error in run.errors:
        raise error
    found = {"shared": max(worst(run.answers[part], reference.adapt(parts[part])) for part in run.order)}
    found["shared, predict"] = worst(shared.predict(probe), reference.predict(probe))
    reference.reset()
    reference.adapt(features[:100])
    expected = torch.cat([reference.adapt(part) for part in parts])
    with ThreadPoolExecutor(THREADS) as pool:
        answers = pool.map(lambda each: (each.adapt(features[:100]), [each.adapt(part) for part in parts])[1], own)
        found["own"] = max(worst(torch.cat(answer), expected) for answer in answers)
    return found


def extra_inputs(method: MethodInfo, pack: FeatureSet) -> dict[str, object]:
    """What a method takes in addition to the prototypes, from a labelled pack."""
    rows = np.concatenate([np.flatnonzero(pack.labels == k)[:8] for k in range(pack.n_classes)])
    labelled = (np.asarray(pack.features)[rows], pack.labels[rows])
    given = {
        "support": labelled,
        "validation": labelled,
        "prompts": pack.prompts_of_each_class(),
        "unlabelled": np.asarray(pack.features)[:500],
        "scale": 100.0,
        "logit_scale": pack.logit_scale,
    }
    required = {parameter.name for parameter in method.parameters if parameter.required} | {"logit_scale"}
    return {name: given[name] for name in required & given.keys() & set(method.cls.parameter_names())}


def on_pack(method: MethodInfo, pack: FeatureSet) -> bool:
    """Predictions on real features equal NumPy's. Methods that need a model get the models of the checks."""
    case = Case(method.cls, extra_inputs(method, pack))
    pack = pack.subset(range(MODELLED)) if method.cls.model_parameters else pack
    adapter = case.create(torch.tensor(pack.prototypes_for(), device=DEVICE))
    reference = case.create(pack.prototypes_for())
    features = torch.tensor(pack.features, device=DEVICE)
    began = time.perf_counter()
    answer = to_numpy(adapter.adapt(features))
    seconds = time.perf_counter() - began
    expected = reference.adapt(pack.features)
    other = int((answer.argmax(1) != expected.argmax(1)).sum())
    top1 = 100 * float((answer.argmax(1) == pack.labels).mean())
    good = other <= OTHER_PREDICTIONS
    print(
        f"{'ok ' if good else 'BAD'} {method.name:28s} {pack.n_samples} samples of cifar10: top-1 {top1:.2f} %, "
        f"{seconds:.2f} s, {other} predictions other than NumPy's",
        flush=True,
    )
    return good


FILTERED = ("zero_shot+filter", "tda+filter", "adapt_online+filter")


def in_order(pack: FeatureSet) -> dict[str, float]:
    """Bursts of one class: filtered, late and smoothed answers, a second encoder, forgetting."""
    rows = bursts(pack.labels, seed=0).rows
    prototypes, x = np.asarray(pack.prototypes_for(), np.float64), np.asarray(pack.features, np.float64)[rows]
    other = normalize(x @ np.random.default_rng(0).normal(size=(x.shape[1], 64)))
    online, scale = OnlineAnchoredMixture, {"logit_scale": pack.logit_scale}
    runs = {
        "adapt": lambda t, x, v: online(t, **scale).adapt(x),
        "late": lambda t, x, v: online(t, lag=3, **scale).adapt_late(x),
        "smooth": lambda t, x, v: online(t, **scale).smooth(x),
        "forgetting": lambda t, x, v: online(t, half_life=300.0, **scale).adapt(x),
        "second": lambda t, x, v: online(t, **scale).adapt(x, second=v),
        "second, transductive": lambda t, x, v: TransductiveAnchoredMixture(t, **scale).adapt(x, second=v),
        **{name: lambda t, x, v, name=name: create(name, t, **scale).adapt(x) for name in FILTERED},
    }
    on_device = [torch.tensor(array, device=DEVICE) for array in (prototypes, x, other)]
    return {name: worst(run(*on_device), run(prototypes, x, other)) for name, run in runs.items()}


PARTS = ("problems", "graphs", "threads", "order", "pack")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", help="names, separated by commas; all by default")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    arguments = parser.parse_args()
    wanted = None if arguments.methods is None else set(arguments.methods.split(","))
    chosen = [method for method in list_methods() if wanted is None or method.name in wanted]
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; largest difference to NumPy float64")
    failed = False
    for method in chosen if "problems" in arguments.parts else []:
        for name, geometry in PROBLEMS.items():
            try:
                found = check(method, geometry)
            except Exception as error:
                failed = True
                print(f"BAD {method.name:28s} {name:18s} {type(error).__name__}: {error}", flush=True)
                continue
            exact = [found[key] for key in ("adapt", "predict", "modes", "views") if key in found]
            good = max(exact) <= TOLERANCE and max(found.values()) <= HALF_TOLERANCE
            failed |= not good
            numbers = "  ".join(f"{key} {value:.1e}" for key, value in found.items())
            print(f"{'ok ' if good else 'BAD'} {method.name:28s} {name:18s} {numbers}", flush=True)

    if "graphs" in arguments.parts:
        found = resumed_graphs()
        failed |= not report("adapt_online, scores of recorded graphs", found, SCORES)
    if "threads" in arguments.parts:
        failed |= not report(f"adapt_online in {THREADS} threads", in_threads(), 0.0)
    pack = data.packs.load("cifar10")
    if "order" in arguments.parts:
        failed |= not report("in order", in_order(pack), TOLERANCE)
    for method in chosen if "pack" in arguments.parts else []:
        failed |= not on_pack(method, pack)
    return int(failed)


def report(name: str, found: dict[str, float], tolerance: float) -> bool:
    good = max(found.values()) <= tolerance
    numbers = "  ".join(f"{key} {value:.1e}" for key, value in found.items())
    print(f"{'ok ' if good else 'BAD'} {name}: {numbers}", flush=True)
    return good


if __name__ == "__main__":
    sys.exit(main())

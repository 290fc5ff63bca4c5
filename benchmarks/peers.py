"""Time of every published method compared with the authors' algorithm in plain torch (benchmarks/plain).

    python benchmarks/peers.py                                   everything that is not recorded yet
    python benchmarks/peers.py --methods tda dota --problems small --repeats 3
    python benchmarks/peers.py --device cuda

Both get the same float32 features and the same number of threads, in turns. The time is from the construction of the
method to its last answer, and the ratio is taken within each turn. Ours runs on torch tensors and, on the CPU, on NumPy
arrays. It gets the whole stream in one call, which it may exploit. Therefore online methods are also timed with one
sample per call (NumPy on the CPU, torch elsewhere), next to `OnlineADAPT` and the plain version's time per sample, in
turns of `TURN` samples. On a CPU with one thread this is processor time, without that of other programs.

Each run is recorded in peers.json next to this file when it ends, and the table is written to results/peers.md.
Recorded runs are not repeated unless --again is given.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sections import replace_section

import zeroshift
from plain import (
    ape,
    bca,
    boostadapter,
    clip_adapter,
    cosmic,
    dmn,
    dota,
    ecalp,
    freetta,
    frolic,
    gda_clip,
    histo_transclip,
    oga,
    onzeta,
    pta,
    stata,
    t3a,
    taskres,
    tda,
    timo,
    tip_adapter,
    tip_adapter_f,
    tip_x,
    transclip,
    zlap,
)
from zeroshift.arrays import Backend
from zeroshift.benchmarks.machine import BUSY, busy_cores, describe_environment
from zeroshift.benchmarks.problems import clip_like
from zeroshift.benchmarks.timing import Clock, limit_threads, time_spread
from zeroshift.files import atomic_path

RECORDS = Path(__file__).parent / "peers.json"
SHOTS, VALIDATION_SHOTS, PROMPTS, UNLABELLED = 4, 4, 8, 1000
EXTRA_A_CLASS = 24
"""Samples per class for the support, the validation set and the unlabelled samples; they are not predicted."""
PROMPT_NOISE = 0.5
SECOND_DIMENSION = 64
"""Of features that stand for those of a second encoder: a random nonlinear function of the first one's."""
WARM_UP = 64
STREAMED = 300
"""At most this many samples are passed one per call."""
TURN = 60
"""Of these; then the plain version has its turn, with all of them."""


class Peer(NamedTuple):
    plain: Callable[..., torch.Tensor]
    kind: str
    given: tuple[str, ...] = ()


FEW_SHOT = ("support", "validation")
PER_SAMPLE = ("features", "second")
"""Inputs with one row per sample, which a method gets with its calls."""
PEERS = {
    "tda": Peer(tda.scores, "online"),
    "dmn": Peer(dmn.scores, "online"),
    "dota": Peer(dota.scores, "online"),
    "bca": Peer(bca.scores, "online"),
    "oga": Peer(oga.scores, "online"),
    "t3a": Peer(t3a.scores, "online"),
    "ecalp": Peer(ecalp.scores, "online"),
    "onzeta": Peer(onzeta.scores, "online"),
    "pta": Peer(pta.scores, "online"),
    "freetta": Peer(freetta.scores, "online"),
    "boostadapter": Peer(boostadapter.scores, "online"),
    "cosmic": Peer(cosmic.scores, "online", ("second",)),
    "zlap_inductive": Peer(zlap.inductive_scores, "online", ("unlabelled",)),
    "transclip": Peer(transclip.scores, "transductive"),
    "histo_transclip": Peer(histo_transclip.scores, "transductive", ("prompts",)),
    "stata": Peer(stata.scores, "transductive"),
    "zlap": Peer(zlap.scores, "transductive"),
    "frolic": Peer(frolic.scores, "transductive", ("prompts",)),
    "tip_adapter": Peer(tip_adapter.scores, "few-shot", FEW_SHOT),
    "ape": Peer(ape.scores, "few-shot", FEW_SHOT),
    "tip_x": Peer(tip_x.scores, "few-shot", FEW_SHOT),
    "gda_clip": Peer(gda_clip.scores, "few-shot", FEW_SHOT),
    "timo": Peer(timo.scores, "few-shot", (*FEW_SHOT, "prompts")),
    "timo_s": Peer(timo.searched_scores, "few-shot", (*FEW_SHOT, "prompts")),
    "tip_adapter_f": Peer(tip_adapter_f.scores, "few-shot", FEW_SHOT),
    "taskres": Peer(taskres.scores, "few-shot", ("support",)),
    "clip_adapter": Peer(clip_adapter.scores, "few-shot", ("support",)),
}


class Size(NamedTuple):
    classes: int
    dimension: int
    online: int
    transductive: int


SIZES = {"small": Size(10, 256, 1500, 1500), "medium": Size(100, 512, 2000, 2000), "large": Size(1000, 512, 300, 3000)}
FEWER = {("medium", "dota"): 200, ("medium", "oga"): 200, ("large", "dota"): 20, ("large", "oga"): 40}
FEWER |= {("large", "frolic"): 300, ("medium", "freetta"): 200, ("large", "freetta"): 20}
FEWER |= {("medium", "cosmic"): 500, ("large", "cosmic"): 20}
"""Number of samples where the plain version would take many minutes."""
UNSEARCHED = {("large", "ape"), ("large", "tip_x")}
"""Without validation samples: the plain search of three parameters would take hours."""


@cache
def arrays(problem: str, samples: int) -> dict[str, Any]:
    """Every input that a method may need, in float32 NumPy."""
    size = SIZES[problem]
    extra = max(EXTRA_A_CLASS * size.classes, 2 * UNLABELLED)
    problem_data = clip_like(size.classes, size.dimension, samples + extra)
    rest, labels = problem_data.features[samples:], problem_data.labels[samples:]
    places = [np.flatnonzero(labels == k) for k in range(size.classes)]
    support = np.concatenate([rows[:SHOTS] for rows in places])
    validation = np.concatenate([rows[SHOTS : SHOTS + VALIDATION_SHOTS] for rows in places])
    noise = np.random.default_rng(0).standard_normal((size.classes, PROMPTS, size.dimension), np.float32)
    prompts = problem_data.prototypes[:, None] + PROMPT_NOISE * noise / np.sqrt(np.float32(size.dimension))
    mixing = np.random.default_rng(1).standard_normal((size.dimension, SECOND_DIMENSION), np.float32)
    second = np.tanh(2 * problem_data.features[:samples] @ mixing)
    return {
        "features": problem_data.features[:samples],
        "second": second / np.linalg.norm(second, axis=1, keepdims=True),
        "prototypes": problem_data.prototypes,
        "support": (rest[support], labels[support]),
        "validation": (rest[validation], labels[validation]),
        "prompts": prompts / np.linalg.norm(prompts, axis=2, keepdims=True),
        "unlabelled": rest[-UNLABELLED:],
    }


def to_torch(value: Any, device: str) -> Any:
    if isinstance(value, tuple):
        return tuple(to_torch(item, device) for item in value)
    return torch.from_numpy(np.ascontiguousarray(value)).to(device)


def measure(name: str, problem: str, device: str, repeats: int, threads: int, limit: float) -> dict[str, Any]:
    """One record: spreads of seconds and ratios, and whether the predictions are equal."""
    peer, size = PEERS[name], SIZES[problem]
    samples = FEWER.get((problem, name), size.online if peer.kind == "online" else size.transductive)
    given = arrays(problem, samples)
    left_out = {"validation"} if (problem, name) in UNSEARCHED else set()
    given = {key: given[key] for key in ("features", "prototypes", *peer.given) if key not in left_out}
    on_device = {key: to_torch(value, device) for key, value in given.items()}
    method = zeroshift.methods.get(name).cls
    implementations = {
        "plain": (plain_version(name, method), on_device),
        "torch": (partial(our_scores, method), on_device),
    }
    if device == "cpu":
        implementations["numpy"] = (implementations["torch"][0], given)
    backend = Backend.of(on_device["features"])
    clock = Clock(backend)
    with limit_threads(threads):
        for call, arguments in implementations.values():
            call(**{**arguments, **{name: arguments[name][:WARM_UP] for name in PER_SAMPLE if name in arguments}})
        seconds: dict[str, list[float]] = {who: [] for who in implementations}
        answers, busy, began = {}, [busy_cores() or 0.0], time.perf_counter()
        for turn in range(repeats):
            order = list(implementations)
            for who in order[turn % len(order) :] + order[: turn % len(order)]:
                call, arguments = implementations[who]
                took, answers[who] = clock.time(lambda call=call, arguments=arguments: call(**arguments))
                seconds[who].append(took)
            busy.append(busy_cores() or 0.0)
            if time.perf_counter() - began > limit:
                break
        streamed = None
        if peer.kind == "online":
            own = given if device == "cpu" else on_device
            timer = processor_seconds if device == "cpu" and threads == 1 else lambda call: clock.time(call)[0]
            streamed = time_one_by_one(method, own, implementations["plain"][0], on_device, timer)
    plain = seconds["plain"]
    ratios = {who: [a / b for a, b in zip(seconds[who], plain, strict=True)] for who in seconds if who != "plain"}
    predicted = {who: np.asarray(torch.as_tensor(answer).cpu()).argmax(1) for who, answer in answers.items()}
    return {
        "kind": peer.kind,
        "classes": size.classes,
        "dimension": size.dimension,
        "samples": samples,
        "seconds": {who: time_spread(taken) for who, taken in seconds.items()},
        "ratio": {who: time_spread(taken) for who, taken in ratios.items()},
        "same_predictions": {who: float(np.mean(predicted[who] == predicted["plain"])) for who in ratios},
        "streamed": streamed,
        "threads": threads,
        "busy_cores": max(busy),
        "surroundings": describe_environment(backend),
    }


def plain_version(name: str, method: type) -> Callable[..., torch.Tensor]:
    """The parameters that are compared with a method's defaults."""
    sparse = inspect.signature(method).parameters.get("sparse")
    return zlap.sparse_inductive_scores if sparse is not None and sparse.default is True else PEERS[name].plain


def our_scores(method: type, features: Any, prototypes: Any, **rest: Any) -> Any:
    calls = {name: rest.pop(name) for name in PER_SAMPLE if name in rest}
    return make_method(method, prototypes, **rest).adapt_scores(features, **calls)


def make_method(method: type, prototypes: Any, **rest: Any) -> Any:
    unknown = set(rest) - set(inspect.signature(method).parameters)
    if unknown:
        raise TypeError(f"{method.__name__} takes no {', '.join(sorted(unknown))}")
    return method(prototypes, **rest)


def processor_seconds(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def time_one_by_one(
    method: type,
    given: dict[str, Any],
    plain: Callable[..., Any],
    given_plain: dict[str, Any],
    timer: Callable[[Callable[[], object]], float],
) -> dict[str, dict[str, float]]:
    """Seconds per sample of a method and of OnlineADAPT, one sample per call, and of the plain version, which is a loop
    over samples anyway: what it computes before the loop is divided among them."""
    rows = {key: given[key][:STREAMED] for key in PER_SAMPLE if key in given}
    rest = {key: value for key, value in given.items() if key not in PER_SAMPLE}
    same_rows = {key: value[:STREAMED] if key in PER_SAMPLE else value for key, value in given_plain.items()}
    adapt = zeroshift.methods.create("adapt_online", given["prototypes"])
    adapters = {"method": make_method(method, **rest), "adapt_online": adapt}
    taken: dict[str, list[float]] = {who: [] for who in ("plain", *adapters)}
    features = rows.pop("features")
    for start in range(0, len(features), TURN):
        turn = range(start, min(start + TURN, len(features)))
        taken["plain"].append(timer(lambda: plain(**same_rows)) / len(features))
        # One after the other, not in turns of one sample: each would find the other's arrays in the processor's cache.
        for who, adapter in adapters.items():
            others = rows if who == "method" else {}
            calls = [partial(adapter.adapt, features[i], **{key: others[key][i] for key in others}) for i in turn]
            taken[who].append(sum(map(timer, calls)) / len(turn))
    return {who: time_spread(each) for who, each in taken.items()}


def run(names: list[str], problems: list[str], options: argparse.Namespace) -> dict[str, Any]:
    records: dict[str, Any] = json.loads(options.records.read_text())["records"] if options.records.exists() else {}
    known = {info.name for info in zeroshift.methods.list_methods()}
    for name in names:
        if name not in known:
            print(f"{name}: not registered, left out", file=sys.stderr)
            continue
        for problem in problems:
            key = f"{options.device}/{problem}/{name}"
            if key in records and not options.again:
                continue
            try:
                records[key] = measure(name, problem, options.device, options.repeats, options.threads, options.limit)
            except Exception as error:  # one method that fails must not cost the measurements of the others
                print(f"{key}: {type(error).__name__}: {error}", file=sys.stderr)
                continue
            print(line(key, records[key]), flush=True)
            with atomic_path(options.records) as temporary:
                temporary.write_text(json.dumps({"records": records}, indent=1, sort_keys=True) + "\n")
    return records


def line(key: str, record: dict[str, Any]) -> str:
    parts = [f"{who} {taken['median']:.3f} s" for who, taken in record["seconds"].items()]
    parts += [f"{who}/plain {_ratio(taken)}" for who, taken in record["ratio"].items()]
    return f"{key:32s} {'  '.join(parts)}  same {min(record['same_predictions'].values()):.4f}"


def table(records: dict[str, Any]) -> str:
    """The results as Markdown, from the records alone."""
    parts = []
    for device in sorted({key.split("/")[0] for key in records}):
        found = {tuple(key.split("/")[1:]): record for key, record in records.items() if key.startswith(f"{device}/")}
        ordered = [(name, p, found[p, name]) for name in PEERS for p in SIZES if (p, name) in found]
        parts += [_whole(ordered), _streamed(ordered), _where(ordered)]
    return "\n\n".join(part for part in parts if part)


def _whole(ordered: list[tuple[str, str, dict[str, Any]]]) -> str:
    lines = [
        "| method | K, d, N | plain torch, s | ours on torch, s | ratio (spread) | ours on NumPy, s | ratio (spread) "
        "| same predictions |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, _, record in ordered:
        cells = [name, f"{record['classes']}, {record['dimension']}, {record['samples']}"]
        cells.append(f"{record['seconds']['plain']['median']:.3g}")
        for who in ("torch", "numpy"):
            there = who in record["ratio"]
            cells.append(f"{record['seconds'][who]['median']:.3g}" if there else "-")
            cells.append(_ratio(record["ratio"][who]) if there else "-")
        cells.append(f"{100 * min(record['same_predictions'].values()):.1f} %")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _streamed(ordered: list[tuple[str, str, dict[str, Any]]]) -> str:
    rows = [(name, record) for name, _, record in ordered if record["streamed"]]
    if not rows:
        return ""
    lines = [
        "| one sample per call | K, d | ours, ms per sample | plain torch, ms per sample | ratio "
        "| `OnlineADAPT`, ms per sample |",
        "|---|---|---|---|---|---|",
    ]
    for name, record in rows:
        mine, plain, adapt = (1000 * record["streamed"][who]["median"] for who in ("method", "plain", "adapt_online"))
        cells = [name, f"{record['classes']}, {record['dimension']}", f"{mine:.3g}", f"{plain:.3g}"]
        lines.append(f"| {' | '.join([*cells, f'{mine / plain:.2f}', f'{adapt:.3g}'])} |")
    return "\n".join(lines)


def _where(ordered: list[tuple[str, str, dict[str, Any]]]) -> str:
    places, busy = set(), []
    for name, problem, record in ordered:
        found = record["surroundings"]
        at = found.get("device", f"{found['machine']}, {record['threads']} thread(s)")
        places.add(f"{at}, torch {found['torch']}, NumPy {found['numpy']}")
        if record["busy_cores"] > BUSY:
            busy.append(f"{name} {problem}")
    text = f"Measured on: {'; '.join(sorted(places))}. Medians over the repeats; spread: minimum to maximum."
    return text + (f" Measured while other programs used the machine: {', '.join(busy)}." if busy else "")


def _ratio(taken: dict[str, float]) -> str:
    return f"{taken['median']:.2f} ({taken['least']:.2f} to {taken['most']:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", choices=list(PEERS), default=list(PEERS), metavar="NAME")
    parser.add_argument("--problems", nargs="+", choices=list(SIZES), default=list(SIZES), metavar="SIZE")
    parser.add_argument("--repeats", type=int, default=5, help="turns of every implementation")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds after which no further turn starts")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--threads", type=int, default=1, help="threads of every implementation")
    parser.add_argument("--again", action="store_true", help="repeat runs that are recorded")
    parser.add_argument("--records", type=Path, default=RECORDS, help="file of the records")
    parser.add_argument("--print", action="store_true", help="print the section and leave the page unchanged")
    arguments = parser.parse_args()
    text = table(run(arguments.methods, arguments.problems, arguments))
    if not arguments.print:
        replace_section("peers", text)
    print(text)


if __name__ == "__main__":
    main()

"""Streams: still scenes, duplicates, sorted classes, lengths near 1, one class, one dimension, one sample."""

from __future__ import annotations

import itertools
import tempfile
import warnings
from pathlib import Path

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from fuzz.cases import METHODS, ONLINE, Stream, create, method_names, streams
from fuzz.harness import fuzzed
from fuzz.oracles import assert_answer, learned, parameters_of
from zeroshift import OnlineADAPT
from zeroshift.testing import Case

SPLIT_TOLERANCE = 1e-6
"""Of probabilities when the calls of a stream are split differently: replay forms other blocks."""

ENGINE_TOLERANCE = 1e-6
"""Of scores, as docs/engines.md states it."""


@fuzzed("streams", 100, name=method_names, stream=streams())
def any_stream_gives_probabilities(name: str, stream: Stream) -> None:
    method = create(name, stream.prototypes)
    n, k = stream.samples, stream.classes
    warnings.simplefilter("error", RuntimeWarning)
    assert_answer(method.adapt(stream.features), n, k, f"{name}.adapt")
    assert method.n_seen == n, f"{name}: n_seen is {method.n_seen} after {n} samples"
    before = learned(method)
    assert_answer(method.predict(stream.features), n, k, f"{name}.predict")
    assert learned(method) == before, f"{name}: predict changed what was learned"


@fuzzed("streams", 30, name=st.sampled_from(ONLINE), stream=streams(), cuts=st.lists(st.integers(0, 24), max_size=4))
def calls_do_not_show(name: str, stream: Stream, cuts: list[int]) -> None:
    if "calls_do_not_show_in_a_stream" in METHODS[name].check_exceptions:
        return
    whole, parts = create(name, stream.prototypes), create(name, stream.prototypes)
    size = whole._adapted_together
    expected = whole.adapt(stream.features)
    places = sorted({0, stream.samples, *(cut // size * size for cut in cuts if cut < stream.samples)})
    answers = [parts.adapt(stream.features[a:b]) for a, b in itertools.pairwise(places)]
    worst = np.abs(np.concatenate(answers) - expected).max()
    assert worst <= SPLIT_TOLERANCE, f"{name}: a stream in pieces differs by {worst:.2g}"
    assert parts.n_seen == whole.n_seen == stream.samples, f"{name}: n_seen {parts.n_seen} and {whole.n_seen}"


@fuzzed("streams", 30, name=method_names, stream=streams(), cut=st.integers(1, 24))
def saved_streams_resume_exactly(name: str, stream: Stream, cut: int) -> None:
    method = create(name, stream.prototypes)
    size = method._adapted_together
    cut = min(cut, stream.samples) // size * size or min(size, stream.samples)
    method.adapt(stream.features[:cut])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        method.save(path)
        again = Case(METHODS[name]).load(path, method)
        again.save(Path(folder) / "again.safetensors")
        assert path.read_bytes() == (Path(folder) / "again.safetensors").read_bytes(), f"{name}: saved again, differs"
    assert learned(again) == learned(method), f"{name}: the loaded state differs"
    assert parameters_of(again) == parameters_of(method), f"{name}: the loaded parameters differ"
    assert np.array_equal(again.predict(stream.features), method.predict(stream.features)), f"{name}: predict differs"
    rest = stream.features[cut:]
    if len(rest):
        assert np.array_equal(again.adapt(rest), method.adapt(rest)), f"{name}: the resumed stream differs"
        assert learned(again) == learned(method), f"{name}: the state after the resumed stream differs"


@fuzzed(
    "streams",
    12,
    name=method_names,
    stream=streams(),
    precision=st.sampled_from(["float64", "float32"]),
    mixed=st.booleans(),
)
def torch_gives_probabilities_of_its_own_kind(name: str, stream: Stream, precision: str, mixed: bool) -> None:
    """With features in torch, and prototypes in torch or, `mixed`, in NumPy."""
    import torch

    features = torch.tensor(np.array(stream.features), dtype=getattr(torch, precision))
    method = create(name, stream.prototypes if mixed else torch.tensor(np.array(stream.prototypes)))
    kept = features.clone()
    for call in (method.adapt, method.predict):
        answer = call(features)
        assert isinstance(answer, torch.Tensor), f"{name}: the answer is a {type(answer).__name__}"
        assert answer.dtype == features.dtype, f"{name}: the answer is {answer.dtype}"
        assert_answer(answer, stream.samples, stream.classes, f"{name}.{call.__name__}", tolerance=1e-5)
    assert torch.equal(features, kept), f"{name}: the features were changed"


LARGE_STREAMS = st.builds(
    Stream,
    kind=st.sampled_from(["still", "crowd", "ordinary", "duplicates", "sorted"]),
    classes=st.integers(2, 12),
    dimension=st.sampled_from([16, 48, 64, 96]),
    samples=st.sampled_from([150, 400]),
    seed=st.integers(0, 1000),
    distance=st.sampled_from([1e-1, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-12]),
)
"""Long enough for the maintained inverse and for replay."""


@fuzzed(
    "streams",
    12,
    stream=st.one_of(streams(max_samples=160, max_dimension=24), LARGE_STREAMS),
    engine=st.sampled_from(["auto", "streaming", "replay"]),
    alpha=st.sampled_from([0.0, 0.5, 0.9, 0.999, 1.0]),
    bank_size=st.sampled_from([1, 2, 4, 16, 400]),
    use_bank_term=st.booleans(),
    scale=st.sampled_from([1.0, 20.0, 100.0]),
)
def engines_agree_with_the_definition(
    stream: Stream, engine: str, alpha: float, bank_size: int, use_bank_term: bool, scale: float
) -> None:
    assume(stream.dimension > 1)  # in one, samples have no direction: docs/engines.md
    chosen = {"alpha": alpha, "bank_size": bank_size, "use_bank_term": use_bank_term, "logit_scale": scale}
    definition = OnlineADAPT(stream.prototypes, engine="direct", **chosen)
    expected = definition.adapt_scores(stream.features)
    method = OnlineADAPT(stream.prototypes, engine=engine, **chosen)
    answer = method.adapt_scores(stream.features)
    assert np.isfinite(answer).all(), f"{engine}: scores are not finite"
    worst = np.abs(answer - expected).max()
    assert worst <= ENGINE_TOLERANCE, f"{engine}: scores differ by {worst:.2g}"
    assert np.array_equal(method.bank_counts, definition.bank_counts), f"{engine}: the banks hold other samples"

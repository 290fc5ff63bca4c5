"""Products in float32: the answers are those of float64 products within 1e-4, and errors are found and reported."""

from __future__ import annotations

import numpy as np
import pytest

from mixture.sets import OWN_STREAMS, QUICK_STREAMS, few_classes, make_support, pack_stream
from streams import Stream
from zeroshift import OnlineAnchoredMixture, TransductiveAnchoredMixture, linalg, methods, normalize
from zeroshift.arrays import Backend
from zeroshift.benchmarks.problems import clip_like
from zeroshift.data import packs
from zeroshift.evaluate.streams import class_sorted
from zeroshift.mixture import scoring, transductive

TOLERANCE, NEAR_TIE = 1e-4, 2e-4
METHODS = (OnlineAnchoredMixture, TransductiveAnchoredMixture)
PACKS = ("cifar10", "cifar10c_fog_5", "fmnist")


def assert_kept_promise(found, exact):
    """Probabilities within the tolerance, and the same class unless the two largest are nearly equal."""
    assert np.abs(found - exact).max() <= TOLERANCE
    if exact.shape[1] > 1:
        top = np.sort(exact, axis=1)[:, -2:]
        clear = top[:, 1] - top[:, 0] > NEAR_TIE
        np.testing.assert_array_equal(found[clear].argmax(axis=1), exact[clear].argmax(axis=1))


def narrow(stream):
    return Stream(stream.features.astype(np.float32), stream.prototypes.astype(np.float32), stream.logit_scale)


def both(cls, stream, second=None, **parameters):
    """The method with float32 and with float64 products, after the same float32 features, and their answers."""
    found = []
    for precision in ("auto", "float64"):
        method = cls(stream.prototypes, logit_scale=stream.logit_scale, precision=precision, **parameters)
        found.append((method, method.adapt(stream.features, second=second)))
    return found


def assert_same(cls, stream, second=None, **parameters):
    (method, answer), (exact, expected) = both(cls, stream, second, **parameters)
    assert answer.dtype == np.float32
    assert_kept_promise(answer.astype(np.float64), expected.astype(np.float64))
    assert_kept_promise(method.predict(stream.features, second=second), exact.predict(stream.features, second=second))
    assert exact.diagnostics.products == "float64"
    return method


def pack_rows(name, order=None):
    pack = packs.load(name)
    rows = slice(None) if order is None else order(pack.labels, seed=0).rows
    return Stream(pack.features[rows].astype(np.float32), pack.prototypes_for(), pack.logit_scale)


@pytest.mark.parametrize("cls", METHODS, ids=lambda cls: cls.protocol)
@pytest.mark.parametrize("name", QUICK_STREAMS)
@pytest.mark.sampled(3)
def test_generated_streams(cls, name):
    assert_same(cls, narrow(QUICK_STREAMS[name]()))


@pytest.mark.parametrize("cls", METHODS, ids=lambda cls: cls.protocol)
@pytest.mark.parametrize("name", PACKS)
@pytest.mark.sampled(3)
def test_packs(cls, name):
    method = assert_same(cls, pack_rows(name))
    found = method.diagnostics
    assert found.products == "float32"
    assert found.float32_checks > 0
    assert 0 < found.largest_float32_error < TOLERANCE / 4
    assert found.float64_fallbacks == 0


@pytest.mark.parametrize("name", PACKS[:2])
@pytest.mark.parametrize("parameters", [{}, {"half_life": 300.0}, {"order": "none"}], ids=str)
@pytest.mark.sampled(5)
def test_packs_in_order_of_their_classes(name, parameters):
    method = assert_same(OnlineAnchoredMixture, pack_rows(name, class_sorted), **parameters)
    assert (method.stay > 0.5) == (method.order == "auto")


@pytest.mark.parametrize("cls", METHODS, ids=lambda cls: cls.protocol)
@pytest.mark.parametrize("geometry", ["clip_like", "clustered"])
@pytest.mark.sampled(3)
def test_many_classes(cls, geometry):
    problem = clip_like(300, 256, 1500, geometry=geometry)
    method = assert_same(cls, Stream(problem.features, problem.prototypes, problem.logit_scale))
    assert method.diagnostics.products == "float32"


@pytest.mark.parametrize("cls", METHODS, ids=lambda cls: cls.protocol)
@pytest.mark.parametrize("name", [*OWN_STREAMS])
def test_second_encoder(cls, name):
    stream = narrow(OWN_STREAMS[name]())
    draw = np.random.default_rng(3)
    mixed = stream.features @ draw.normal(size=(stream.features.shape[1], 10)).astype(np.float32)
    assert_same(cls, stream, normalize(mixed + 0.3 * draw.normal(size=mixed.shape).astype(np.float32)))


@pytest.mark.parametrize("cls", METHODS, ids=lambda cls: cls.protocol)
def test_support(cls):
    stream = few_classes()
    features, labels = make_support(stream, 3)
    assert_same(cls, narrow(stream), support=(features.astype(np.float32), labels))


@pytest.mark.parametrize("cls", METHODS, ids=lambda cls: cls.protocol)
@pytest.mark.parametrize("distance", [0.1, 3e-3, 3e-5])
def test_still_scenes(cls, distance):
    """Samples close together: what tells the classes apart is small next to what all features have in common."""
    problem = clip_like(5, 64, 300)
    near = normalize(problem.features[:1] + distance * (problem.features - problem.features.mean(axis=0)))
    assert_same(cls, Stream(near, problem.prototypes, problem.logit_scale))


def test_parts_of_a_set():
    stream = pack_rows("cifar10")
    shards = [stream.features[:700], stream.features[700:]]
    (narrow_method, _), (wide, _) = both(TransductiveAnchoredMixture, stream, rounds=4)
    answers = [np.concatenate(method.adapt_shards(shards)) for method in (narrow_method, wide)]
    assert_kept_promise(*answers)
    merged = [method.survey(shards[0]).merge(method.survey(shards[1])) for method in (narrow_method, wide)]
    assert merged[0].n_seen == len(stream.features)
    assert_kept_promise(*(method.predict(stream.features) for method in merged))


@pytest.mark.parametrize("cls", METHODS, ids=lambda cls: cls.protocol)
def test_torch(cls):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    stream = pack_rows("cifar10")
    method = cls(torch.tensor(stream.prototypes), logit_scale=stream.logit_scale)
    answer = method.adapt(torch.tensor(stream.features)).numpy()
    assert method.diagnostics.products == "float32"
    assert_kept_promise(answer, both(cls, stream)[1][1])


@pytest.mark.parametrize("stream_of", [few_classes, lambda: pack_rows("cifar10")], ids=["few classes", "pack"])
@pytest.mark.parametrize("cls", METHODS, ids=lambda cls: cls.protocol)
def test_operations_of_a_gpu(cls, stream_of, monkeypatch):
    """Torch on the CPU is treated as a GPU without tensor cores; benchmarks/cuda_mixture.py uses a real one."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    stream = narrow(stream_of())
    expected = both(cls, stream)[1][1]
    monkeypatch.setattr(Backend, "on_gpu", property(lambda backend: backend.library == "torch"))
    monkeypatch.setattr(linalg, "_multiplies_halves", lambda device: False)
    method = cls(torch.tensor(stream.prototypes), logit_scale=stream.logit_scale)
    answer = method.adapt(torch.tensor(stream.features)).numpy()
    assert method.diagnostics.products == "float32"
    assert method.diagnostics.float64_fallbacks == 0
    assert_kept_promise(answer, expected)
    again = method.predict(torch.tensor(stream.features)).numpy()
    assert_kept_promise(again, both(cls, stream)[1][0].predict(stream.features))


def multiply_halves(torch, monkeypatch):
    """Let torch's CPU be a GPU with tensor cores: it multiplies halves, and returns the product in float32."""
    used, mm, addmm = [], torch.mm, torch.addmm

    def product(a, b, out_dtype=None):
        if out_dtype is None:
            return mm(a, b)
        assert (a.dtype, b.dtype, out_dtype) == (torch.float16, torch.float16, torch.float32)
        used.append(tuple(a.shape))
        return mm(a.float(), b.float())

    def added(c, a, b, *, out_dtype=None, alpha=1.0, beta=1.0):
        if out_dtype is None:
            return addmm(c, a, b, alpha=alpha, beta=beta)
        return alpha * product(a, b, out_dtype) + (beta * c if beta else 0.0)

    monkeypatch.setattr(torch, "mm", product)
    monkeypatch.setattr(torch, "addmm", added)
    monkeypatch.setattr(Backend, "on_gpu", property(lambda backend: backend.library == "torch"))
    monkeypatch.setattr(linalg, "_multiplies_halves", lambda device: True)
    return used


@pytest.mark.parametrize("stream_of", [few_classes, lambda: pack_rows("cifar10")], ids=["few classes", "pack"])
@pytest.mark.parametrize("chunk_size", [None, 100])
def test_products_of_halves(stream_of, chunk_size, monkeypatch):
    """In all rounds and for answers, with rows and classes that do not divide evenly into chunks."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    stream = narrow(stream_of())
    (_, plain), (exact, expected) = both(TransductiveAnchoredMixture, stream)
    used = multiply_halves(torch, monkeypatch)
    for module, name in ((scoring, "HALF_ROWS"), (scoring, "HALF_CLASSES"), (transductive, "HALF_ROWS")):
        monkeypatch.setattr(module, name, 1)
    prototypes = torch.tensor(stream.prototypes)
    method = TransductiveAnchoredMixture(prototypes, logit_scale=stream.logit_scale, chunk_size=chunk_size)
    answer = method.adapt(torch.tensor(stream.features)).numpy()
    assert len(used) > 20
    assert method.diagnostics.products == "float32"
    assert method.diagnostics.float64_fallbacks == 0
    assert method.diagnostics.rounds == exact.diagnostics.rounds
    assert_kept_promise(answer, expected)
    assert np.abs(answer - expected).max() <= 10 * max(np.abs(plain - expected).max(), 1e-6)
    for name, sums in method._sums.arrays().items():
        np.testing.assert_allclose(sums.numpy(), getattr(exact._sums, name), rtol=1e-4, atol=1e-3, err_msg=name)


@pytest.mark.parametrize("cls", METHODS, ids=lambda cls: cls.protocol)
def test_half_precision_features_get_float32_products(cls):
    stream = pack_rows("cifar10")
    half = Stream(normalize(stream.features).astype(np.float16), stream.prototypes, stream.logit_scale)
    assert assert_same(cls, half).diagnostics.products == "float32"


@pytest.mark.parametrize("cls", METHODS, ids=lambda cls: cls.protocol)
def test_float64_features_get_float64_products(cls):
    stream = pack_stream(200)
    method = cls(stream.prototypes, logit_scale=stream.logit_scale)
    expected = method.adapt(stream.features)
    assert method.diagnostics.products == "float64"
    assert method.diagnostics.float32_checks == 0
    chosen = cls(stream.prototypes, logit_scale=stream.logit_scale, precision="float32")
    assert_kept_promise(chosen.adapt(stream.features), expected)
    assert chosen.diagnostics.products == "float32"


@pytest.mark.parametrize("cls", METHODS, ids=lambda cls: cls.protocol)
def test_a_scale_that_float32_does_not_resolve(cls):
    """With logits of 1e5, float32 products are wrong by a hundredth: float64 from the start."""
    stream = narrow(pack_stream(300))
    method = assert_same(cls, stream._replace(logit_scale=1e5))
    assert method.diagnostics.products == "float64"
    assert method.diagnostics.float64_fallbacks > 0


@pytest.mark.parametrize("cls", METHODS, ids=lambda cls: cls.protocol)
def test_a_failed_check_is_followed_by_float64_products(cls, monkeypatch):
    stream = pack_rows("cifar10")
    exact = both(cls, stream)[1][1]
    monkeypatch.setattr("zeroshift.mixture.base.FLOAT32_TOLERANCE", 1e-30)
    monkeypatch.setattr("zeroshift.mixture.scoring.float32_error", lambda *_: 0.0)
    method = cls(stream.prototypes, logit_scale=stream.logit_scale)
    answer = method.adapt(stream.features)
    found = method.diagnostics
    assert (found.products, found.float64_fallbacks) == ("float64", 1)
    assert found.largest_float32_error > 0
    np.testing.assert_allclose(answer, exact, rtol=0, atol=1e-6)
    method.reset()
    assert method.diagnostics == type(found)()


@pytest.mark.parametrize("cls", METHODS, ids=lambda cls: cls.protocol)
def test_a_saved_method_continues_bit_for_bit(cls, tmp_path):
    stream = pack_rows("cifar10")
    method = cls(stream.prototypes, logit_scale=stream.logit_scale)
    method.adapt(stream.features[:777])
    method.save(tmp_path / "state.safetensors")
    loaded = methods.load(tmp_path / "state.safetensors")
    np.testing.assert_array_equal(loaded.predict(stream.features), method.predict(stream.features))
    rest = stream.features[777:]
    np.testing.assert_array_equal(loaded.adapt(rest), method.adapt(rest))


def test_rounds_end_when_labels_stop_moving(monkeypatch):
    """Well separated classes: nothing moves after a few rounds, and further rounds would not change the answer."""
    problem = clip_like(20, 512, 1200)
    for features in (problem.features, problem.features.astype(np.float64)):
        found = {}
        for still in (transductive.STILL, -1.0):
            monkeypatch.setattr(transductive, "STILL", still)
            method = TransductiveAnchoredMixture(problem.prototypes, logit_scale=problem.logit_scale, rounds=12)
            answer = method.adapt(features)
            found[method.diagnostics.rounds] = answer
        monkeypatch.undo()
        fewer, all_rounds = found
        assert fewer < all_rounds == 12
        assert np.abs(found[fewer] - found[all_rounds]).max() < 1e-6


def test_rounds_go_on_while_labels_move():
    stream = pack_rows("fmnist")
    method = TransductiveAnchoredMixture(stream.prototypes, logit_scale=stream.logit_scale)
    method.adapt(stream.features)
    assert method.diagnostics.rounds == 10

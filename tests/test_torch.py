"""Frozen heads as torch modules, against NumPy."""

from __future__ import annotations

import copy
import io
import pickle

import numpy as np
import pytest

from zeroshift import OnlineADAPT, OnlineAnchoredMixture, TransductiveAnchoredMixture, ZeroShot
from zeroshift.data import packs
from zeroshift.methods import DMN, TDA, StatA

torch = pytest.importorskip("torch", reason="the extra `torch` brings it")

from zeroshift.torch import FrozenModule  # noqa: E402

METHODS = (ZeroShot, OnlineADAPT, OnlineAnchoredMixture, TransductiveAnchoredMixture, DMN, StatA, TDA)


@pytest.fixture(scope="module")
def pack():
    return packs.load("cifar10").subset(slice(0, 200))


@pytest.fixture(scope="module")
def heads(pack):
    found = {}
    for cls in METHODS:
        method = cls(pack.prototypes_for(), logit_scale=pack.logit_scale)
        method.adapt(pack.features)
        found[cls.name] = method.freeze(pack.class_names)
    return found


@pytest.fixture(scope="module")
def features(pack):
    return torch.tensor(np.asarray(pack.features, dtype=np.float32))


def error(answer, head, features) -> float:
    expected = head.predict(features.double().numpy())
    return float(np.abs(answer.double().numpy() - expected).max())


@pytest.mark.parametrize("name", [cls.name for cls in METHODS])
def test_module_equals_numpy(name, heads, features):
    module = FrozenModule(heads[name])
    single = module(features)
    assert (single.dtype, single.shape) == (torch.float32, (200, 10))
    assert error(single, heads[name], features) < 1e-7
    double = module(features.double())
    assert double.dtype == torch.float64
    assert error(double, heads[name], features) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_features(heads, features, dtype):
    head = heads["anchored_mixture_online"]
    answer = FrozenModule(head)(features.to(dtype))
    assert answer.dtype == torch.float32
    assert error(answer, head, features.to(dtype)) < 1e-7


def test_precision_of_the_module(heads, features):
    head = heads["anchored_mixture_online"]
    module = FrozenModule(head)
    assert {buffer.dtype for buffer in module.buffers()} == {torch.float64}
    assert {buffer.dtype for buffer in module.half().buffers()} == {torch.float64}
    assert {buffer.dtype for buffer in module.to(torch.bfloat16).float().buffers()} == {torch.float32}
    assert 1e-9 < error(module(features), head, features) < 1e-5
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert error(module(features), head, features) < 1e-5


def test_module_moves_between_devices(heads):
    """The meta device stands for another one; what is not moved would fail to multiply with what is."""
    module = FrozenModule(heads["adapt_online"]).to("meta")
    assert {buffer.device.type for buffer in module.buffers()} == {"meta"}
    assert module(torch.empty(3, 256, device="meta")).shape == (3, 10)


def test_state_dict(heads, features, tmp_path):
    head = heads["anchored_mixture_transductive"]
    module = FrozenModule(head)
    torch.save(module.state_dict(), tmp_path / "head.pt")
    other = FrozenModule(head)
    for buffer in other.buffers():
        buffer.zero_()
    assert error(other(features), head, features) > 0.1
    other.load_state_dict(torch.load(tmp_path / "head.pt", weights_only=True))
    assert error(other(features), head, features) < 1e-7
    assert not list(module.parameters())


def test_module_is_copied_pickled_and_part_of_others(heads, features):
    head = heads["tda"]
    model = torch.nn.Sequential(torch.nn.Identity(), FrozenModule(head)).half()
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert error(again(features), head, features) < 1e-7
    assert model[1].class_names[0] == "airplane"
    assert repr(model[1]).startswith("FrozenModule(tda, 10 classes, d = 256, matmul")


def test_gradients_reach_the_features(heads, features):
    x = features[:2].clone().requires_grad_()
    FrozenModule(heads["anchored_mixture_online"])(x)[:, 0].sum().backward()
    assert float(x.grad.abs().sum()) > 0.1


@pytest.mark.slow
def test_module_can_be_exported_by_torch(heads, features):
    head = heads["adapt_online"]
    rows = {"features": {0: torch.export.Dim("rows")}}
    program = torch.export.export(FrozenModule(head), (features,), dynamic_shapes=rows)
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    assert error(torch.export.load(buffer).module()(features[:7]), head, features[:7]) < 1e-7


def test_wrong_input():
    with pytest.raises(TypeError, match=r"head must be a FrozenHead; got ZeroShot. Fix: method.freeze\(\)"):
        FrozenModule(ZeroShot(np.eye(3)))
    with pytest.raises(TypeError, match=r"features must be a tensor; got ndarray. Fix: torch.as_tensor"):
        FrozenModule(ZeroShot(np.eye(3)).freeze())(np.eye(3))

"""ONNX files of frozen heads, run by onnxruntime, against NumPy."""

from __future__ import annotations

import json

import numpy as np
import pytest

from zeroshift import OnlineADAPT, TransductiveAnchoredMixture, ZeroShot, normalize
from zeroshift.data import packs
from zeroshift.frozen import OPERATIONS
from zeroshift.methods import list_methods
from zeroshift.testing import Case

onnx = pytest.importorskip("onnx", reason="the extra `onnx` brings it")
onnxruntime = pytest.importorskip("onnxruntime", reason="the extra `test` brings it")

from zeroshift.onnx import NODES, export, to_onnx  # noqa: E402

FREEZABLE = [info.name for info in list_methods() if info.cls.can_freeze()]
PARAMETERS = {"frolic": {"proxy_iterations": 60}, "coop": {"rate": 0.1}}
"""With which a method is fast, and the few steps of its example change the answers visibly."""
SAMPLES = 150

FLOAT32_ERRORS = {"adapt_online": 5e-5, "adapt_transductive": 5e-5, "timo": 2e-4, "timo_s": 2e-4, "gda_clip": 1e-3}
"""Of probabilities, as docs/integrations.md states them; 1e-5 for the others."""


FLOAT32_ROWS_ERRORS = {
    **{"adapt_online": 5e-5, "adapt_transductive": 5e-5, "timo": 1e-4, "timo_s": 1e-4},
    **{"gda_clip": 2e-4, "gda_pseudo": 2e-4},
}
"""The same for `predict` of float32 features, which rounds its products; 1e-5 for the others."""


def session(model):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    model = model if isinstance(model, str) else model.SerializeToString()
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def run(model, features):
    return session(model).run(["probabilities"], {"features": features.astype(np.float32)})[0]


@pytest.fixture(scope="module")
def sets():
    """Two bundled packs, in float32."""
    return {name: packs.load(name).subset(slice(0, SAMPLES)) for name in ("cifar10", "cifar10c_fog_5")}


@pytest.mark.parametrize("name", FREEZABLE)
def test_onnx_equals_numpy(name, sets):
    info = next(info for info in list_methods() if info.name == name)
    for pack in sets.values():
        scale = {"logit_scale": pack.logit_scale} if "logit_scale" in info.cls.parameter_names() else {}
        case = Case(info.cls, {**PARAMETERS.get(name, {}), **scale})
        method = case.create(np.asarray(pack.prototypes_for(), dtype=np.float64))
        features = np.asarray(pack.features, dtype=np.float32)
        method.adapt(features.astype(np.float64))
        expected = method.predict(features.astype(np.float64))
        answer = run(to_onnx(method.freeze()), features)
        assert answer.dtype == np.float32
        np.testing.assert_allclose(answer, expected, rtol=0, atol=1e-6)
        np.testing.assert_allclose(answer.sum(axis=1), 1, atol=1e-6)
        narrow = run(to_onnx(method.freeze(), precision="float32"), features)
        np.testing.assert_allclose(narrow, expected, rtol=0, atol=FLOAT32_ERRORS.get(name, 1e-5))
        if name != "zero_shot":
            before = ZeroShot(pack.prototypes_for(), logit_scale=pack.logit_scale).predict(features)
            assert np.abs(answer - before).max() > 1e-4  # it has learned something


@pytest.mark.parametrize("name", FREEZABLE)
def test_predict_of_float32_rows_differs_from_onnx_as_documented(name, sets):
    info = next(info for info in list_methods() if info.name == name)
    for pack in sets.values():
        scale = {"logit_scale": pack.logit_scale} if "logit_scale" in info.cls.parameter_names() else {}
        case = Case(info.cls, {**PARAMETERS.get(name, {}), **scale})
        method = case.create(np.asarray(pack.prototypes_for(), dtype=np.float32))
        features = np.asarray(pack.features, dtype=np.float32)
        method.adapt(features)
        answer = run(to_onnx(method.freeze()), features)
        tolerance = FLOAT32_ROWS_ERRORS.get(name, 1e-5)
        np.testing.assert_allclose(answer, method.predict(features), rtol=0, atol=tolerance)


def test_every_operation_has_nodes():
    assert set(NODES) == set(OPERATIONS)


@pytest.mark.parametrize("rows", [1, 7])
def test_the_number_of_rows_is_free(sets, rows):
    pack = sets["cifar10"]
    method = OnlineADAPT(pack.prototypes_for(), logit_scale=pack.logit_scale)
    method.adapt(pack.features)
    model = to_onnx(method.freeze())
    assert [dim.dim_param or dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim] == ["N", 256]
    np.testing.assert_allclose(run(model, pack.features[:rows]), method.predict(pack.features[:rows]), atol=1e-6)


def test_file_and_metadata(sets, tmp_path):
    pack = sets["cifar10"]
    mixture = TransductiveAnchoredMixture(pack.prototypes_for(), logit_scale=pack.logit_scale)
    mixture.adapt(pack.features)
    path = tmp_path / "head.onnx"
    names = ["Flugzeug", "Käfer", *pack.class_names[2:]]
    export(mixture.freeze(names, normalize=True), path)
    found = session(str(path))
    metadata = found.get_modelmeta().custom_metadata_map
    assert metadata["method"] == "anchored_mixture_transductive"
    assert {name: json.loads(metadata[name]) for name in metadata if name != "method"} == {
        "class_names": names,
        "logit_scale": pack.logit_scale,
        "n_seen": SAMPLES,
        "normalize": True,
    }
    features = normalize(np.asarray(pack.features, dtype=np.float64))
    answer = found.run(None, {"features": (5 * features).astype(np.float32)})[0]
    np.testing.assert_allclose(answer, mixture.predict(features), atol=1e-6)
    assert [file.name for file in tmp_path.iterdir()] == ["head.onnx"]


def test_float32_has_no_float64(sets):
    head = TransductiveAnchoredMixture(sets["cifar10"].prototypes_for()).freeze()
    model = to_onnx(head, precision="float32")
    assert "Cast" not in [node.op_type for node in model.graph.node]
    assert {tensor.data_type for tensor in model.graph.initializer} == {onnx.TensorProto.FLOAT}


def test_wrong_inputs(tmp_path):
    method = ZeroShot(np.eye(3))
    with pytest.raises(TypeError, match=r"head must be a FrozenHead; got ZeroShot. Fix: method.freeze\(\)"):
        export(method, tmp_path / "head.onnx")
    with pytest.raises(ValueError, match="precision must be one of 'float32', 'float64'; got 'float16'"):
        export(method.freeze(), tmp_path / "head.onnx", precision="float16")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        export(method.freeze(), tmp_path / "missing" / "head.onnx")
    assert not list(tmp_path.iterdir())

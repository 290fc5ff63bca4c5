"""A frozen classifier as an ONNX file (extra `onnx`): features in, probabilities out, for any number of rows.

>>> import numpy as np
>>> from zeroshift import ZeroShot
>>> from zeroshift.onnx import to_onnx
>>> head = ZeroShot(np.eye(2), logit_scale=5.0).freeze(class_names=["cat", "dog"])
>>> [node.op_type for node in to_onnx(head).graph.node]
['Cast', 'MatMul', 'Softmax', 'Cast']
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from zeroshift.installation import install_command

try:
    import onnx
    from onnx import helper, numpy_helper
except ImportError as error:
    raise ImportError(f"zeroshift.onnx needs onnx. Fix: {install_command('onnx')}.") from error

from zeroshift._version import __version__
from zeroshift.files import atomic_path
from zeroshift.frozen import FEATURES, PROBABILITIES, FrozenHead
from zeroshift.parameters import Choice

__all__ = ["NODES", "export", "to_onnx"]

OPSET, IR_VERSION = 17, 8
"""Of 2022: runtimes from then on read the file."""

LAST_AXIS = "last_axis"

Nodes = Callable[[list[str], str], list[onnx.NodeProto]]
"""From the names of inputs and output to the nodes between them."""


def _node(operator: str, **attributes: Any) -> Nodes:
    return lambda inputs, output: [helper.make_node(operator, inputs, [output], **attributes)]


def _columns(inputs: list[str], output: str) -> list[onnx.NodeProto]:
    """(n, K) from (K, n, 1)."""
    flat = helper.make_node("Squeeze", [*inputs, LAST_AXIS], [f"{output}_flat"])
    return [flat, helper.make_node("Transpose", [f"{output}_flat"], [output], perm=[1, 0])]


NODES: Mapping[str, Nodes] = {
    "matmul": _node("MatMul"),
    "add": _node("Add"),
    "subtract": _node("Sub"),
    "multiply": _node("Mul"),
    "divide": _node("Div"),
    "relu": _node("Relu"),
    "exp": _node("Exp"),
    "sqrt": _node("Sqrt"),
    "sum": lambda inputs, output: _node("ReduceSum", keepdims=1)([*inputs, LAST_AXIS], output),
    "max": _node("ReduceMax", axes=[-1], keepdims=1),
    "softmax": _node("Softmax", axis=-1),
    "columns": _columns,
}
"""The operations of `zeroshift.frozen` as ONNX nodes."""


def to_onnx(head: FrozenHead, *, precision: str = "float64") -> onnx.ModelProto:
    """The head as an ONNX model, with the meaning that `export` describes."""
    if not isinstance(head, FrozenHead):
        raise TypeError(f"head must be a FrozenHead; got {type(head).__name__}. Fix: method.freeze().")
    dtype = np.dtype(Choice(("float32", "float64")).check("precision", precision))
    nodes = [node for operation, inputs, output in head.steps for node in NODES[operation](list(inputs), output)]
    if precision == "float64":
        nodes = _with_casts(nodes)
    arrays = {name: array.astype(dtype) for name, array in head.arrays.items()}
    arrays[LAST_AXIS] = np.array([-1], dtype=np.int64)
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        f"zeroshift {head.method}",
        [helper.make_tensor_value_info(FEATURES, onnx.TensorProto.FLOAT, ["N", head.dimension])],
        [helper.make_tensor_value_info(PROBABILITIES, onnx.TensorProto.FLOAT, ["N", head.n_classes])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items() if name in used],
    )
    model = helper.make_model(
        graph,
        producer_name="zeroshift",
        producer_version=__version__,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
    )
    described = {
        "method": head.method,
        "n_seen": head.n_seen,
        "normalize": head.normalize,
        "logit_scale": head.logit_scale,
        "class_names": head.class_names,
    }
    helper.set_model_props(
        model, {name: value if isinstance(value, str) else json.dumps(value) for name, value in described.items()}
    )
    onnx.checker.check_model(model)
    return model


def _with_casts(nodes: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """The nodes with float64 between input and output, which are float32."""
    for node in nodes:
        for names in (node.input, node.output):
            names[:] = [f"{name}_64" if name in (FEATURES, PROBABILITIES) else name for name in names]
    first = helper.make_node("Cast", [FEATURES], [f"{FEATURES}_64"], to=onnx.TensorProto.DOUBLE)
    last = helper.make_node("Cast", [f"{PROBABILITIES}_64"], [PROBABILITIES], to=onnx.TensorProto.FLOAT)
    return [first, *nodes, last]


def export(head: FrozenHead, path: str | os.PathLike[str], *, precision: str = "float64", force: bool = False) -> None:
    """Write the head to an ONNX file. With `force` a file at `path` is replaced; without, that is an error.

    The model has one input, "features" (N, d), and one output, "probabilities" (N, K), both float32, for any N.
    Features must have unit length unless the head was made with `freeze(normalize=True)`. In between it computes in
    float64, as `precision` says, so that it differs from `head.predict` only by the rounding of the answer. "float32"
    is for runtimes without float64 (TensorRT, Core ML): probabilities then differ by up to 1e-5 for most methods, and
    by up to 1e-3 for those with very large scores (docs/integrations.md).

    The metadata of the file has `method`, and as JSON `class_names`, `logit_scale`, `n_seen` and `normalize`.
    """
    if os.path.exists(path) and not force:
        raise FileExistsError(f"{path} exists. Fix: pass force=True to replace it, or write to another file.")
    model = to_onnx(head, precision=precision)
    with atomic_path(path) as temporary:
        temporary.write_bytes(model.SerializeToString())

"""A head as ONNX nodes: the formulas of `repper.edge.saved_head`."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from repper.edge.saved_head import Array, SavedHead
from repper.export.graph import FEATURES, model_of

SCORES, PROBABILITIES, LOGITS = "scores", "probabilities", "logits"


def head_graph(head: SavedHead, output: str = SCORES) -> ModelProto:
    """From `features` to scores (also called `logits`), or to their softmax, `probabilities`."""
    build = _Nodes()
    arrays = head.arrays
    x = FEATURES
    if head.unit_input:
        norm = build.add("ReduceL2", x, build.number("axes", np.array([1])), keepdims=1)
        norm = build.add("Max", norm, build.number("least", np.float32(1e-12)))
        x = build.add("Div", x, norm)
    x = build.add("Sub", x, build.number("mean", arrays["mean"]))
    x = build.add("Div", x, build.number("scale", arrays["scale"]))
    if head.shape == "mlp":
        x = build.layer(x, "hidden_weight", arrays["hidden_weight"], arrays["hidden_bias"])
        x = build.add("Relu", x)
    elif head.shape == "rbf":
        vectors = arrays["vectors"]
        squares = build.add("ReduceSumSquare", x, build.number("axes", np.array([1])), keepdims=1)
        own = (vectors**2).sum(1)
        products = build.layer(x, "vectors", vectors, own, alpha=-2.0)
        distances = build.add("Add", products, squares)
        distances = build.add("Max", distances, build.number("zero", np.float32(0)))
        x = build.add("Mul", distances, build.number("gamma", -arrays["gamma"]))
        x = build.add("Exp", x)
    x = build.layer(x, "weight", arrays["weight"], arrays["bias"])
    build.add("Softmax" if output == PROBABILITIES else "Identity", x, to=output)
    given = helper.make_tensor_value_info(
        FEATURES, TensorProto.FLOAT, ["batch", len(arrays["mean"])]
    )
    made = helper.make_tensor_value_info(output, TensorProto.FLOAT, ["batch", len(head.classes)])
    return model_of(
        helper.make_graph(build.nodes, "classifier", [given], [made], list(build.numbers.values()))
    )


class _Nodes:
    """Collects nodes, with names that no encoder uses."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.numbers: dict[str, TensorProto] = {}

    def number(self, name: str, value: Array | np.generic) -> str:
        """Add a constant; integers stay integers."""
        array = np.asarray(value)
        kind = np.int64 if np.issubdtype(array.dtype, np.integer) else np.float32
        name = f"head_{name}"
        self.numbers[name] = numpy_helper.from_array(np.ascontiguousarray(array, kind), name)
        return name

    def add(self, kind: str, *inputs: str, to: str = "", **settings: Any) -> str:
        name = f"head_{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [to or name], f"{name}_node", **settings))
        return to or name

    def layer(self, x: str, name: str, weight: Array, bias: Array, alpha: float = 1.0) -> str:
        """`alpha x weight' + bias`"""
        numbers = self.number(name, weight), self.number(f"{name}_bias", bias)
        return self.add("Gemm", x, *numbers, transB=1, alpha=alpha)

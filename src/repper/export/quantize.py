"""An encoder in int8: weights and activations of convolutions as bytes, with scales of their own."""

from __future__ import annotations

import hashlib
import logging
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto

from repper.export.graph import model_of
from repper.hardware import instruction_sets

CALIBRATION = 512
"""How many images decide the scales."""


def quantized(
    model: ModelProto,
    images: NDArray[np.uint8],
    *,
    method: str = "Percentile",
    format: str = "QDQ",
    exclude: tuple[str, ...] = (),
    reduce_range: bool = False,
    percentile: float = 99.99,
) -> ModelProto:
    """The graph in int8, its scales from images (uint8, NHWC)."""
    from onnxruntime import quantization as tools

    name = model.graph.input[0].name
    batches = [{name: images[at : at + 32]} for at in range(0, len(images), 32)]

    class Reader(tools.CalibrationDataReader):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            self.left = iter(batches)

        def get_next(self) -> dict[str, Any] | None:
            return next(self.left, None)

    with tempfile.TemporaryDirectory() as folder, _quiet():
        target = Path(folder) / "int8.onnx"
        tools.quantize_static(
            model,
            target,
            Reader(),
            quant_format=tools.QuantFormat[format],
            op_types_to_quantize=["Conv", "Gemm", "Relu", "Add", "MaxPool"],
            per_channel=True,
            reduce_range=reduce_range,
            activation_type=tools.QuantType.QUInt8,
            weight_type=tools.QuantType.QInt8,
            nodes_to_exclude=list(exclude),
            calibrate_method=tools.CalibrationMethod[method],
            extra_options={"CalibPercentile": percentile},
        )
        result = onnx.load(target)
    return model_of(result.graph)


def digest_of(model: ModelProto) -> str:
    """A SHA-256 of a graph's own content: heads of an int8 encoder name it."""
    return hashlib.sha256(model.graph.SerializeToString(deterministic=True)).hexdigest()


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the advice to prepare the graph first: the exporter has folded what can be folded."""
    log = logging.getLogger()
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            yield
    finally:
        log.setLevel(level)

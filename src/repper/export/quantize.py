"""Quantize an encoder to int8: weights and activations of convolutions, with own scales.

Scales come from the smallest and the largest value that calibration images give, the simplest way;
what it loses is measured at every export. Weights have 7 bits: CPUs without VNNI add products of
bytes in pairs in 16 bits, where those of 8 bits overflow, and nobody knows the CPU that the file
will run on.
"""

from __future__ import annotations

import hashlib
import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto
from onnxruntime import quantization

from repper.export.graph import PIXELS, model_of

LAYERS = ["Add", "Conv", "Gemm", "MaxPool", "Relu"]
"""ONNX operations that are computed in int8; the mean over positions stays in float."""


def quantized(model: ModelProto, images: NDArray[np.uint8]) -> ModelProto:
    """Quantize a graph to int8, calibrated on images (uint8, NCHW)."""
    with tempfile.TemporaryDirectory() as folder, _quiet():
        source, target = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        onnx.save(model, source)  # a model in memory would be changed
        quantization.quantize_static(
            source,
            target,
            _Reader(images),
            quant_format=quantization.QuantFormat.QDQ,
            op_types_to_quantize=LAYERS,
            per_channel=True,
            reduce_range=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            calibrate_method=quantization.CalibrationMethod.MinMax,
        )
        result = onnx.load(target)
    return model_of(result.graph)


def digest_of(model: ModelProto) -> str:
    """A SHA-256 of a graph's content; heads of an int8 encoder refer to it."""
    return hashlib.sha256(model.graph.SerializeToString(deterministic=True)).hexdigest()


class _Reader(quantization.CalibrationDataReader):  # type: ignore[misc, unused-ignore]
    """Batches of calibration images."""

    def __init__(self, images: NDArray[np.uint8]) -> None:
        parts = (images[at : at + 32] for at in range(0, len(images), 32))
        self._left = ({PIXELS: part.astype(np.float32) / 127.5 - 1} for part in parts)

    def get_next(self) -> dict[str, Any] | None:
        return next(self._left, None)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the advice to preprocess the graph: the exporter has already folded it."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(disabled)

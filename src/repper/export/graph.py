"""Export an encoder as an ONNX graph, and write graphs as files with metadata and checksum."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from importlib import metadata
from itertools import pairwise

import onnx
import torch
from onnx import ModelProto, TensorProto, compose, helper
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from repper.basics.errors import RepperError
from repper.basics.params import Params, load_params
from repper.basics.seal import BLANK
from repper.edge.onnx_file import IN_ONNX, MARK, SHA256
from repper.encoders.blocks import MeanOverPositions
from repper.encoders.encoder import Encoder, EncoderSpec

OPSET = 18
"""Group norm at opset 21 is a node that quantization and older runtimes do not know."""
IR_VERSION = 8
"""The version of ONNX's file format that belongs to opset 18; onnxruntime reads it since 1.14."""
PIXELS, IMAGES, FEATURES = "pixel_values", "images", "features"


class _MeanOverMaps(nn.Module):
    """`MeanOverPositions` as a single ONNX node, ReduceMean, without nodes about shapes."""

    def forward(self, maps: Tensor) -> Tensor:
        return maps.mean((2, 3))


def network_of(spec: EncoderSpec, params: Params) -> Encoder:
    """Build the encoder in PyTorch, in evaluation mode."""
    network = nn.ModuleDict({"encoder": spec.build()})
    load_params(network, params)
    encoder = network.eval()["encoder"]
    if not isinstance(encoder, Encoder):
        raise TypeError("this object is not an encoder")
    return encoder


def encoder_graph(spec: EncoderSpec, params: Params) -> ModelProto:
    """The encoder from `pixel_values` (float32, NCHW, -1 to 1) to `features`.

    Batch norm is folded into the convolutions: here where it follows one in a sequence, which
    spares the exporter half of its work, and elsewhere by the exporter.
    """
    encoder = network_of(spec, params)
    for parent in list(encoder.modules()):
        for name, child in parent.named_children():
            if isinstance(child, MeanOverPositions):
                setattr(parent, name, _MeanOverMaps())
        if type(parent) is nn.Sequential:
            _fold_batch_norm(parent)
    # In the plain order of memory: a graph has no other, and it must not depend on who wrote it.
    for weight in encoder.requires_grad_(False).parameters():
        weight.data = weight.data.contiguous()
    # Two images: one image would become part of the graph.
    example = torch.zeros(2, spec.channels, spec.size, spec.size)
    try:
        with _quiet():
            program = torch.onnx.export(
                encoder,
                (example,),
                dynamo=True,
                opset_version=OPSET,
                input_names=[PIXELS],
                output_names=[FEATURES],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        cause = str(error.__cause__ or error).strip().splitlines() or [type(error).__name__]
        raise RepperError(
            f"encoder {spec.name!r} cannot be exported to ONNX for any number of images: {cause[0]}"
        ) from error
    if program is None:
        raise TypeError("the exporter returned nothing")
    model = program.model_proto
    outputs = [
        helper.make_tensor_value_info(FEATURES, TensorProto.FLOAT, ["batch", encoder.features])
    ]
    shape: list[str | int] = ["batch", spec.channels, spec.size, spec.size]
    inputs = [helper.make_tensor_value_info(PIXELS, TensorProto.FLOAT, shape)]
    nodes, weights = list(model.graph.node), list(model.graph.initializer)
    for node in nodes:
        # The exporter writes here which line of which file a node comes from.
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    for tensor in weights:
        tensor.ClearField("metadata_props")
        tensor.ClearField("doc_string")
    if model.functions:
        raise RepperError(
            f"encoder {spec.name!r} cannot be exported: ONNX does not support all of its operations"
        )
    return model_of(helper.make_graph(nodes, "encoder", inputs, outputs, weights))


def _fold_batch_norm(layers: nn.Sequential) -> None:
    for at, (first, second) in enumerate(pairwise(list(layers))):
        if type(first) is nn.Conv2d and type(second) is nn.BatchNorm2d:
            layers[at] = fuse_conv_bn_eval(first, second)
            layers[at + 1] = nn.Identity()


def takes_images(model: ModelProto, channels: int, size: int, name: str = IMAGES) -> ModelProto:
    """The graph with uint8 images (NHWC) as its input instead of `pixel_values`."""
    numbers = [
        helper.make_tensor("pixels_half", TensorProto.FLOAT, [], [127.5]),
        helper.make_tensor("pixels_one", TensorProto.FLOAT, [], [1.0]),
    ]
    nodes = [
        helper.make_node(
            "Transpose", [name], ["pixels_first"], "pixels_transpose", perm=[0, 3, 1, 2]
        ),
        helper.make_node("Cast", ["pixels_first"], ["pixels_float"], "pixels_cast", to=1),
        helper.make_node("Div", ["pixels_float", "pixels_half"], ["pixels_divided"], "pixels_div"),
        helper.make_node("Sub", ["pixels_divided", "pixels_one"], ["pixels"], "pixels_sub"),
    ]
    given = helper.make_tensor_value_info(name, TensorProto.UINT8, ["batch", size, size, channels])
    shape: list[str | int] = ["batch", channels, size, size]
    pixels = helper.make_tensor_value_info("pixels", TensorProto.FLOAT, shape)
    first = model_of(helper.make_graph(nodes, "pixels", [given], [pixels], numbers))
    return joined(first, model, {"pixels": PIXELS})


def joined(first: ModelProto, second: ModelProto, links: Mapping[str, str]) -> ModelProto:
    """Connect two graphs: outputs of the first become inputs of the second."""
    both = compose.merge_models(first, second, io_map=list(links.items()))
    both.graph.name = second.graph.name
    return model_of(both.graph)


def model_of(graph: onnx.GraphProto) -> ModelProto:
    graph.ClearField("value_info")
    graph.ClearField("doc_string")
    graph.ClearField("metadata_props")
    opset = [helper.make_opsetid("", OPSET)]
    return helper.make_model(
        graph, producer_name="repper", producer_version=metadata.version("repper"),
        opset_imports=opset, ir_version=IR_VERSION,
    )  # fmt: skip


def sealed(model: ModelProto, notes: Mapping[str, str]) -> bytes:
    """The bytes of an ONNX file with this metadata and a checksum of the whole file."""
    model = model_of(model.graph)
    helper.set_model_props(model, {**notes, SHA256: BLANK.decode()})
    onnx.checker.check_model(model, full_check=True)
    data: bytes = model.SerializeToString(deterministic=True)
    if data.count(MARK) != 1:
        raise RepperError("the name of a class or an encoder must not contain repper.sha256")
    return IN_ONNX.filled(data)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's messages about torchvision, renamed arguments and failures."""
    disabled = logging.root.manager.disable
    logging.disable(logging.ERROR)  # what fails is an exception, too
    try:
        # Where it fails it also prints the graph.
        with redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"`isinstance\(treespec", FutureWarning)
            yield
    finally:
        logging.disable(disabled)

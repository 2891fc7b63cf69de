"""A tiny encoder in ONNX, made by hand, and the page of `repper play` with it inside."""

import base64
import hashlib
import json
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from repper.edge import saved_head

DIGEST = hashlib.sha256(b"the tiny encoder").hexdigest()
PLACEHOLDER = '<script id="model" type="application/json">null</script>'


def encoder_bytes(size=32, channels=3, filters=16, seed=0):
    """Two random convolutions and means over a 2 x 2 grid: 4 * filters features."""
    rng = np.random.default_rng(seed)

    def constant(name, array):
        return numpy_helper.from_array(np.asarray(array, np.float32), name)

    def weights(*shape):
        return rng.normal(0, 1.6 / np.sqrt(np.prod(shape[1:])), shape)

    pool = size // 8
    nodes = [
        helper.make_node("Cast", ["images"], ["float"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["float", "scale"], ["scaled"]),
        helper.make_node("Sub", ["scaled", "one"], ["centered"]),
        helper.make_node("Transpose", ["centered"], ["planes"], perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["planes", "w1"], ["c1"], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c2"], ["r2"]),
        helper.make_node(
            "AveragePool", ["r2"], ["p"], kernel_shape=[pool, pool], strides=[pool, pool]
        ),
        helper.make_node("Flatten", ["p"], ["flat"]),
        helper.make_node("Mul", ["flat", "loud"], ["features"]),
    ]
    constants = [
        constant("scale", 1 / 127.5), constant("one", 1), constant("loud", 4),
        constant("w1", weights(filters, channels, 3, 3)),
        constant("w2", weights(filters, filters, 3, 3)),
    ]  # fmt: skip
    images = helper.make_tensor_value_info("images", TensorProto.UINT8, ["n", size, size, channels])
    found = helper.make_tensor_value_info("features", TensorProto.FLOAT, ["n", 4 * filters])
    graph = helper.make_graph(nodes, "tiny", [images], [found], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return model.SerializeToString()


def model_json(encoder, size=32, channels=3, features=64):
    return {
        "format": "repper-model-1",
        "encoder": {
            "file": "encoder.onnx", "sha256": hashlib.sha256(encoder).hexdigest(), "digest": DIGEST,
            "precision": "fp32", "architecture": "tiny", "features": features, "origin": "random weights",
        },
        "input": {
            "size": size, "channels": channels, "layout": "NHWC", "type": "uint8",
            "crop": "central square", "resize": "bilinear, antialiased (Pillow)", "transparency": "white",
        },
        "classes": None, "head": None, "unknown": None, "scores": None,
        "versions": {}, "licence": "The weights are yours.",
    }  # fmt: skip


def write_page(path, head=None, unknown=None, **settings):
    """The page with the tiny encoder; `head` and `unknown` are bytes."""
    encoder = encoder_bytes(**settings)

    def text(data):
        return None if data is None else base64.b64encode(data).decode()

    model = model_json(encoder, **settings)
    filled = {
        "model": model,
        "encoder": text(encoder),
        "head": text(head),
        "unknown": text(unknown),
    }
    source = Path(saved_head.__file__).with_name("page.html").read_text(encoding="utf-8")
    assert source.count(PLACEHOLDER) == 1
    data = json.dumps(filled).replace("<", "\\u003c")
    path.write_text(
        source.replace(PLACEHOLDER, PLACEHOLDER.replace("null", data)), encoding="utf-8"
    )
    return path


def random_photos(folder, classes=("cat", "dog", "fish"), count=12, size=40, seed=0):
    """PNG photos that can be told apart: stripes of a class's own direction and colour, and noise."""
    from PIL import Image

    rng = np.random.default_rng(seed)
    grid = np.mgrid[0:size, 0:size]
    for number, name in enumerate(classes):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for photo in range(count):
            angle = number * np.pi / len(classes) + rng.normal(0, 0.35)
            wave = np.sin(
                (grid[0] * np.cos(angle) + grid[1] * np.sin(angle)) * rng.uniform(0.4, 0.7)
            )
            colour = np.array([120, 110, 115]) + 25 * np.eye(3)[number % 3] + rng.normal(0, 22, 3)
            image = colour + 40 * wave[..., None] + rng.normal(0, 30, (size, size, 3))
            file = folder / name / f"{name}-{photo:03}.png"
            Image.fromarray(np.clip(image, 0, 255).astype(np.uint8)).save(file)
    return folder


def pixel_encoder(size=8, channels=1, digest=DIGEST, precision="fp32", gain=1.0):
    """A whole file as `repper export` writes it, whose features are the pixels times `gain`."""
    from repper.export.graph import sealed

    nodes = [
        helper.make_node("Cast", ["images"], ["float"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["float", "scale"], ["scaled"]),
        helper.make_node("Flatten", ["scaled"], ["features"]),
    ]
    scale = numpy_helper.from_array(np.float32(gain / 255), "scale")
    images = helper.make_tensor_value_info("images", TensorProto.UINT8, ["n", size, size, channels])
    found = helper.make_tensor_value_info(
        "features", TensorProto.FLOAT, ["n", size * size * channels]
    )
    graph = helper.make_graph(nodes, "pixels", [images], [found], [scale])
    notes = {
        "repper.format": "repper-encoder-1", "repper.encoder": digest,
        "repper.precision": precision, "repper.architecture": "pixels",
        "repper.origin": "no training", "repper.version": "0",
    }  # fmt: skip
    return sealed(helper.make_model(graph), notes)


def write_model(folder, data, size=8, channels=1, features=64):
    """A model folder with this encoder, without a head."""
    folder.mkdir(parents=True)
    (folder / "encoder.onnx").write_bytes(data)
    notes = model_json(data, size, channels, features)
    (folder / "model.json").write_text(json.dumps(notes), encoding="utf-8")
    return folder


CLASSES = ("0", "1", "4", "6")


def write_photos(folder, split, each, skip=0, classes=CLASSES):
    """So many PNGs of each class, after some that others may have."""
    from PIL import Image

    for name in classes:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for row in np.flatnonzero(split.labels == int(name))[skip : skip + each]:
            Image.fromarray(split.images[row, 0]).save(folder / name / f"{row:04}.png")
    return folder

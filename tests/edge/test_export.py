"""Exported files: the same predictions as PyTorch, the same bytes each time, whole or refused."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from PIL import Image
from torch import nn

import repper as api
from conftest import last_json
from repper.basics.errors import RepperError, install_hint
from repper.basics.params import clone, digest, params_of
from repper.data import Split
from repper.edge.model_folder import read_model
from repper.edge.onnx_file import CLASSIFIER_FORMAT, MARK, read_notes, verified
from repper.edge.saved_head import SavedHead, read_head, softmax
from repper.encoders import ENCODERS, NORMS
from repper.encoders.encoder import EncoderSpec, features_of, read_encoder
from repper.export.graph import encoder_graph, sealed, takes_images
from repper.export.head_graph import PROBABILITIES, SCORES, head_graph
from repper.export.measure import agreement, loss_of, outputs_of, session
from repper.export.quantize import quantized
from repper.export.source import (
    Evidence,
    Judge,
    Subject,
    evidence_of,
    natural,
    nearest_mean,
    subject_of,
)
from repper.export.write import Targets, export

TINY = {"clients": 4, "rounds": 1, "epochs": 1, "width": 0.25, "engine": "serial"}
FORMAT = {"repper.format": "repper-encoder-1"}


@functools.cache
def graph_of(spec, digest_):
    """What the exporter made of an encoder: to ask it takes seconds, and many tests share one."""
    return encoder_graph(spec, _params[digest_])


_params = {}


def shared_graph(spec, params):
    own = digest(params)
    _params[own] = params
    result = onnx.ModelProto()
    result.CopyFrom(graph_of(spec, own))
    return result


@pytest.fixture(scope="module", autouse=True)
def quick_exporter():
    """Ask the exporter once for each encoder; and let it read its own tables once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("repper.export.write.encoder_graph", shared_graph)
        try:
            from torch.onnx._internal.exporter._registration import ONNXRegistry

            tables = functools.cache(ONNXRegistry.from_torchlib)
            patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(tables))
        except (ImportError, AttributeError):
            pass  # of another version of PyTorch: it takes longer, and nothing else
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run on digits."""
    return api.run("digits", out=tmp_path_factory.mktemp("runs") / "run", **TINY)


@pytest.fixture(scope="module")
def model(run, tmp_path_factory):
    """Client 1 of it, exported."""
    folder = tmp_path_factory.mktemp("models")
    subject = subject_of(run.folder, 1)
    targets = Targets(folder / "model", folder / "one.onnx", folder / "hub")
    report = export(subject, evidence_of(subject, None, 500), targets, measure=False)
    assert report.kept
    return folder


def lively(spec):
    """Parameters as after a training: norms that do something."""
    network = nn.ModuleDict({"encoder": spec.build()})
    random = torch.Generator().manual_seed(0)
    params = clone(params_of(network))
    for name, tensor in params.items():
        if tensor.ndim == 1 and name.endswith(("weight", "running_var")):
            tensor.copy_(torch.rand(tensor.shape, generator=random) + 0.5)
        elif tensor.ndim == 1:
            tensor.copy_(torch.randn(tensor.shape, generator=random) * 0.1)
    return params


PAIRS = [(name, "batch") for name in ENCODERS] + [
    (name, norm) for name in ("small", "resnet18", "mobilenet") for norm in NORMS if norm != "batch"
]
"""Every encoder, and every norm in each family: other ResNets have more of the same blocks."""


@pytest.mark.parametrize(("name", "norm"), PAIRS)
def test_every_encoder_gives_the_features_of_pytorch(name, norm):
    spec = EncoderSpec(name, 3, 16, 0.125, norm)
    params, images = lively(spec), natural(10, 3, 16)
    core = shared_graph(spec, params)
    kinds = {node.op_type for node in core.graph.node}
    assert "BatchNormalization" not in kinds
    assert "Shape" not in kinds or norm == "group"
    found = outputs_of(session(sealed(takes_images(core, 3, 16), FORMAT)), images)
    wanted = features_of(spec, params, images)
    assert found.dtype == np.float32
    assert found == pytest.approx(wanted, abs=1e-4 * float(np.abs(wanted).max()))


def test_five_thousand_real_images_keep_their_classes(cifar10):
    spec = EncoderSpec("small", 3, 32)
    subject = Subject(spec, lively(spec), "drawn")
    images, labels = cifar10.test.images[:5000], cifar10.test.labels[:5000]
    train = Split(cifar10.train.images[:500], cifar10.train.labels[:500])
    judge = Judge("means", np.arange(5000), None, nearest_mean(cifar10.classes), train)
    evidence = Evidence("images", images, labels, images[:64], (judge,))
    report = export(subject, evidence, Targets(), measure=False)
    assert report.agreement.images == 5000
    assert report.agreement.percent > 99.9


def drawn_head(shape, unit_input, classes=3, d=7):
    random = np.random.default_rng(classes)
    arrays = {
        "mean": random.normal(size=d), "scale": random.uniform(0.5, 2, 1),
        "hidden_weight": random.normal(size=(5, d)), "hidden_bias": random.normal(size=5),
        "vectors": random.normal(size=(6, d)), "gamma": np.array([0.3]),
    }  # fmt: skip
    inner = {"linear": d, "mlp": 5, "rbf": 6}[shape]
    own = {"linear": (), "mlp": ("hidden_weight", "hidden_bias"), "rbf": ("vectors", "gamma")}
    arrays = {name: arrays[name] for name in ("mean", "scale", *own[shape])}
    arrays |= {"weight": random.normal(size=(classes, inner)), "bias": random.normal(size=classes)}
    names = tuple(f"class {n}" for n in range(classes))
    arrays = {name: np.asarray(a, np.float32) for name, a in arrays.items()}
    return SavedHead("drawn", shape, arrays, tuple(range(classes)), names, "e", unit_input)


@pytest.mark.parametrize("classes", [1, 2, 5])
@pytest.mark.parametrize("unit_input", [False, True])
@pytest.mark.parametrize("shape", ["linear", "mlp", "rbf"])
def test_every_head_gives_the_scores_of_numpy(shape, unit_input, classes):
    head = drawn_head(shape, unit_input, classes)
    x = np.random.default_rng(1).normal(size=(30, 7)).astype(np.float32) * 3
    x[0] = 0  # a feature vector without a direction
    for output, wanted in ((SCORES, head.scores(x)), (PROBABILITIES, softmax(head.scores(x)))):
        running = session(head_graph(head, output).SerializeToString())
        assert running.run([output], {"features": x})[0] == pytest.approx(wanted, abs=2e-5)


def test_an_exported_client_predicts_as_its_run(run, model, digits):
    notes = read_model(model / "model")
    images = digits.test.images[:200]
    features = outputs_of(session(notes.encoder_bytes(model / "model")), images)
    head = notes.read_head(model / "model")
    assert [head.names[row] for row in head.scores(features).argmax(1)] == run.predict(1, images)
    assert notes.encoder.digest == digest(read_encoder(run.folder)[1]) == head.encoder
    assert notes.classes == head.names
    assert (notes.input.size, notes.input.channels, notes.encoder.features) == (8, 1, 64)
    assert (notes.encoder.precision, notes.encoder.architecture) == ("fp32", "small")


def test_one_file_goes_from_images_to_probabilities(run, model, digits):
    data = verified(model / "one.onnx", CLASSIFIER_FORMAT)
    running = session(data)
    image, probabilities = running.get_inputs()[0], running.get_outputs()[0]
    assert (image.name, image.type, image.shape) == ("image", "tensor(uint8)", ["batch", 8, 8, 1])
    assert probabilities.name == "probabilities"
    images = digits.test.images[:50]
    answers = run.predict_with_scores(1, images)
    wanted = softmax(np.array([list(scores.values()) for _, scores in answers]))
    assert outputs_of(running, images) == pytest.approx(wanted, abs=1e-5)
    assert json.loads(read_notes(data)["repper.classes"]) == list(answers[0][1])


def test_the_hub_gets_what_transformers_js_reads(run, model, digits):
    config = json.loads((model / "hub" / "config.json").read_text())
    pixels = json.loads((model / "hub" / "preprocessor_config.json").read_text())
    head = read_head(run.folder / "heads" / "1.safetensors")
    assert config["id2label"] == {str(n): name for n, name in enumerate(head.names)}
    assert config["label2id"] == {name: n for n, name in enumerate(head.names)}
    assert pixels["rescale_factor"] == pytest.approx(1 / 255)
    assert (pixels["image_mean"], pixels["image_std"]) == ([0.5], [0.5])
    running = session((model / "hub" / "onnx" / "model.onnx").read_bytes())
    assert running.get_inputs()[0].name == "pixel_values"
    images = digits.test.images[:20]
    given = (images * np.float32(pixels["rescale_factor"]) - 0.5) / np.float32(0.5)
    logits = running.run(["logits"], {"pixel_values": given.astype(np.float32)})[0]
    assert [head.names[n] for n in logits.argmax(1)] == run.predict(1, images)


def test_the_same_run_gives_the_same_bytes(run, model, tmp_path, monkeypatch):
    subject = subject_of(run.folder, 1)
    targets = Targets(tmp_path / "model", tmp_path / "one.onnx", tmp_path / "hub")
    monkeypatch.setattr("repper.export.write.encoder_graph", encoder_graph)
    export(subject, evidence_of(subject, None, 500), targets, measure=False)
    again = sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*") if p.is_file())
    assert len(again) == 8
    for path in again:
        assert (tmp_path / path).read_bytes() == (model / path).read_bytes(), path


def test_a_file_holds_nothing_of_the_machine(model):
    for path in (model / "model" / "encoder.onnx", model / "one.onnx"):
        data = path.read_bytes()
        for word in (b"site-packages", b"/repper/", b"forward(", str(Path.home()).encode()):
            assert word not in data
        graph = onnx.load(path).graph
        assert not any(node.doc_string or node.metadata_props for node in graph.node)
        assert not graph.metadata_props


def test_the_checksum_is_the_one_agreed_on(model):
    data = (model / "model" / "encoder.onnx").read_bytes()
    assert data.count(MARK) == 1
    at = data.index(MARK) + len(MARK)
    zeros = data[:at] + b"0" * 64 + data[at + 64 :]
    assert hashlib.sha256(zeros).hexdigest().encode() == data[at : at + 64]


def test_damaged_files_are_refused(model, tmp_path):
    data = (model / "model" / "encoder.onnx").read_bytes()
    path = tmp_path / "encoder.onnx"
    with pytest.raises(RepperError, match="there is no file"):
        verified(path)
    for bad, sentence in [
        (b"", "is empty"),
        (data[: len(data) // 2], "is truncated"),
        (data[:-1], "is truncated"),
        (data + b"\x00", "damaged|truncated"),
        (b"photo", "is not an encoder of repper"),
        ((model / "one.onnx").read_bytes(), "is a classifier in one file of repper"),
    ]:
        path.write_bytes(bad)
        with pytest.raises(RepperError, match=sentence):
            verified(path)
    for place in np.linspace(0, len(data) - 1, 200).astype(int):
        flipped = bytearray(data)
        flipped[place] ^= 0x20
        path.write_bytes(flipped)
        with pytest.raises(RepperError):
            verified(path)
    path.write_bytes(data)
    assert verified(path) == data


def test_a_folder_of_parts_that_do_not_belong_together_is_refused(model, tmp_path):
    folder = model / "model"
    notes = read_model(folder)
    for name in ("encoder.onnx", "head.safetensors"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    replace(notes, encoder=replace(notes.encoder, sha256="0" * 64)).write(tmp_path)
    with pytest.raises(RepperError, match="not the encoder that model.json in the same folder"):
        read_model(tmp_path).encoder_bytes(tmp_path)
    replace(notes, head=replace(notes.head, digest="0" * 64)).write(tmp_path)
    with pytest.raises(RepperError, match="not the head that model.json in the same folder"):
        read_model(tmp_path).read_head(tmp_path)
    replace(notes, head=replace(notes.head, file="../head")).write(tmp_path)
    with pytest.raises(RepperError, match="names a file outside of its folder"):
        read_model(tmp_path)
    notes.write(tmp_path)
    assert read_model(tmp_path) == notes
    for change, sentence in [
        ({"format": "other"}, "does not describe a model of this version"),
        ({"input": {"size": "8", "channels": 1}}, "its input.size cannot be '8'"),
        ({"encoder": {}}, "it has no encoder.sha256"),
        ({"input": 3}, "input must be an object"),
    ]:
        (tmp_path / "model.json").write_text(json.dumps(notes.as_dict() | change))
        with pytest.raises(RepperError, match=sentence):
            read_model(tmp_path)


@pytest.mark.parametrize(
    ("method", "personalize"), [("lg-fedavg", "keep"), ("fedbn", "linear"), ("ditto", "keep")]
)
def test_a_client_with_an_encoder_of_its_own_exports_that_one(
    method, personalize, digits, tmp_path
):
    run = api.run(
        "digits", out=tmp_path / "run", method=method, personalize=personalize,
        **{**TINY, "clients": 2, "train_images": 300, "participation": 1.0},
    )  # fmt: skip
    images, digests = digits.test.images[:100], set()
    for client in (0, 1):
        subject = subject_of(run.folder, client)
        folder = tmp_path / str(client)
        export(subject, evidence_of(subject, None, 100), Targets(folder), measure=False)
        notes = read_model(folder)
        features = outputs_of(session(notes.encoder_bytes(folder)), images)
        head = notes.read_head(folder)
        assert [head.names[n] for n in head.scores(features).argmax(1)] == run.predict(
            client, images
        )
        assert notes.encoder.origin == f"client {client}'s own"
        digests.add(notes.encoder.digest)
    assert len(digests) == 2


@pytest.mark.parametrize("personalize", ["common", "finetune"])
def test_heads_that_began_with_another_export_too(personalize, digits, repper, tmp_path):
    settings = {**TINY, "method": "fedavg", "train_images": 300}
    run = api.run("digits", out=tmp_path / "run", personalize=personalize, **settings)
    subject = subject_of(run.folder, 0)
    evidence = evidence_of(subject, None, 200)
    report = export(
        subject, evidence, Targets(tmp_path / "m"), quantize=True, accept_loss=True, measure=False
    )
    notes = read_model(tmp_path / "m")
    head = notes.read_head(tmp_path / "m")
    assert "cannot be fitted anew" in report.note
    assert report.int8.refitted is None
    assert np.array_equal(head.arrays["weight"], subject.head.arrays["weight"])
    assert head.encoder == notes.encoder.digest != subject.digest
    assert read_head(tmp_path / "m" / "head.safetensors").encoder == notes.encoder.digest
    images = digits.test.images[:5]
    files = [f"{n}.png" for n in range(len(images))]
    for file, image in zip(files, images, strict=True):
        Image.fromarray(image[0]).save(tmp_path / file)
    answers = last_json(repper("predict", "m", *files, "--json"))["predictions"]
    features = outputs_of(session(notes.encoder_bytes(tmp_path / "m")), images)
    wanted = [head.names[row] for row in head.scores(features).argmax(1)]
    assert [one["class"] for one in answers] == wanted


def test_int8_has_an_encoder_and_a_head_of_its_own(run, tmp_path, digits):
    subject = subject_of(run.folder, 1)
    evidence = evidence_of(subject, None, 359)
    both = [
        export(
            subject, evidence, Targets(tmp_path / name), quantize=True, most_loss=100, measure=False
        )
        for name in ("a", "b")
    ]
    notes = read_model(tmp_path / "a")
    assert notes.encoder.precision == "int8"
    assert notes.encoder.digest != subject.digest
    head = notes.read_head(tmp_path / "a")
    assert (head.encoder, head.classes) == (notes.encoder.digest, subject.head.classes)
    assert not np.array_equal(head.arrays["weight"], subject.head.arrays["weight"])
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name
    data = notes.encoder_bytes(tmp_path / "a")
    kinds = [node.op_type for node in onnx.load_from_string(data).graph.node]
    assert kinds.count("QuantizeLinear") >= 5
    # What the report says is what the written files do.
    features = outputs_of(session(data), digits.test.images)
    known = np.isin(digits.test.labels, head.classes)
    right = head.predict(features[known]) == digits.test.labels[known]
    assert both[0].int8.refitted.after == pytest.approx(100 * right.mean())
    before = subject.head.predict(features_of(subject.spec, subject.params, digits.test.images))
    right = before[known] == digits.test.labels[known]
    assert both[0].int8.refitted.before == pytest.approx(100 * right.mean())


def test_weights_of_int8_have_seven_bits(run):
    subject = subject_of(run.folder, None)
    core = shared_graph(subject.spec, subject.params)
    before = core.SerializeToString()
    model = quantized(core, natural(32, 1, 8))
    assert core.SerializeToString() == before
    weights = [onnx.numpy_helper.to_array(t) for t in model.graph.initializer]
    bytes_ = [w for w in weights if w.dtype == np.int8 and w.ndim == 4]
    assert len(bytes_) == 5
    assert all(32 <= np.abs(w.astype(int)).max() <= 64 for w in bytes_)


def test_group_norm_in_int8(tmp_path):
    spec = EncoderSpec("small", 3, 16, 0.125, "group")
    params, images = lively(spec), natural(64, 3, 16)
    model = takes_images(quantized(shared_graph(spec, params), images), 3, 16)
    found = outputs_of(session(sealed(model, FORMAT)), images)
    wanted = features_of(spec, params, images)
    assert np.corrcoef(found.ravel(), wanted.ravel())[0, 1] > 0.99


def test_the_interval_of_a_loss_is_that_of_paired_differences():
    before = np.array([True] * 8 + [False] * 2)
    after = np.array([True] * 6 + [False] * 2 + [True, False])
    found = loss_of(before, after)
    each = np.array([0] * 6 + [1, 1, -1, 0])
    assert (found.before, found.after, found.points) == (80, 70, pytest.approx(10))
    assert found.interval == pytest.approx(100 * 1.96 * each.std(ddof=1) / 10**0.5)


def test_too_large_a_loss_leaves_nothing(run, repper, tmp_path):
    arguments = ("export", run.folder, "--client", 1, "--quantize", "--images", 359)
    process = repper(*arguments, "--most-loss", -200, "--out", "m", "--one-file", "one.onnx")
    assert process.returncode == 1, process.stderr
    assert "nothing was written: int8 loses" in process.stdout
    assert "--most-loss -200" in process.stdout
    assert list(tmp_path.iterdir()) == []


def test_images_without_labels_cannot_show_a_loss(run, repper, tmp_path):
    encoder = run.folder / "encoder.safetensors"
    process = repper("export", encoder, "--quantize", "--images", 50, "--out", "m")
    assert process.returncode == 1, process.stderr
    assert "50 drawn images without labels" in process.stdout
    assert "without labels the loss of accuracy" in process.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_command_says_what_it_found(run, repper, tmp_path):
    process = repper("export", run.folder, "--images", 400, "--out", "m")
    assert process.returncode == 0, process.stderr
    said = process.stdout
    assert "360 test images of digits and 40 training images, with the heads of 4 clients" in said
    assert "fp32: 100.00 % of" in said
    assert "1 image: PyTorch" in said
    assert "32 images: PyTorch" in said
    assert "memory: pytorch" in said
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m"]
    assert sorted(p.name for p in (tmp_path / "m").iterdir()) == ["encoder.onnx", "model.json"]
    assert "times as fast" not in said
    again = repper("export", run.folder, "--out", "m")
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)
    assert "m exists: add --overwrite" in again.stderr
    more = ("--client", 2, "--images", 50, "--no-measure", "--overwrite")
    again = repper("export", run.folder, "--out", "m", *more)
    assert again.returncode == 0, again.stderr
    assert "1 image:" not in again.stdout
    assert "memory" not in again.stdout
    assert len(list((tmp_path / "m").iterdir())) == 3
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m"]


def test_python_replaces_only_when_told_and_only_exports(run, model, tmp_path):
    subject = subject_of(run.folder, 1)
    evidence = evidence_of(subject, None, 50)
    whole = Targets(tmp_path / "m", tmp_path / "one.onnx", tmp_path / "hub")
    for name, place in (("model", "m"), ("hub", "hub")):
        shutil.copytree(model / name, tmp_path / place)
    shutil.copy(model / "one.onnx", tmp_path)
    for targets in (
        Targets(whole.out),
        Targets(None, whole.one_file),
        Targets(None, None, whole.hub),
    ):
        with pytest.raises(RepperError, match="exists: add --overwrite"):
            export(subject, evidence, targets, measure=False)
    assert export(subject, evidence, whole, measure=False, overwrite=True).kept
    for file in (whole.one_file, whole.hub / "onnx" / "model.onnx"):
        file.write_bytes(b"my own")
    (whole.out / "model.json").write_text('{"format": "of another program"}')
    for targets in (
        Targets(whole.out),
        Targets(None, whole.one_file),
        Targets(None, None, whole.hub),
    ):
        with pytest.raises(RepperError, match="is not an export: choose another place"):
            export(subject, evidence, targets, measure=False, overwrite=True)
    assert whole.one_file.read_bytes() == b"my own"


KILLED = """
import os, pathlib, signal, sys
from repper.export.place import staged
rename, place = pathlib.Path.rename, pathlib.Path(sys.argv[1])
def dies(self, target):
    if self.name.endswith(".tmp"):
        os.kill(os.getpid(), signal.SIGKILL)
    return rename(self, target)
pathlib.Path.rename = dies
with staged(place, place.with_name("other")) as (made, other):
    made.mkdir()
    (made / "model.json").write_text("new")
    other.mkdir()
"""


def test_a_kill_between_two_moves_loses_nothing(run, model, tmp_path):
    folder = tmp_path / "m"
    shutil.copytree(model / "model", folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    process = subprocess.run([sys.executable, "-c", KILLED, str(folder)], check=False)
    assert process.returncode == -signal.SIGKILL
    assert not folder.exists()  # never a broken one
    assert len(list(tmp_path.iterdir())) == 3
    for mine in (".m.tmp", ".m.old", ".mm.1.tmp", f".m.{os.getppid()}.tmp"):
        (tmp_path / mine).write_text("of somebody else, or of an export that is at work")
    with pytest.raises(RepperError, match="m exists"):
        Targets(folder).check(overwrite=False)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    Targets(tmp_path / "other").check(overwrite=False)
    left = {".m.tmp", ".m.old", ".mm.1.tmp", f".m.{os.getppid()}.tmp", "m"}
    assert {path.name for path in tmp_path.iterdir()} == left


def test_more_than_99_9_percent_must_agree():
    head = drawn_head("linear", False)
    x = np.random.default_rng(2).normal(size=(1001, 7)).astype(np.float32)
    other = x.copy()
    other[0] = next(row for row in x if head.predict(row[None]) != head.predict(x[:1]))
    for count, enough in ((1000, False), (1001, True)):
        images = np.zeros((count, 1, 1, 1), np.uint8)
        judges = (Judge("one", np.arange(count), head),)
        evidence = Evidence("images", images, None, images, judges)
        found = agreement(evidence, [head], x[:count], other[:count])
        assert found.percent == pytest.approx(100 * (count - 1) / count)
        assert found.enough is enough


ABSENT = """
import contextlib, io, sys
from repper.cli import main
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == self.absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=self.absent)
sys.meta_path.insert(0, finder := Absent())
for finder.absent in ("torch", "onnx", "onnxruntime", "onnxscript"):
    with contextlib.redirect_stderr(io.StringIO()) as said:
        code = main(["export", "a-run", "--out", "m"])
    print(code, said.getvalue(), end="")
"""


def test_without_the_extra_a_sentence_says_what_to_install():
    process = subprocess.run(
        [sys.executable, "-c", ABSENT], capture_output=True, text=True, check=False
    )
    sentence = "2 repper: repper export needs {}: " + install_hint("export")
    missing = ("torch", "onnx", "onnxruntime", "onnxscript")
    assert process.stdout.splitlines() == [sentence.format(one) for one in missing], process.stderr


def test_a_failure_on_the_way_keeps_what_was_there(run, model, tmp_path):
    folder = tmp_path / "m"
    subject = subject_of(run.folder, 1)
    evidence = evidence_of(subject, None, 50)
    shutil.copytree(model / "model", folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    wrong = replace(subject, head=replace(subject.head, encoder="another"))
    with pytest.raises(RepperError, match="was fitted on encoder"):
        export(wrong, evidence, Targets(folder), measure=False, overwrite=True)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m"]


def test_photos_calibrate_and_drawn_images_look_like_photos(run, tmp_path):
    for n, image in enumerate(natural(12, 3, 20)):
        Image.fromarray(image.transpose(1, 2, 0)).save(tmp_path / f"{n}.png")
    subject = subject_of(run.folder / "encoder.safetensors", None)
    evidence = evidence_of(subject, tmp_path, 50)
    assert evidence.images.shape == evidence.calibration.shape == (12, 1, 8, 8)
    assert evidence.labels is None
    of_run = evidence_of(subject_of(run.folder, None), tmp_path, 50)
    assert of_run.calibration.shape == (12, 1, 8, 8)
    assert len(of_run.images) == 50
    drawn = natural(50, 1, 32).astype(float)
    beside = np.corrcoef(drawn[..., :-1].ravel(), drawn[..., 1:].ravel())[0, 1]
    assert 0.7 < beside < 0.999


OWN = """
import torch
from torch import nn
from repper.encoders.encoder import Encoder

class Mean(nn.Module):
    def forward(self, x):
        return x.mean((2, 3))

class Odd(nn.Module):
    def forward(self, x):
        return x.mean((2, 3)) * (1 if float(x.sum()) > 0 else 2)

def good(channels, size, width, norm):
    return Encoder(nn.Sequential(nn.Conv2d(channels, 8, 3), nn.ReLU(), Mean()), 8)

def odd(channels, size, width, norm):
    return Encoder(nn.Sequential(nn.Conv2d(channels, 8, 3), Odd()), 8)
"""


def test_encoders_of_ones_own(tmp_path, repper):
    (tmp_path / "own.py").write_text(OWN)
    for name in ("good", "odd"):
        process = repper(
            "run", "--encoder", f"own.py:{name}", "--clients", 3, "--rounds", 0, "--out", name,
            "--engine", "serial",
        )  # fmt: skip
        assert process.returncode == 0, process.stderr
    more = ("--images", 100, "--no-measure")
    process = repper("export", "good", "--client", 0, "--out", "m", *more)
    assert process.returncode == 0, process.stderr
    assert read_model(tmp_path / "m").encoder.features == 8
    process = repper("export", "odd", "--client", 0, "--out", "n", "--images", 100)
    assert process.returncode == 2
    assert "own.py:odd' cannot be exported to ONNX" in process.stderr
    assert process.stderr.count("\n") == 1
    assert not (tmp_path / "n").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("nothing", "--out", "m"), "there is no run nothing"),
        ((".", "--out", "m"), ". is not a run folder"),
        (("RUN",), "nothing to write: give --out DIR, --one-file FILE or --hub DIR"),
        (("RUN", "--one-file", "m"), "--one-file needs --client N"),
        (("RUN", "--hub", "m"), "--hub needs --client N"),
        (("RUN", "--out", "m", "--client", "9"), "there is no client 9: this run has 0 to 3"),
        (("RUN", "--out", "m", "--client", "x"), "--client must be a whole number, got 'x'"),
        (("RUN", "--out", "m", "--most-loss", "x"), "--most-loss must be a number (points"),
        (("RUN", "--out", "m", "--images", "0"), "images must be at least 1"),
        (("RUN", "--out", "m", "--calibrate", "."), "--calibrate needs --quantize"),
        (("RUN", "--out", "m", "--quantize", "--calibrate", "x"), "there is no folder x"),
        (("RUN", "--out", "m", "--quantize", "--calibrate", "."), "there are no images in ."),
        (("RUN", "--out", "full"), "full contains note, which is not from an export"),
        (("RUN", "--out", "full/note"), "full/note is a file: choose a folder"),
        (("RUN", "--out", "full/note/m"), "cannot write --out full/note/m"),
        (("RUN", "--client", "1", "--out", "m", "--hub", "m"), "must be different places"),
        (("RUN/encoder.safetensors", "--out", "m", "--client", "1"), "--client needs a run folder"),
    ],
)  # fmt: skip
def test_mistakes_are_one_sentence(run, repper, tmp_path, arguments, sentence):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note").write_text("mine")
    process = repper("export", *(a.replace("RUN", str(run.folder)) for a in arguments))
    assert process.returncode == 2
    assert sentence in process.stderr
    assert process.stderr.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["full"]


def test_an_unfinished_run_is_refused(run, repper, tmp_path):
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "config.toml").write_bytes((run.folder / "config.toml").read_bytes())
    process = repper("export", "begun", "--out", "m")
    assert process.returncode == 2
    assert "is not finished: run its command again with --resume" in process.stderr

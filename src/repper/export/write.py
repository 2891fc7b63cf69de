"""`repper export`: build the graph, check it, and write files only if all checks pass."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from repper.basics.errors import RepperError
from repper.basics.params import save_params
from repper.edge.model_folder import (
    ENCODER,
    HEAD,
    EncoderNotes,
    HeadNotes,
    InputNotes,
    ModelNotes,
    read_model,
)
from repper.edge.onnx_file import CLASSIFIER_FORMAT, ENCODER_FORMAT, HUB_FORMAT, verified
from repper.edge.saved_head import Array, SavedHead, softmax
from repper.encoders.encoder import features_of
from repper.export.graph import FEATURES, encoder_graph, joined, sealed, takes_images
from repper.export.head_graph import LOGITS, PROBABILITIES, head_graph
from repper.export.hub import write_hub
from repper.export.measure import (
    LEAST_AGREEMENT,
    Agreement,
    Loss,
    agreement,
    fitted,
    latency,
    loss_of,
    memory,
    outputs_of,
    right,
    session,
)
from repper.export.place import check_place, staged
from repper.export.quantize import digest_of, quantized
from repper.export.source import Evidence, Images, Subject

PACKAGES = ("repper", "torch", "onnx", "onnxscript", "onnxruntime")


@dataclass(frozen=True)
class Targets:
    """The targets to write: a model folder, a one-file classifier, a Hugging Face repository."""

    out: Path | None = None
    one_file: Path | None = None
    hub: Path | None = None

    def check(self, overwrite: bool) -> None:
        """Refuse targets that are not writable, or hold files that may not be replaced."""
        places = {"--out": self.out, "--one-file": self.one_file, "--hub": self.hub}
        for flag, place in places.items():
            if place is not None:
                check_place(place, flag, overwrite)


@dataclass(frozen=True)
class Int8:
    """The loss of accuracy by int8, with unchanged heads and with heads fitted again.

    Both are None without labels; `refitted` is None where heads cannot be fitted anew.
    """

    agreement: Agreement
    as_is: Loss | None
    refitted: Loss | None

    @property
    def loss(self) -> Loss | None:
        """The loss with the heads that will be used."""
        return self.refitted or self.as_is


@dataclass(frozen=True)
class Report:
    """The result of an export; if it was not `kept`, nothing was written."""

    evidence: str
    judge: str
    agreement: Agreement
    int8: Int8 | None
    kept: bool
    bytes: dict[str, int]
    milliseconds: dict[str, float]
    megabytes: dict[str, int]
    note: str = ""


def export(
    subject: Subject,
    evidence: Evidence,
    targets: Targets,
    *,
    quantize: bool = False,
    most_loss: float = 1.0,
    accept_loss: bool = False,
    measure: bool = True,
    overwrite: bool = False,
) -> Report:
    """Check an encoder and its head in onnxruntime, and write the targets.

    With `measure`, also time and memory are measured. An earlier export is only replaced with
    `overwrite`.
    """
    targets.check(overwrite)
    spec, wanted = subject.spec, subject.digest
    core = encoder_graph(spec, subject.params)
    before = features_of(spec, subject.params, evidence.images)

    def in_torch(images: Images) -> Array:
        return features_of(spec, subject.params, images)

    data = _encoder_file(core, subject, wanted, "fp32")
    running = session(data)
    after = outputs_of(running, evidence.images)
    heads = [judge.head or _must(fitted(judge, in_torch, wanted)) for judge in evidence.judges]
    found = agreement(evidence, heads, before, after)
    if not np.isfinite(after).all() or not found.enough:
        raise RepperError(
            f"the exported encoder agrees with PyTorch on only {found.percent:.2f} % of "
            f"{found.images} images, not on more than {LEAST_AGREEMENT} %: nothing was written"
        )
    head, graph, precision, int8, note = subject.head, core, "fp32", None, ""
    if quantize:
        precision = "int8"
        graph = quantized(core, evidence.calibration)
        wanted = digest_of(graph)
        data = _encoder_file(graph, subject, wanted, precision)
        running = session(data)
        int8, new = _int8(evidence, heads, before, running, wanted)
        loss = int8.loss
        if not accept_loss and (loss is None or loss.points > most_loss):
            return Report(evidence.source, _names(evidence), found, int8, False, {}, {}, {})
        if head is not None:
            head = new[0] if new else replace(head, encoder=wanted)
            note = "the client's head was fitted anew on int8 features" if new else (
                f"the client's {head.kind} head cannot be fitted anew: it is used as it is"
            )  # fmt: skip
        after = outputs_of(running, evidence.images)
    scores = _scores(evidence, found, int8)
    with staged(targets.out, targets.one_file, targets.hub) as (out, one_file, hub):
        sizes: dict[str, int] = {}
        if out is not None:
            sizes |= _write_folder(out, subject, head, data, wanted, precision, scores)
        if one_file is not None:
            head = _must(head)
            sizes["one file"] = _write_one(
                one_file, graph, subject, head, precision, evidence, after
            )
        if hub is not None:
            sizes["hub"] = _write_hub(hub, graph, subject, _must(head), precision, evidence, after)
        times = latency(subject, running, evidence.images) if measure else {}
        taken = _memory(out, subject) if measure and out is not None else {}
    return Report(evidence.source, _names(evidence), found, int8, True, sizes, times, taken, note)


def _int8(
    evidence: Evidence, heads: list[SavedHead], before: Array, running: Any, digest: str
) -> tuple[Int8, list[SavedHead]]:
    """Measure the loss by int8, and fit heads again on its features if possible."""
    after = outputs_of(running, evidence.images)
    found = agreement(evidence, heads, before, after)
    refitted = [fitted(j, lambda i: outputs_of(running, i), digest) for j in evidence.judges]
    new = [head for head in refitted if head is not None]
    new = new if len(new) == len(heads) else []
    if evidence.labels is None or not sum(len(judge.rows) for judge in evidence.judges):
        return Int8(found, None, None), new
    was = right(evidence, heads, before)
    as_is = loss_of(was, right(evidence, heads, after))
    again = loss_of(was, right(evidence, new, after)) if new else None
    return Int8(found, as_is, again), new


def _notes(subject: Subject, format: str, digest: str, precision: str) -> dict[str, str]:
    return {
        "repper.format": format,
        "repper.encoder": digest,
        "repper.precision": precision,
        "repper.architecture": subject.spec.name,
        "repper.origin": subject.origin,
        "repper.version": metadata.version("repper"),
    }


def _encoder_file(core: ModelProto, subject: Subject, digest: str, precision: str) -> bytes:
    full = takes_images(core, subject.spec.channels, subject.spec.size)
    return sealed(full, _notes(subject, ENCODER_FORMAT, digest, precision))


def _write_folder(
    folder: Path,
    subject: Subject,
    head: SavedHead | None,
    data: bytes,
    digest: str,
    precision: str,
    scores: dict[str, Any],
) -> dict[str, int]:
    folder.mkdir()
    spec = subject.spec
    (folder / ENCODER).write_bytes(data)
    features = session(data).get_outputs()[0].shape[1]
    if head is not None:
        head.save(folder / HEAD)
    notes = ModelNotes(
        encoder=EncoderNotes(
            sha256=hashlib.sha256(data).hexdigest(), digest=digest, precision=precision,
            architecture=spec.name, features=features, origin=subject.origin,
        ),
        input=InputNotes(spec.size, spec.channels),
        classes=None if head is None else head.names,
        head=None if head is None else HeadNotes(head.kind, head.digest()),
        scores=scores,
        versions={name: metadata.version(name) for name in PACKAGES},
        made_from=subject.made_from,
    )  # fmt: skip
    notes.write(folder)
    written = read_model(folder)
    written.encoder_bytes(folder)
    written.read_head(folder)
    return {path.name: path.stat().st_size for path in sorted(folder.iterdir())}


def _write_one(
    path: Path,
    graph: ModelProto,
    subject: Subject,
    head: SavedHead,
    precision: str,
    evidence: Evidence,
    features: Array,
) -> int:
    both = joined(graph, head_graph(head, PROBABILITIES), {FEATURES: FEATURES})
    full = takes_images(both, subject.spec.channels, subject.spec.size, "image")
    notes = _notes(subject, CLASSIFIER_FORMAT, head.encoder, precision) | {
        "repper.classes": json.dumps(list(head.names), ensure_ascii=False),
        "repper.head": head.digest(),
        "repper.head_kind": head.kind,
    }
    path.write_bytes(sealed(full, notes))
    running = session(verified(path, CLASSIFIER_FORMAT))
    _same(path, softmax(head.scores(features)), lambda i: outputs_of(running, i), evidence)
    return path.stat().st_size


def _write_hub(
    folder: Path,
    graph: ModelProto,
    subject: Subject,
    head: SavedHead,
    precision: str,
    evidence: Evidence,
    features: Array,
) -> int:
    both = joined(graph, head_graph(head, LOGITS), {FEATURES: FEATURES})
    data = sealed(both, _notes(subject, HUB_FORMAT, head.encoder, precision))
    running = session(data)
    scores = head.scores(features)
    _same(folder, scores, lambda i: outputs_of(running, i, pixels=True), evidence)
    write_hub(folder, subject.spec, head, precision, data)
    return len(data)


def _same(
    path: Path, wanted: Array, outputs: Callable[[Images], Array], evidence: Evidence
) -> None:
    """Refuse a graph of encoder and head whose predictions differ from theirs."""
    found = outputs(evidence.images)
    share = 100 * float((found.argmax(1) == wanted.argmax(1)).mean())
    if share <= LEAST_AGREEMENT or not np.isfinite(found).all():
        raise RepperError(
            f"{path.name} agrees with the encoder and the head on only {share:.2f} % of the "
            f"images: nothing was written"
        )


def _memory(out: Path, subject: Subject) -> dict[str, int]:
    """Peak memory of PyTorch, with the encoder as a run writes it, and of onnxruntime."""
    spec = subject.spec
    notes = {key: str(getattr(spec, key)) for key in ("name", "channels", "size", "width", "norm")}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "encoder.safetensors"
        save_params(path, subject.params, notes)
        return memory(path, out / ENCODER)


def _scores(evidence: Evidence, found: Agreement, int8: Int8 | None) -> dict[str, Any]:
    """The scores in `model.json`; they are equal in every export of a run."""
    scores: dict[str, Any] = {
        "checked on": evidence.source,
        "by": _names(evidence),
        "same predictions as PyTorch in fp32 (%)": round(found.percent, 3),
    }
    if int8 is not None:
        scores["same predictions in int8, same heads (%)"] = round(int8.agreement.percent, 2)
        if int8.loss is not None:
            scores["int8"] = {key: round(value, 2) for key, value in asdict(int8.loss).items()}
    return scores


def _names(evidence: Evidence) -> str:
    judges = evidence.judges
    return judges[0].name if len(judges) == 1 else f"the heads of {len(judges)} clients"


def _must(head: SavedHead | None) -> SavedHead:
    if head is None:
        raise TypeError("there is no head")
    return head

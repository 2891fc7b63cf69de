"""The command `repper export`."""

from __future__ import annotations

import argparse
import importlib.util
from typing import TYPE_CHECKING

from repper.basics.errors import RepperError, needs
from repper.cli.arguments import AddCommand, client_number, count, path
from repper.cli.interrupt import Loading
from repper.cli.show import say

if TYPE_CHECKING:
    from repper.export.measure import Loss
    from repper.export.write import Report


def add_commands(add: AddCommand) -> None:
    export = add("export", "write an encoder, and a client's head, as ONNX files", _export)
    export.add_argument(
        "run", type=path, metavar="RUN",
        help="folder of a finished run, or without --client an encoder.safetensors",
    )  # fmt: skip
    export.add_argument(
        "--out", type=path, metavar="DIR",
        help="model folder to write: encoder.onnx and model.json, and with --client "
        "head.safetensors",
    )  # fmt: skip
    export.add_argument(
        "--client", metavar="N", help="export this client's head, and its own encoder if it has one"
    )
    export.add_argument(
        "--one-file", type=path, metavar="FILE",
        help="write encoder and head as one ONNX file that maps images to probabilities",
    )  # fmt: skip
    export.add_argument(
        "--hub", type=path, metavar="DIR",
        help="write a Hugging Face repository for transformers.js",
    )  # fmt: skip
    export.add_argument(
        "--quantize", action="store_true",
        help="quantize to int8: a quarter of the size, and faster; measures the loss of accuracy",
    )  # fmt: skip
    export.add_argument(
        "--calibrate", type=path, metavar="FOLDER",
        help="folder of images to calibrate int8 on (default: the run's training images)",
    )  # fmt: skip
    export.add_argument(
        "--most-loss", default="1.0", metavar="POINTS",
        help="maximum loss of accuracy by int8, in points (default: 1.0)",
    )  # fmt: skip
    export.add_argument(
        "--accept-loss",
        action="store_true",
        help="write int8 files even if the loss is larger, or unknown",
    )
    export.add_argument(
        "--images",
        default="5000",
        metavar="N",
        help="number of images to compare PyTorch and onnxruntime on (default: 5000)",
    )
    export.add_argument("--overwrite", action="store_true", help="replace an earlier export")
    export.add_argument("--no-measure", action="store_true", help="do not measure time and memory")


def _export(options: argparse.Namespace) -> int:
    client = None if options.client is None else client_number(options.client)
    most_loss = _points(options.most_loss)
    images = count(options.images, "images")
    places = {"--out": options.out, "--one-file": options.one_file, "--hub": options.hub}
    if not any(places.values()):
        raise RepperError("nothing to write: give --out DIR, --one-file FILE or --hub DIR")
    for flag in ("--one-file", "--hub"):
        if places[flag] is not None and client is None:
            raise RepperError(f"{flag} needs --client N, because it contains a client's head")
    if options.calibrate is not None and not options.quantize:
        raise RepperError("--calibrate needs --quantize: add --quantize, or leave out --calibrate")
    given = [place.absolute() for place in places.values() if place is not None]
    if len({*given}) < len(given):
        raise RepperError("--out, --one-file and --hub must be different places")
    with Loading(), needs("export", "repper export"):
        # First of all: PyTorch imports some of them only when the exporter is at work.
        for package in ("torch", "onnx", "onnxruntime", "onnxscript"):
            if importlib.util.find_spec(package) is None:
                raise ModuleNotFoundError(f"No module named {package!r}", name=package)
        from repper.export.source import evidence_of, subject_of
        from repper.export.write import Targets, export
    targets = Targets(options.out, options.one_file, options.hub)
    targets.check(options.overwrite)
    subject = subject_of(options.run, client)
    evidence = evidence_of(subject, options.calibrate, images)
    report = export(
        subject,
        evidence,
        targets,
        quantize=options.quantize,
        most_loss=most_loss,
        accept_loss=options.accept_loss,
        measure=not options.no_measure,
        overwrite=options.overwrite,
    )
    _print(report, most_loss)
    if report.kept:
        for place in places.values():
            if place is not None:
                say(f"written to {place}")
    return 0 if report.kept else 1


def _points(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise RepperError(
            f"--most-loss must be a number (points of accuracy), got {text!r}"
        ) from error


def _print(report: Report, most_loss: float) -> None:
    found = report.agreement
    say(f"checked on {report.evidence}, with {report.judge}")
    say(
        f"fp32: {found.percent:.2f} % of {found.images} predictions equal PyTorch's; features "
        f"differ by at most {found.difference:.1e} (largest feature {found.largest:.3g})"
    )
    if report.int8 is not None:
        say(f"int8: {report.int8.agreement.percent:.2f} % of predictions equal PyTorch's")
        if report.int8.as_is is not None:
            say(f"int8 with unchanged heads: {_loss(report.int8.as_is)}")
        if report.int8.refitted is not None:
            say(f"int8 with heads fitted again on its features: {_loss(report.int8.refitted)}")
    if not report.kept:
        loss = report.int8.loss if report.int8 is not None else None
        say(
            "nothing was written: without labels the loss of accuracy by int8 cannot be measured; "
            "--accept-loss writes the files anyway"
            if loss is None
            else f"nothing was written: int8 loses {loss.points:.2f} points of accuracy, more than "
            f"--most-loss {most_loss:g}; --accept-loss writes the files anyway"
        )
        return
    if report.note:
        say(report.note)
    for name, size in report.bytes.items():
        say(f"{name}: {size:,} bytes")
    times = report.milliseconds
    for images in (1, 32) if times else ():
        torch, onnx = times[f"pytorch {images}"], times[f"onnxruntime {images}"]
        noun = "image" if images == 1 else "images"
        say(f"{images} {noun}: PyTorch {torch:.2f} ms, onnxruntime {onnx:.2f} ms (medians)")
    if report.megabytes:
        say("memory: " + ", ".join(f"{n} {mb} MB" for n, mb in report.megabytes.items()))


def _loss(loss: Loss) -> str:
    return (
        f"accuracy {loss.after:.2f} % instead of {loss.before:.2f} %, a loss of {loss.points:.2f} "
        f"± {loss.interval:.2f} points on {loss.images} images"
    )

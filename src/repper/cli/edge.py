"""The commands of a device: `personalize`, `add`, `remove`, `predict`, `evaluate` and `play`."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repper.basics.errors import RepperError, needs, unknown
from repper.basics.files import write_atomically
from repper.basics.options import Option, options_of
from repper.basics.table import figure
from repper.cli.arguments import AddCommand, client_number, count, path
from repper.cli.interrupt import Loading
from repper.cli.show import console, say, tell
from repper.heads import DEVICE_HEADS, HEAD_SETTINGS

if TYPE_CHECKING:
    from repper.personal.evaluation import Evaluation
    from repper.personal.personalize import Personalized

SKIP = "leave out unreadable photos instead of ending with an error"
EDGE = "edge"
"""The extra that brings what is needed to fit a head."""

MOST_NAMED = 20
"""So many classes are named in a sentence."""


def add_commands(add: AddCommand) -> None:
    _add_personalize(add)
    _add_change(add)
    _add_predict(add)
    _add_evaluate(add)
    _add_play(add)


def _options_of(kind: str) -> dict[str, Option]:
    """The settings of a kind of head, by flag."""
    settings: type = HEAD_SETTINGS[kind]
    return {option.key: option for option in options_of(settings).values()}


def _head_options() -> dict[str, Option]:
    """The settings of all heads."""
    return {key: option for kind in DEVICE_HEADS for key, option in _options_of(kind).items()}


def _add_personalize(add: AddCommand) -> None:
    made = add("personalize", "fit a classifier for your own photos on an exported encoder", _make)
    made.add_argument(
        "--encoder", required=True, type=path, metavar="FILE",
        help="encoder.onnx or a model folder, written by repper export",
    )  # fmt: skip
    made.add_argument(
        "--images", required=True, type=path, metavar="DIR",
        help="photos in one subfolder per class, or in train/ and test/ with such subfolders",
    )  # fmt: skip
    made.add_argument(
        "--out", required=True, type=path, metavar="DIR", help="model folder to write"
    )
    made.add_argument(
        "--head",
        default="linear",
        metavar="|".join(DEVICE_HEADS),
        help="kind of head (default: linear)",
    )
    made.add_argument("--seed", default="0", metavar="N", help="random seed (default: 0)")
    made.add_argument("--no-unknown", action="store_true", help="never answer `unknown`")
    made.add_argument("--skip-unreadable", action="store_true", help=SKIP)
    made.add_argument("--overwrite", action="store_true", help="replace the model in --out")
    made.add_argument("--json", action="store_true", help="print one line of JSON instead of text")
    for key, option in _head_options().items():
        action: dict[str, Any] = {"dest": f"head:{key}", "default": None}
        if option.kind is bool:
            made.add_argument(
                f"--{key}", action="store_const", const="true", help=option.help, **action
            )
        else:
            made.add_argument(f"--{key}", metavar="X", help=option.help, **action)


def _make(options: argparse.Namespace) -> int:
    with Loading(), needs(EDGE, "repper personalize"):
        from repper.personal.personalize import personalize
    if options.head not in DEVICE_HEADS:
        raise unknown("head", options.head, DEVICE_HEADS)
    own = _options_of(options.head)
    settings = {}
    for key, option in _head_options().items():
        text = getattr(options, f"head:{key}")
        if text is not None:
            if key not in own:
                raise RepperError(f"--{key} is not a setting of {options.head} heads")
            settings[own[key].name] = option.check(option.parse(text))
    done = personalize(
        options.encoder,
        options.images,
        options.out,
        head=options.head,
        settings=settings,
        seed=_whole(options.seed, "seed"),
        unknown=not options.no_unknown,
        skip_unreadable=options.skip_unreadable,
        overwrite=options.overwrite,
    )
    _say_passed_over(options.images)
    _tell(done, options.json)
    return 0


def _say_passed_over(images: Path) -> None:
    from repper.data.image_folder import passed_over

    if said := passed_over(images):
        tell(f"note: {images}: {said}")


def _whole(text: str, flag: str, most: int = 2**32 - 1) -> int:
    option = Option("", name=flag, kind=int, least=0, most=most)
    value: int = option.check(option.parse(text))
    return value


def _tell(done: Personalized, as_json: bool) -> None:
    """Print what was fitted, and its accuracy."""
    for warning in done.warnings:
        tell(f"note: {warning}")
    if done.added is not None:
        for one in done.added.unreadable:
            tell(f"note: left out {one}, which cannot be read")
    held, tested = done.held_out, done.tested
    if as_json:
        answer: dict[str, Any] = {
            "model": str(done.folder),
            "head": done.head,
            "photos": done.counts,
            "new": done.added.new if done.added else 0,
            "held_out_accuracy": held.accuracy if held else None,
            "test": _as_json(tested) if tested else None,
            "notes": list(done.warnings),
        }
        say(json.dumps(answer))
        return
    total, classes = sum(done.counts.values()), len(done.counts)
    say(f"fitted on {total} photos of {classes} classes (head: {done.head})")
    if done.added is not None and done.added.known:
        say(
            f"{done.added.known} of these photos were known already; features of {done.added.new} "
            f"new photos were computed"
        )
    if held is not None:
        say(
            f"held-out accuracy {figure(held.accuracy)} %: {held.photos} photos in {held.folds} "
            f"parts, each part classified by a head that was fitted on the other parts"
        )
    if tested is not None:
        _print_evaluation(tested, "test accuracy")
    say(f"Model: {done.folder}")


def _add_change(add: AddCommand) -> None:
    more = add(
        "add",
        "add photos to a model and fit its head again; features of known photos are not "
        "computed again",
        _more,
    )
    more.add_argument("model", type=path, metavar="MODEL", help="model folder")
    more.add_argument(
        "--images",
        required=True,
        type=path,
        metavar="DIR",
        help="photos in one subfolder per class",
    )
    more.add_argument("--skip-unreadable", action="store_true", help=SKIP)
    more.add_argument("--json", action="store_true", help="print one line of JSON instead of text")
    less = add(
        "remove", "remove photos or whole classes from a model, and fit its head again", _less
    )
    less.add_argument("model", type=path, metavar="MODEL", help="model folder")
    less.add_argument(
        "photos",
        nargs="*",
        type=path,
        metavar="PHOTO",
        help="photos of the model to remove: files or folders",
    )
    less.add_argument(
        "--class", dest="classes", action="append", default=[], metavar="NAME",
        help="class to remove; repeatable",
    )  # fmt: skip
    less.add_argument("--json", action="store_true", help="print one line of JSON instead of text")


def _more(options: argparse.Namespace) -> int:
    with Loading(), needs(EDGE, "repper add"):
        from repper.personal.personalize import add
    done = add(options.model, options.images, skip_unreadable=options.skip_unreadable)
    _say_passed_over(options.images)
    _tell(done, options.json)
    return 0


def _less(options: argparse.Namespace) -> int:
    with Loading(), needs(EDGE, "repper remove"):
        from repper.personal.personalize import remove
    if not options.photos and not options.classes:
        raise RepperError("nothing to remove: give photos, or --class NAME")
    _tell(remove(options.model, options.photos, options.classes), options.json)
    return 0


def _add_predict(add: AddCommand) -> None:
    predict = add("predict", "classify images with a model, or with a client's head", _predict)
    predict.add_argument(
        "images", nargs="+", metavar="IMAGE",
        help="a model folder, then images or folders of images; with --run only images",
    )  # fmt: skip
    predict.add_argument(
        "--run", type=path, metavar="RUN", help="run folder, instead of a model folder"
    )
    predict.add_argument("--client", metavar="N", help="number of the client in the run")
    predict.add_argument(
        "--top", default="1", metavar="K", help="number of classes to print per image (default: 1)"
    )
    predict.add_argument("--no-unknown", action="store_true", help="never answer `unknown`")
    predict.add_argument("--json", action="store_true", help="print one line of JSON with scores")


def _predict(options: argparse.Namespace) -> int:
    if options.run is not None:
        return _predict_of_run(options)
    if options.client is not None:
        raise RepperError("--client needs --run RUN")
    folder, *images = map(Path, options.images)
    if not images:
        raise RepperError("give a model folder and at least one image: repper predict MODEL IMAGE")
    top = count(options.top, "top")
    from repper.personal.model import Model
    from repper.personal.photos import files_of

    model = Model.open(folder)
    paths = files_of(images)
    answers = model.predict(paths)
    if options.no_unknown:
        answers = [replace(answer, unknown=False) for answer in answers]
    rows = []
    for image, answer in zip(paths, answers, strict=True):
        best = answer.chances[:top]
        rows.append(
            {"image": str(image), "class": None if answer.unknown else answer.name,
             "unknown": answer.unknown, "chances": dict(best)}
        )  # fmt: skip
        if not options.json:
            shown = ", ".join(f"{name} {100 * chance:.1f} %" for name, chance in best)
            said = f"unknown (nearest: {shown})" if answer.unknown else shown
            say(image, said)
    if options.json:
        say(json.dumps({"model": str(folder), "predictions": rows}))
    return 0


def _predict_of_run(options: argparse.Namespace) -> int:
    if options.client is None:
        raise RepperError("--run needs --client N, the number of a client")
    client = client_number(options.client)
    from repper import open_run

    run, top = open_run(options.run), count(options.top, "top")
    answers = run.predict_with_scores(client, options.images)
    rule = None if options.no_unknown else run.rule_for_unknown(client)
    strange = run.is_unknown(rule, client, options.images) if rule else [False] * len(answers)
    rows = [
        {"image": image, "class": None if far else name, "unknown": bool(far), "scores": scores}
        for image, (name, scores), far in zip(options.images, answers, strange, strict=True)
    ]
    known = list(answers[0][1])
    _say_what_is_known(client, known, len(run.classes), is_told=rule is not None)
    if options.json:
        say(json.dumps({"client": client, "known": known, "predictions": rows}))
        return 0
    for row in rows:
        best = sorted(row["scores"], key=row["scores"].__getitem__, reverse=True)[:top]
        said = ", ".join(best)
        say(row["image"], f"unknown (nearest: {said})" if row["unknown"] else said)
    return 0


def _say_what_is_known(client: int, known: list[str], classes: int, *, is_told: bool) -> None:
    """Say on stderr which classes a head knows, unless it knows all, and what becomes of others."""
    if len(known) == classes:
        return
    if is_told:
        others = "images unlike its own are called unknown, but not all of other classes are unlike"
    else:
        others = "an image of any other class gets one of these too"
    names = ", ".join(known[:MOST_NAMED]) + (", ..." if len(known) > MOST_NAMED else "")
    tell(f"client {client}'s head knows {len(known)} of {classes} classes ({names}): {others}")


def _add_evaluate(add: AddCommand) -> None:
    evaluate = add("evaluate", "test a model on photos it has not seen", _evaluate)
    evaluate.add_argument("model", type=path, metavar="MODEL", help="model folder")
    evaluate.add_argument(
        "--images", required=True, type=path, metavar="DIR",
        help="photos in one subfolder per class; photos of classes that the model does not know "
        "test `unknown`",
    )  # fmt: skip
    evaluate.add_argument("--skip-unreadable", action="store_true", help=SKIP)
    evaluate.add_argument(
        "--json", action="store_true", help="print one line of JSON instead of text"
    )


def _evaluate(options: argparse.Namespace) -> int:
    from repper.personal.evaluation import evaluate

    found = evaluate(options.model, options.images, skip_unreadable=options.skip_unreadable)
    if options.json:
        say(json.dumps(_as_json(found)))
    else:
        if options.images.is_dir():
            _say_passed_over(options.images)
        _print_evaluation(found)
        _print_confusion(found)
    return 0


def _as_json(found: Evaluation) -> dict[str, Any]:
    return {
        "photos": found.photos,
        "accuracy": found.accuracy,
        "interval": found.interval,
        "classes": list(found.classes),
        "confusion": found.confusion.tolist(),
        "called_unknown": found.called_unknown,
        "strangers": found.strangers,
        "strangers_unknown": found.strangers_unknown,
    }


def _print_evaluation(found: Evaluation, name: str = "accuracy") -> None:
    for one in found.unreadable:
        tell(f"note: left out {one}, which cannot be read")
    if found.accuracy is not None and found.interval is not None:
        low, high = found.interval
        say(
            f"{name} {figure(found.accuracy)} % on {found.photos} photos "
            f"(95 % interval {figure(low)} to {figure(high)})"
        )
        if found.called_unknown is not None:
            say(
                f"{found.called_unknown} of these photos would be answered with `unknown`; the "
                f"accuracy ignores this"
            )
    if found.strangers:
        far = found.strangers_unknown
        said = "the model has no rule for `unknown`" if far is None else f"{far} called unknown"
        say(f"{found.strangers} photos of classes that the model does not know: {said}")


def _print_confusion(found: Evaluation) -> None:
    if not found.photos:
        return
    from rich.markup import escape
    from rich.table import Table

    table = Table(
        title="Confusion matrix: true class (rows) and predicted class (columns)",
        title_justify="left",
    )
    table.add_column("")
    for name in found.classes:
        table.add_column(escape(name), justify="right")
    table.add_column("right", justify="right")
    for place, name in enumerate(found.classes):
        row = found.confusion[place]
        share = f"{figure(100 * row[place] / row.sum())} %" if row.sum() else "-"
        table.add_row(escape(name), *(str(n) if n else "·" for n in row), share)
    console(width=None if sys.stdout.isatty() else 160).print(table)


def _add_play(add: AddCommand) -> None:
    play = add("play", "teach and try a model in the browser, without a network", _play)
    play.add_argument("model", type=path, metavar="MODEL", help="model folder")
    play.add_argument(
        "--html",
        type=path,
        metavar="FILE",
        help="write the page as one HTML file that needs no server, and exit",
    )
    play.add_argument(
        "--port", default="0", metavar="N", help="port on this machine (default: any free one)"
    )
    play.add_argument(
        "--no-browser", action="store_true", help="print the address, but do not open a browser"
    )


def _play(options: argparse.Namespace) -> int:
    from repper.edge.play import page_of, serve

    port = _whole(options.port, "port", most=65535)
    page = page_of(options.model)
    if options.html is not None:
        write_atomically(options.html, page)
        say(f"written to {options.html} ({len(page) / 1e6:.1f} MB): open it in a browser")
        return 0

    def started(address: str) -> None:
        say(f"{address} (Ctrl+C ends it)")
        if not options.no_browser:
            import webbrowser

            webbrowser.open(address)

    try:
        serve(page, port, started)
    except KeyboardInterrupt:
        return 0
    return 0

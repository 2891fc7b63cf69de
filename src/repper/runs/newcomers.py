"""New clients: they take the encoder of a finished run and fit their own heads on it.

It is a run without rounds that starts from another run's encoder, so its folder is a run folder,
with each client's accuracy after every epoch besides.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from repper.basics.errors import RepperError
from repper.basics.registry import is_reference
from repper.data import DATASETS
from repper.data.dataset import Dataset
from repper.data.partition import KINDS
from repper.data.shape import shaped
from repper.encoders import HALF
from repper.heads import HEADS
from repper.heads.personalize import NEED_A_HEAD, NEED_COMMON
from repper.runs.build import load_data
from repper.runs.execute import Event, execute
from repper.runs.result import read_common
from repper.runs.run import Run
from repper.settings.config import JOIN_SETTINGS, Config


def join(
    run: Run,
    settings: dict[str, Any],
    data: Dataset | None = None,
    *,
    same_clients: bool = False,
    resume: bool = False,
    overwrite: bool = False,
) -> Iterator[Event]:
    """Fit heads of clients that the run has never seen, or of the same clients on other images.

    `settings` are those in `JOIN_SETTINGS`; what they do not give is as in the run, except that
    heads are linear, and that images are dealt anew: with the run's next seed, and by Dirichlet
    where the run had a manifest, folders, or other data.
    """
    config = join_config(run, settings, same_clients)
    spec, _ = run.encoder
    if data is None and "data" not in settings and not _is_at_hand(config.data):
        raise RepperError(
            f"the images of {run.folder} are {config.data!r}, neither a known data set nor a "
            f"folder here: give others by --data, or in Python arrays, repper.join(run, data=...)"
        )
    images = data or load_data(config)
    images = shaped(images, spec.channels, spec.size)
    yield from execute(config, images, resume=resume, overwrite=overwrite)


def _is_at_hand(name: str) -> bool:
    """Whether images can be found by this name, which a data set of arrays has for itself."""
    return name in DATASETS or is_reference(name) or Path(name).expanduser().exists()


def join_config(run: Run, settings: dict[str, Any], same_clients: bool) -> Config:
    """The settings of the run without rounds that lets clients join."""
    before = run.config
    _ = run.result  # a run that is not finished is refused
    spec, _ = run.encoder
    personalize = settings.get("personalize") or "linear"
    if personalize in NEED_A_HEAD:
        raise RepperError(
            f"--personalize {personalize} starts from a head of the method, and new clients "
            f"have none: choose one of {', '.join(HEADS)}"
        )
    if personalize in NEED_COMMON:
        read_common(run.folder)
        settings = {"common_rounds": 0} | settings
    if same_clients and settings.get("clients") not in (None, before.clients):
        raise RepperError(
            f"--same-clients keeps the run's {before.clients} clients: leave out --clients"
        )
    if same_clients and settings.get("data", before.data) != before.data:
        raise RepperError(f"--same-clients keeps the run's data set {before.data!r}")
    same_data = settings.get("data", before.data) == before.data
    own = ("out", "image_size", "download")  # downloading needs consent for every run
    kept = {n: before.setting(n) for n in JOIN_SETTINGS if n not in own}
    if not same_data:
        # These settings of one data set need not make sense for another.
        kept = {n: v for n, v in kept.items() if n not in ("train_images", "partition")}
    elif before.partition not in KINDS:
        del kept["partition"]  # with the same images, the clients would not be new
    taken = kept | {"personalize": "linear", "head_curve": 1, "seed": before.seed + 1} | settings
    if taken.get("image_size") is None and taken["data"] not in DATASETS:
        taken["image_size"] = spec.size
    return Config(
        **taken,
        method=before.method,
        encoder=spec.name,
        width=spec.width,
        norm=spec.norm,
        pixels=None if spec.pixels == HALF else spec.pixels,
        rounds=0,
        knn=0,
        init=str(run.folder),
        init_clients="same" if same_clients else "new",
    )

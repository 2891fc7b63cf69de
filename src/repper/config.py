"""Settings: one frozen value, from flags, a TOML file or Python, checked in one place.

This file needs no PyTorch, so that `repper run --help` is quick.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repper.client_list import clients_in, normal
from repper.datasets import DATASETS, Dataset, load
from repper.encoders import ENCODERS, NORMS
from repper.engines import ENGINES
from repper.errors import RepperError, unknown
from repper.heads import HEADS
from repper.methods import METHODS
from repper.methods.schedule import Schedule, cohort_size
from repper.options import option, options_of
from repper.partition import Partition, by_folders, read_partition, split
from repper.personalize import (
    FINETUNE,
    KEEP,
    FineTune,
    FitHead,
    Keep,
    Personalizer,
    personalizer_names,
)

if TYPE_CHECKING:
    from repper.methods.method import Method


STAGE2 = "stage 2: the heads"


def _data(default: Any, help: str, **limits: Any) -> Any:
    return option(default, help, "data", **limits)


def _stage1(default: Any, help: str, **limits: Any) -> Any:
    return option(default, help, "stage 1: the encoder", **limits)


def _stage2(default: Any, help: str, **limits: Any) -> Any:
    return option(default, help, STAGE2, **limits)


def _how(default: Any, help: str, **limits: Any) -> Any:
    return option(default, help, "how to run", **limits)


@dataclass(frozen=True)
class Config:
    """Every setting of a run. A setting's flag and TOML key is its name with `-` for `_`."""

    data: str = _data("digits", f"data set: {', '.join(DATASETS)}, or a folder of images")
    data_dir: str | None = _data(
        None, "folder of data sets (default: REPPER_DATA, else ~/.cache/repper)"
    )
    download: bool = _data(False, "fetch the data set into its folder if it is not there")
    image_size: int | None = _data(
        None,
        "side in pixels that images are resized to (default: a data set's own, 32 for a folder)",
        least=1,
        most=4096,
    )
    train_images: int | None = _data(
        None, "use only so many training images, a fixed part of each class", least=1
    )
    test_share: float = _data(
        0.2, "share of the images to test on, where a folder has no test/", above=0, most=0.9
    )
    skip_unreadable: bool = _data(False, "leave out images that cannot be read")
    partition: str = _data(
        "dirichlet",
        "how clients differ: dirichlet, iid, shards, folders (one per client, in a folder of "
        "images), or a manifest (.json)",
    )
    clients: int = _data(20, "number of clients", least=1)
    alpha: float = _data(0.5, "Dirichlet concentration: smaller is more skewed", above=0)
    classes_per_client: int = _data(2, "classes each client holds, for shards", least=1)
    min_train: int = _data(10, "least training images a client may have", least=2)
    min_test: int = _data(1, "least test images a client may have", least=0)

    method: str = _stage1("repper", "federated method", choices=lambda: METHODS)
    encoder: str = _stage1("small", "encoder", choices=lambda: ENCODERS)
    width: float = _stage1(1.0, "factor on the encoder's channels", above=0, most=16)
    norm: str = _stage1("batch", "normalization in the encoder", choices=NORMS)
    projection: str = _stage1(
        "none", "layers behind the encoder in stage 1 only", choices=("none", "linear", "mlp")
    )
    loss: str = _stage1("paper", "form of RepPer's contrastive loss", choices=("paper", "usual"))
    temperature: float = _stage1(0.1, "temperature of RepPer's loss", least=1e-6)
    mu: float = _stage1(0.01, "weight of FedProx's pull; with 0 it is FedAvg", least=0, most=1e6)
    ditto_lambda: float = _stage1(
        0.1, "weight of Ditto's pull on the personal models", least=0, most=1e6
    )
    fedrep_head_epochs: int | None = _stage1(
        None, "how many of FedRep's --epochs go to the head (default: half)", least=1
    )
    augment: str = _stage1(
        "strong", "strength of the random views", choices=("none", "weak", "strong")
    )
    participation: float = _stage1(
        0.2, "share of the clients in a round (the paper's C)", above=0, most=1
    )
    stage1_clients: str | None = _stage1(
        None, "clients in stage 1: a count or a list such as 0,3,7 (default: all)"
    )
    rounds: int = _stage1(30, "rounds; 0 leaves the encoder untrained", least=0)
    epochs: int = _stage1(5, "local epochs in a round (the paper's E)", least=1)
    batch: int = _stage1(256, "images in a batch", least=2)
    lr: float = _stage1(1e-3, "learning rate of Adam", above=0, most=1e6)
    lr_decay: float = _stage1(
        1.0, "factor on the learning rate every --lr-decay-every rounds", above=0, most=1
    )
    lr_decay_every: int = _stage1(50, "rounds between two steps of --lr-decay", least=1)
    weight_decay: float = _stage1(1e-4, "L2 weight decay", least=0, most=1e6)
    compile: bool = _stage1(
        False, "compile the training step first: slow to start, then faster (other last digits)"
    )
    precision: str = _stage1(
        "float32",
        "numbers the network computes with; bfloat16 is for GPUs, weights stay float32",
        choices=("float32", "bfloat16"),
    )
    upload: str = _stage1(
        "float32",
        "numbers that clients send; float16 takes half the bytes and rounds",
        choices=("float32", "float16"),
    )
    init: str | None = _stage1(
        None, "start from this encoder: a run folder or its encoder.safetensors"
    )
    init_clients: str = _stage1(
        "new",
        "whether clients are new to the --init run, or the same, with encoders of their own",
        choices=("new", "same"),
    )

    personalize: str | None = _stage2(
        None,
        "what a client does last (default: the method's own choice)",
        choices=personalizer_names,
    )
    head_epochs: int | None = _stage2(
        None,
        "epochs of a trained head: linear, mlp, finetune (default: at least 10, and 100 steps)",
        least=1,
    )
    head_lr: float = _stage2(0.01, "learning rate of a trained head", above=0, most=1e6)
    head_batch: int = _stage2(256, "images in a batch of a trained head", least=1)
    head_optimizer: str = _stage2("adam", "optimizer of a trained head", choices=("adam", "sgd"))
    head_weight_decay: float = _stage2(1e-4, "L2 weight decay of a trained head", least=0, most=1e6)
    head_hidden: int = _stage2(128, "hidden units of an mlp head", least=1, most=65536)
    head_c: float = _stage2(
        1.0, "inverse regularization of an svm or logistic head", least=1e-6, most=1e6
    )
    head_choose_c: bool = _stage2(
        False,
        "svm and logistic heads choose --head-c, or a tenth, hundredth or thousandth of it, on "
        "parts of the client's own training images that are held out in turn",
    )
    svm_kernel: str = _stage2("linear", "kernel of an svm head", choices=("linear", "rbf"))
    head_input: str = _stage2(
        "r", "features a new head takes: r, or z (r at length one)", choices=("r", "z")
    )
    head_plain: bool = _stage2(
        False, "new heads take features as they are, neither centred nor scaled"
    )
    head_curve: int = _stage2(
        0, "test trained heads after every N-th epoch, for curves.parquet; 0: never", least=0
    )

    evaluate_every: int = _how(
        0,
        "run stage 2 every N rounds too, to draw accuracy over rounds; 0: only at the end",
        least=0,
    )
    validation: float = _how(
        0.0, "share of each client's training images kept to choose the round by", least=0, most=0.9
    )
    knn: int = _how(
        1000, "images in the k-NN check of the encoder after each round; 0: none", least=0
    )
    seed: int = _how(0, "seed of every random choice", least=0)
    engine: str = _how(
        "pool",
        "where clients run: this process (serial), several (pool), Flower's simulation (flower)",
        choices=lambda: ENGINES,
    )
    workers: int = _how(0, "processes of the pool; 0: one per core", least=0, most=1024)
    device: str = _how("auto", "auto, cpu, cuda, cuda:N or mps")
    tensorboard: bool = _how(False, "write event files for TensorBoard into the folder too")
    out: str | None = _how(
        None, "folder to write to (default: runs/ and a name made from the settings)"
    )

    overrides: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """Settings of single clients, from `[clients.N]` tables of a TOML file: `personalize`."""

    def __post_init__(self) -> None:
        for name, setting in OPTIONS.items():
            object.__setattr__(self, name, setting.check(getattr(self, name)))
        for name in ("out", "init", "partition"):
            if (path := getattr(self, name)) is not None and path.startswith("~"):
                # Unlike that of Path, it leaves names of nobody as they are.
                object.__setattr__(self, name, os.path.expanduser(path))  # noqa: PTH111
        object.__setattr__(self, "stage1_clients", normal(self.stage1_clients))
        if self.validation and not self.evaluate_every:
            raise RepperError(
                "--validation chooses among evaluated rounds: give --evaluate-every N too"
            )
        if self.init_clients == "same" and self.init is None:
            raise RepperError(
                "--init-clients same needs the run whose clients they are: --init RUN"
            )
        for client, settings in self.overrides.items():
            for key, value in settings.items():
                if key != "personalize":
                    raise unknown(f"key in [clients.{client}]", key, ["personalize"])
                if value not in personalizer_names():
                    raise unknown(f"personalize in [clients.{client}]", value, personalizer_names())

    def check_clients(self) -> None:
        """Refuse settings that do not go with the number of clients, once it is known."""
        self.stage1()
        if self.validation and self.evaluate_every > (rounds := self.build_schedule().rounds) > 0:
            raise RepperError(
                f"--evaluate-every {self.evaluate_every} evaluates none of {rounds} rounds of "
                f"{self.method}, so --validation has nothing to choose from"
            )
        for client in self.overrides:
            if not 0 <= client < self.clients:
                raise RepperError(
                    f"[clients.{client}]: clients are numbered 0 to {self.clients - 1}"
                )

    def stage1(self) -> tuple[int, ...]:
        """The clients that may take part in stage 1."""
        if self.stage1_clients is None:
            return tuple(range(self.clients))
        return clients_in(self.stage1_clients, self.clients, "--stage1-clients")

    def load_data(self) -> Dataset:
        """The data set that the settings name."""
        return load(
            self.data,
            self.data_dir,
            image_size=self.image_size,
            by_client=by_folders(self.partition),
            download=self.download,
            skip_unreadable=self.skip_unreadable,
            test_share=self.test_share,
            train_images=self.train_images,
        )

    def build_partition(self, data: Dataset) -> Partition:
        """The partition that the settings name: a kind, or a manifest to repeat."""
        if self.partition.endswith(".json"):
            return read_partition(Path(self.partition), data)
        return split(
            data,
            self.partition,
            clients=self.clients,
            alpha=self.alpha,
            classes_per_client=self.classes_per_client,
            min_train=self.min_train,
            min_test=self.min_test,
            seed=self.seed,
        )

    def build_method(self) -> Method:
        kind = METHODS[self.method]
        return kind(**{f.name: getattr(self, f.name) for f in dataclasses.fields(kind)})

    def build_schedule(self) -> Schedule:
        """How much the method trains, for the rounds and the participation asked for."""
        clients = len(self.stage1())
        share = Fraction(cohort_size(clients, self.participation), clients)
        return self.build_method().schedule(Schedule(share, self.rounds))

    def personalize_as(self, client: int) -> str:
        """The name of what this client does last."""
        own = self.overrides.get(client, {}).get("personalize")
        return own or self.personalize or METHODS[self.method].personalize

    def build_personalizer(self, client: int) -> Personalizer:
        kind = self.personalize_as(client)
        if kind == KEEP:
            return Keep()
        settings = self._head_settings("linear" if kind == FINETUNE else kind)
        if kind == FINETUNE:
            return FineTune(settings)
        return FitHead(kind, settings, unit_input=self.head_input == "z")

    def _head_settings(self, kind: str) -> tuple[tuple[str, Any], ...]:
        """The arguments of a head's class, as the settings give them."""
        taken = HEADS[kind]().get_params()
        return tuple((to, getattr(self, name)) for name, to in OF_HEADS.items() if to in taken)

    def to_toml(self) -> dict[str, Any]:
        """This value as the tables of a TOML file, from which `read_config` makes it again."""
        tables = {
            setting.key: value
            for name, setting in OPTIONS.items()
            if (value := getattr(self, name)) is not None
        }
        if self.overrides:
            personal = {str(client): dict(s) for client, s in sorted(self.overrides.items())}
            tables["clients"] = {"count": self.clients, **personal}
        return tables

    def identity(self) -> dict[str, Any]:
        """The settings that decide a result: a run is resumed only with the same ones.

        More rounds continue a run; where and on how many processes it runs changes no bit of it.
        """
        free = {OPTIONS[name].key for name in ("rounds", *CHANGES_NOTHING)}
        return {key: value for key, value in self.to_toml().items() if key not in free}

    def training(self) -> dict[str, Any]:
        """The settings that decide what stage 1 trains, where no heads are tested on the way."""
        heads = {setting.key for setting in OPTIONS.values() if setting.group == STAGE2}
        settings = replace(self, overrides={}).identity()
        return {key: value for key, value in settings.items() if key not in heads}

    def name(self) -> str:
        """A folder name for this run: the same settings have the same name."""
        text = json.dumps(self.identity() | {"rounds": self.rounds}, sort_keys=True)
        short = hashlib.sha256(text.encode()).hexdigest()[:8]
        data = self.data if self.data in DATASETS else Path(self.data).expanduser().resolve().name
        return "-".join(filter(None, [data, self.method, self.personalize, short]))


OPTIONS = options_of(Config)
OF_HEADS = {
    "head_epochs": "epochs", "head_lr": "lr", "head_batch": "batch",
    "head_optimizer": "optimizer", "head_weight_decay": "weight_decay", "head_hidden": "hidden",
    "head_c": "c", "head_choose_c": "choose_c", "svm_kernel": "kernel", "head_plain": "plain",
}  # fmt: skip
"""Settings of heads, and what the classes of heads call them."""
CHANGES_NOTHING = ("engine", "workers", "out", "data_dir", "download", "tensorboard")
"""Settings that no result depends on."""
JOIN_SETTINGS = tuple(
    name
    for name, setting in OPTIONS.items()
    if not setting.group.startswith("stage 1")
    and name not in ("evaluate_every", "validation", "knn")
)
"""What clients can say who join a run; the rest is the run's."""
_STAGES = [name for name, setting in OPTIONS.items() if setting.group.startswith("stage")]
_NOT_OF_SITES = ("init", "init_clients", "stage1_clients", "head_curve", "compile")
TRAVELS = (
    *(name for name in _STAGES if name not in _NOT_OF_SITES),
    "seed", "image_size", "test_share", "clients",
)  # fmt: skip
"""Settings that a federation decides for its sites. No path is among them: a server cannot point a
site at other files than the site's own choice."""
FEDERATE_SETTINGS = tuple(name for name in OPTIONS if name in (*TRAVELS, "init", "out"))
"""Settings of a federation: those of its sites, and two of the server's own."""

"""What is settled and checked before a run begins; nothing is written here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from repper.compiler import check_compiler
from repper.config import Config
from repper.datasets.dataset import Dataset
from repper.encoders.encoder import EncoderSpec, read_encoder
from repper.engines.client import Task
from repper.errors import RepperError
from repper.methods.method import Method, Network, build_network, keeps_own
from repper.params import load_params
from repper.partition import Partition
from repper.personalize import NEED_A_HEAD
from repper.runs import run_folder
from repper.runs.rounds import check_private
from repper.runs.run import Run
from repper.runs.tensorboard import check_tensorboard
from repper.seeds import Purpose, torch_seed


@dataclass(frozen=True)
class Plan:
    """A run whose settings and data were checked, with nothing written yet."""

    config: Config
    data: Dataset
    partition: Partition
    folder: Path
    spec: EncoderSpec
    method: Method
    network: Network

    @property
    def task(self) -> Task:
        """What clients' work depends on; private parameters lie in the run's folder."""
        own = keeps_own(self.method, self.network)
        return Task(
            self.config, self.spec, self.partition, self.data.classes, self.data.flip,
            self.folder / run_folder.PRIVATE if own else None,
        )  # fmt: skip


def plan(config: Config, data: Dataset | None = None, partition: Partition | None = None) -> Plan:
    """Settle what the settings leave open, and refuse those that cannot work."""
    config = replace(
        config,
        device=resolve_device(config.device),
        personalize=config.personalize_as(-1),
    )
    if config.compile:
        check_compiler()
    if config.tensorboard:
        check_tensorboard()
    data = data or config.load_data()
    if partition is None:
        partition = config.build_partition(data)
        named = config.partition
        config = replace(describe_partition(config, partition), partition=named)
    else:
        partition.check(data)
        config = describe_partition(config, partition)
    config.check_clients()
    folder = Path(config.out or Path("runs") / config.name())
    _check_init(config, folder)
    spec = EncoderSpec(config.encoder, data.channels, data.size, config.width, config.norm)
    method = config.build_method()
    network = initial_network(config, method, spec, len(data.classes))
    return Plan(config, data, partition, folder, spec, method, network)


def describe_partition(config: Config, partition: Partition) -> Config:
    """The settings with those of a partition that was made before; its manifest has the rest."""
    given: dict[str, Any] = {"partition": "given", "clients": partition.clients}
    if "kind" in partition.settings:
        given["partition"] = partition.settings["kind"]
    for name in ("alpha", "classes_per_client", "min_train", "min_test"):
        if name in partition.settings:
            given[name] = partition.settings[name]
    return replace(config, **given)


def initial_network(config: Config, method: Method, spec: EncoderSpec, classes: int) -> Network:
    """The network before the first round, after checks that the method can use it."""
    network = build_network(method, spec, classes, torch_seed(config.seed, Purpose.INIT))
    for client in (-1, *config.overrides):
        name = config.personalize_as(client)
        if name in NEED_A_HEAD and network.linear_head is None:
            raise RepperError(
                f"personalize {name!r} uses the head that a method has trained, but "
                f"{config.method} trains none: choose another --personalize"
            )
    if config.rounds and not list(network.encoder.parameters()):
        raise RepperError(
            f"encoder {config.encoder!r} has nothing for {config.method} to train: use --rounds 0"
        )
    if config.init:
        given, params = read_encoder(Path(config.init))
        if replace(given, size=spec.size) != spec:
            raise RepperError(
                f"--init {config.init} holds {_described(given)}, but this run needs "
                f"{_described(spec)}"
            )
        load_params(network, params)
    return network


def _described(spec: EncoderSpec) -> str:
    return (
        f"encoder {spec.name!r} of width {spec.width:g} with {spec.norm} norm "
        f"for {spec.channels} channels"
    )


def resolve_device(name: str) -> str:
    """The device to use: `auto` is CUDA, else MPS, else the CPU."""
    if name == "auto":
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise RepperError(
            f"--device must be auto, cpu, cuda, cuda:N or mps, got {name!r}"
        ) from error
    usable = {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }
    if not usable.get(device.type, False):
        raise RepperError(f"--device {name} is not available on this machine: use --device auto")
    return name


def _check_init(config: Config, folder: Path) -> None:
    """Refuse an --init that this run would overwrite, or whose clients are not as many."""
    if config.init is None:
        return
    source, target = Path(config.init).resolve(), folder.resolve()
    if target == source or target in source.parents:
        raise RepperError(f"--out {folder} holds the encoder to start from: choose another --out")
    if config.init_clients == "same":
        earlier = Run(Path(config.init))
        if earlier.config.method != config.method:
            raise RepperError(
                f"--init-clients same needs a run of {config.method}, whose clients keep the same "
                f"parameters, but {config.init} is one of {earlier.config.method}"
            )
        if earlier.config.clients != config.clients:
            raise RepperError(
                f"--init-clients same needs as many clients as {config.init} has: "
                f"{earlier.config.clients}, not {config.clients}"
            )
        check_private(earlier.folder, earlier.config.build_method(), earlier.result["chosen_round"])

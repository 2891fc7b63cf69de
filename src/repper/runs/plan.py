"""The plan of a run: settings resolved and checked before anything is written."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any, final

from repper.basics.errors import RepperError
from repper.basics.hardware import resolve_device, resolve_precision
from repper.basics.names import is_encoder, is_statistic, is_weight
from repper.basics.params import Params, clone, load_params, params_of, select
from repper.basics.registry import blaming, is_reference
from repper.basics.seeds import Purpose, stream, torch_seed
from repper.data.dataset import Dataset
from repper.data.partition import Partition, hold_out, read_partition
from repper.data.shift import check_shift, shifted
from repper.encoders import ENCODERS, HALF
from repper.encoders.compiler import check_compiler
from repper.encoders.encoder import EncoderSpec
from repper.encoders.published import Published, is_published, pixels_of
from repper.engines.engine import Personal
from repper.engines.task import Work
from repper.methods.common_head import common_stages
from repper.methods.method import phases_of
from repper.methods.network import Holds, Network, first_kept, first_received, holdings, to_send
from repper.methods.stage import Stage, cohort_size, rounds_of, stage_at
from repper.privacy import SITE, Privacy
from repper.privacy.gaussian import key_of_seed
from repper.privacy.ledger import Ledger
from repper.runs import run_folder
from repper.runs.budget import check_clients_hidden, find_noise, privacy_of
from repper.runs.build import (
    asked_stages,
    build_partition,
    build_personalizers,
    build_stages,
    check_clients,
    load_data,
)
from repper.runs.result import read_common
from repper.runs.round_log import check_private
from repper.runs.run import Run, encoder_at
from repper.runs.tracking import check_trackers
from repper.runs.trial import try_out
from repper.server import Mean, Rule
from repper.server.noised import NoisedMean
from repper.server.robust import Robust
from repper.server.round_loop import Limits, Served, begin
from repper.settings.config import Config, check_known
from repper.updates.attacks import Hostile, choose_hostile
from repper.updates.transforms import Float16, HideUpdate, Transform


class Clientele(ABC):
    """Who the clients of a run are, and where its folder says so."""

    @abstractmethod
    def begin(self, folder: Path) -> None:
        """Determine the clients of a new run, and write them to its folder."""

    @abstractmethod
    def check(self, folder: Path) -> None:
        """Refuse to resume a run of other clients."""

    def counts(self, work: Work) -> Mapping[int, int]:
        """How many images each client learns from."""
        return {
            client: len(work.train_rows(client))
            for client in {client for stage in work.stages for client in stage.clients}
        }

    def digests(self) -> Mapping[str, str]:
        """Digests of the images and of the partition, if both are known here."""
        return {}

    def facts(
        self, personal: Sequence[Personal], log: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Further facts about the clients, for the result."""
        return {}

    def noise_key(self, folder: Path, seed: int) -> bytes:
        """The key of the run's noise: here from its seed, for research."""
        return key_of_seed(seed)


@final
@dataclass(frozen=True)
class Dealt(Clientele):
    """Clients of this machine, each with its part of a data set."""

    data: Dataset
    partition: Partition
    shift: str = "none"
    seed: int = 0

    @property
    def images(self) -> Dataset:
        """The images as the clients see them, after a shift if there is one."""
        return shifted(self.data, self.partition, self.shift, self.seed)

    def begin(self, folder: Path) -> None:
        self.partition.save(folder / run_folder.PARTITION, self.data)

    def digests(self) -> Mapping[str, str]:
        return {"partition": self.partition.hash, "data": self.data.digest}

    def check(self, folder: Path) -> None:
        before = read_partition(folder / run_folder.PARTITION, self.data)
        if before.hash != self.partition.hash:
            raise RepperError(f"{folder} was begun with another partition: choose another --out")
        self.begin(folder)


@dataclass(frozen=True)
class Plan:
    """A run whose settings were checked, with nothing written yet.

    `networks` are those of its stages with their initial values, `holds` says who holds what of
    them.
    """

    config: Config
    folder: Path
    work: Work
    networks: tuple[Network, ...]
    rule: Rule
    clientele: Clientele
    begins: str = ""
    """Which published weights its encoder starts from, and which were not used."""
    elsewhere: Path | None = None
    """The folder of the training, if it is not that of the run: other runs share it."""

    @property
    def training(self) -> Path:
        """The folder of rounds, checkpoint, private parameters and privacy ledger."""
        return self.elsewhere or self.folder

    @property
    def dealt(self) -> Dealt:
        """The images and their partition, if they are on this machine."""
        if not isinstance(self.clientele, Dealt):
            raise TypeError("the images of this run are at its sites")
        return self.clientele

    @cached_property
    def holds(self) -> tuple[Holds, ...]:
        return holdings(self.work.stages, self.networks, self.work.local_norm)

    @property
    def limits(self) -> Limits:
        """How much one client may change in a round."""
        config = self.config
        return Limits(config.max_weight or 1.0, config.max_growth or inf)

    @cached_property
    def privacy(self) -> Privacy | None:
        """The settings of differential privacy, or None without it."""
        return privacy_of(self.config)

    @property
    def ledger(self) -> Ledger | None:
        """The privacy ledger, or None without differential privacy."""
        return Ledger(self.training / run_folder.LEDGER, self.privacy) if self.privacy else None

    def rule_of(self, index: int) -> Rule:
        """The server rule of a stage, with noise if clients are hidden."""
        if (privacy := self.privacy) is None:
            return self.rule
        stage = self.work.stages[index]
        clients = cohort_size(len(stage.clients), stage.participation)
        if privacy.at == SITE:
            return NoisedMean(0.0, 0.0, clients, b"", self.rule)
        key = self.clientele.noise_key(self.folder, self.config.seed)
        return NoisedMean(privacy.clip, privacy.noise, clients, key, self.rule)

    @property
    def counts(self) -> Mapping[int, int]:
        """How many images each client learns from."""
        return self.clientele.counts(self.work)

    @property
    def rounds(self) -> int:
        return rounds_of(self.work.stages)

    @property
    def personalized(self) -> Sequence[int]:
        """The clients that fit heads: all honest clients, or some of them, drawn at random."""
        every: Sequence[int] = range(self.config.clients)
        if (hostile := self.work.hostile) is not None:
            every = [client for client in every if client not in hostile.clients]
        count = self.config.personalize_clients
        if count is None or count >= len(every):
            return every
        random = stream(self.config.seed, Purpose.PERSONALIZE)
        return sorted(every[place] for place in random.choice(len(every), count, replace=False))

    @property
    def keeps_own(self) -> bool:
        """Whether clients keep anything private."""
        return any(holds.keeps_own for holds in self.holds)

    def has_heads_to_begin_with(self, index: int) -> bool:
        """Whether clients have what their personalizers need: some start from a trained head."""
        last = self.work.personalizers.all
        if any(one.needs_common for one in last) and index < len(self.networks) - 1:
            return False
        needed = any(one.needs_a_head for one in last)
        return not needed or self.networks[index].classifier is not None

    @cached_property
    def digests(self) -> Mapping[str, str]:
        """Digests of everything that decides the training."""
        return {"settings": run_folder.training_digest(self.config), **self.clientele.digests()}

    def tied(self) -> Plan:
        """The same, whose files are tied to the run as it was begun in its folder."""
        name = run_folder.name_of(self.training) or run_folder.name_of_run(self.digests)
        return replace(self, work=replace(self.work, run=name))

    def in_folder(self, training: Path | None = None) -> Plan:
        """The same, with its training, and what never leaves a client, in this folder.

        Without one, in the run's own.
        """
        elsewhere = None if training == self.folder else training
        private = (elsewhere or self.folder) / run_folder.PRIVATE if self.keeps_own else None
        return replace(self, work=replace(self.work, private=private), elsewhere=elsewhere)

    @property
    def name_of_training(self) -> str:
        """A name for the folder of the training: the same settings, partition and images have the
        same one, whatever heads are fitted on it. A common head is trained with it.
        """
        stages = [repr(self.work.stages[n]) for n in common_stages(self.work.stages)]
        address = {**self.digests, "rounds": self.config.rounds, "common": stages}
        text = json.dumps(address, sort_keys=True)
        short = hashlib.sha256(text.encode()).hexdigest()[:12]
        method = str(self.config.shown("method")).rpartition(":")[2]
        return f"{method}-seed{self.config.seed}-{short}"

    def enter(self, index: int, before: Served | None = None) -> Served:
        """The server's state at the start of a stage, from its state at the end of the last one."""
        network, holds = self.networks[index], self.holds[index]
        if before is not None:
            here = params_of(network)
            trained = select(before.used(self.rule), is_weight)
            load_params(network, select(trained, here.__contains__))
        return begin(network, self.work.stages[index].method, holds, self.rule)

    def shared_after(self, number: int) -> Params:
        """What clients share in the stage of round `number`, for the names and shapes."""
        index, _ = stage_at(self.work.stages, number)
        method, holds = self.work.stages[index].method, self.holds[index]
        return to_send(first_received(method, self.networks[index], holds), holds)

    def first_kept(self) -> Params:
        """The initial private parameters of a client."""
        found: Params = {}
        for stage, network, holds in zip(self.work.stages, self.networks, self.holds, strict=True):
            found = first_kept(stage.method, network, holds) | found
        return clone(found)


def plan(config: Config, data: Dataset | None = None, partition: Partition | None = None) -> Plan:
    """Resolve what the settings leave open, and refuse settings that cannot work."""
    with blaming(config.references()):
        return _plan(config, data, partition)


def _plan(config: Config, data: Dataset | None, partition: Partition | None) -> Plan:
    config = settled(config)
    check_trackers(config.trackers)
    data = data or load_data(config)
    if partition is None:
        partition = build_partition(config, data)
        named = config.partition
        config = replace(describe_partition(config, partition), partition=named)
    else:
        partition.check(data)
        config = describe_partition(config, partition)
    if config.is_hidden:
        asked = asked_stages(config)
        check_clients_hidden(config, asked)
        config = find_noise(config, asked)
    check_clients(config)
    check_shift(data, config.shift)
    folder = Path(config.out or Path("runs") / config.name())
    _check_init(config, folder)
    spec = spec_of(config, data.channels, data.size)
    work = make_work(config, spec, partition, data.classes, data.flip)
    networks, rule = initial_networks(config, work), config.build_rule()
    check_cohorts(rule, work.stages)
    if config.is_hidden:
        check_hidden(config, work, networks, rule)
    check_attack(work)
    if config.sources:
        try_out(work, rule if is_reference(config.server) else Mean())
    dealt = Dealt(data, partition, config.shift, run_folder.shift_seed(config, partition.settings))
    begins = ""
    if config.init and is_published(Path(config.init)):
        begins = str(Published.read(Path(config.init)).fitting(spec))
    planned = Plan(config, folder, work, networks, rule, dealt, begins)
    return planned.in_folder(run_folder.training_of(folder))


def check_cohorts(rule: Rule, stages: Sequence[Stage]) -> None:
    """Refuse stages whose rounds have too few clients for the server's rule."""
    for stage in stages:
        rule.check(cohort_size(len(stage.clients), stage.participation))


def check_hidden(config: Config, work: Work, networks: Sequence[Network], rule: Rule) -> None:
    """Refuse --clip where the noise would not cover everything that clients send."""
    if isinstance(rule, Robust):
        raise RepperError(
            f"--server {config.shown('server')} compares single updates, and noise needs their "
            f"sum: choose mean, fedavgm, fedadam, fedyogi or window"
        )
    holds = holdings(work.stages, networks, work.local_norm)
    for stage, network, held in zip(work.stages, networks, holds, strict=True):
        if not stage.rounds:
            continue
        if not (stage.travels and held.shared):
            raise RepperError(
                f"clients of {config.shown('method')} send nothing that noise could hide: leave "
                f"out --clip"
            )
        if any(map(is_statistic, held.shared)):
            raise RepperError(
                "noise would make running variances of batch norm 0 or negative: --clip needs "
                "--norm group, or --bn local, with which normalization stays at each client"
            )
        received = first_received(stage.method, network, held)
        if beside := sorted({n.partition(":")[0] for n in received if not is_weight(n)}):
            raise RepperError(
                f"clients of {config.shown('method')} send {beside[0]!r} beside their weights, "
                f"which --clip does not cover: choose another --method"
            )


def hostile_of(config: Config, stages: Sequence[Stage]) -> Hostile | None:
    """The clients that attack, or None without an attack."""
    attack = config.build_attack()
    if attack is None:
        return None
    if not all(stage.travels for stage in stages):
        raise RepperError(f"{config.method} has all images in one place: leave out --attack")
    if not rounds_of(stages):
        raise RepperError("--attack needs rounds to attack in, but there are none: give --rounds")
    return choose_hostile(attack, config.stage1(), config.seed)


def check_attack(work: Work) -> None:
    """Refuse an attack that these images or this method do not allow."""
    if work.hostile is not None:
        work.hostile.attack.check(len(work.classes))
        holds = holdings(work.stages, work.networks(), work.local_norm)
        if not any(one.shared for one in holds):
            raise RepperError(
                f"{type(work.stages[0].method).__name__} sends nothing that an attack could reach: "
                f"leave out --attack"
            )


def settled(config: Config) -> Config:
    """The settings with everything resolved that does not depend on images."""
    check_known(config, [config])
    device = resolve_device(config.device)
    precision = resolve_precision(config.precision, device)
    config = replace(config, device=device, precision=precision)
    config = replace(config, personalize=config.personalize_as())
    if config.init is not None and config.pixels is None and Path(config.init).exists():
        pixels = pixels_of(Path(config.init))
        config = replace(config, pixels=None if pixels == HALF else pixels)
    if config.compile:
        check_compiler()
    return config.resolved()


def make_work(
    config: Config,
    spec: EncoderSpec,
    partition: Partition,
    classes: tuple[str, ...],
    flip: bool,
) -> Work:
    """Build stages, networks and personalizers from the settings, the partition and the classes."""
    stages = build_stages(config)
    for stage in stages:
        phases_of(stage)  # a method may refuse the epochs
    return Work(
        stages=stages,
        spec=spec,
        partition=hold_out(partition, config.validation, config.seed),
        personalizers=build_personalizers(config),
        classes=classes,
        flip=flip,
        seed=config.seed,
        device=config.device,
        pool=config.stage1() if not all(stage.travels for stage in stages) else (),
        sending=sending(config),
        local_norm=config.bn == "local" and all(stage.travels for stage in stages),
        knn=config.knn,
        head_curve=config.head_curve,
        keep_rounds=config.validation > 0,
        hostile=hostile_of(config, stages),
    )


def sending(config: Config) -> tuple[Transform, ...]:
    """The transforms of updates before they are sent."""
    found: list[Transform] = []
    if (privacy := privacy_of(config)) and privacy.at == SITE:
        found.append(HideUpdate(privacy.clip, privacy.noise, key_of_seed(config.seed)))
    if config.upload == "float16":
        found.append(Float16())
    return tuple(found)


def spec_of(config: Config, channels: int, size: int) -> EncoderSpec:
    """The encoder that the settings name."""
    builder = config.values.get("encoder")
    if builder is None and is_reference(config.encoder):
        builder = ENCODERS[config.encoder]
    return EncoderSpec(
        config.encoder, channels, size, config.width, config.norm, config.pixels or HALF, builder
    )


def describe_partition(config: Config, partition: Partition) -> Config:
    """The settings with those of an existing partition; its manifest has the rest."""
    given: dict[str, Any] = {"partition": "given", "clients": partition.clients}
    if "kind" in partition.settings:
        given["partition"] = partition.settings["kind"]
    for name in ("alpha", "classes_per_client", "min_train", "min_test"):
        if name in partition.settings:
            given[name] = partition.settings[name]
    return replace(config, **given)


def initial_networks(config: Config, work: Work) -> tuple[Network, ...]:
    """The networks before the first round, after checks that the stages can use them."""
    networks = work.networks(torch_seed(config.seed, Purpose.INIT))
    names = (config.personalize_as(client) for client in (None, *config.overrides))
    for name, personalizer in zip(names, work.personalizers.all, strict=True):
        if personalizer.needs_a_head and networks[-1].classifier is None:
            raise RepperError(
                f"personalize {name!r} uses the head that a method has trained, but "
                f"{config.method} trains none: choose another --personalize"
            )
    if config.rounds and not list(networks[0].encoder.parameters()):
        raise RepperError(
            f"encoder {config.encoder!r} has nothing for {config.method} to train: use --rounds 0"
        )
    if config.init:
        load_params(networks[0], _start(Path(config.init), work.spec))
    if any(one.needs_common for one in work.personalizers.all):
        _check_common(config, work, networks)
        if config.init and not rounds_of(work.stages):
            load_params(networks[-1], read_common(Path(config.init)))
    return networks


def _start(path: Path, spec: EncoderSpec) -> Params:
    """Initial values of the encoder, from one of repper's encoders or from published weights."""
    if is_published(path):
        return Published.read(path).fitting(spec).params
    given, params = encoder_at(path)
    if replace(given, size=spec.size) != spec:
        raise RepperError(
            f"--init {path} holds {_described(given)}, but this run needs {_described(spec)}"
        )
    return params


def _check_common(config: Config, work: Work, networks: Sequence[Network]) -> None:
    """Refuse a common head where clients share no encoder (norms may be private)."""
    holds = holdings(work.stages, networks, work.local_norm)[:-1]
    if not any(is_encoder(name) for one in holds for name in one.shared):
        raise RepperError(
            f"personalize 'common' needs an encoder that clients share, but with {config.method} "
            f"each has its own: choose another --personalize"
        )
    if not (config.init or work.stages[-1].rounds):
        raise RepperError("a common head needs at least one round: leave out --common-rounds 0")


def _described(spec: EncoderSpec) -> str:
    return (
        f"encoder {spec.name!r} of width {spec.width:g} with {spec.norm} norm "
        f"for {spec.channels} channels, with pixels as {spec.pixels!r}"
    )


def _check_init(config: Config, folder: Path) -> None:
    """Refuse an --init that this run would overwrite, or that has another number of clients."""
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
        check_private(earlier.folder, *earlier.stages_and_holds, earlier.result["chosen_round"])

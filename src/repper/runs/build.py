"""Build what the settings name: data set, partition, stages and personalizers.

This file needs no PyTorch, so that `repper partition` is quick.
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from pathlib import Path

from repper.basics.errors import RepperError
from repper.basics.options import check_fields
from repper.data import Dataset, load
from repper.data.partition import Partition, by_folders, read_partition, split
from repper.heads import HEADS
from repper.heads.personalize import (
    COMMON,
    COMMON_TUNED,
    FINETUNE,
    KEEP,
    NEED_COMMON,
    FineTune,
    FitHead,
    Keep,
    Personalizer,
    Personalizers,
    TuneCommon,
    UseCommon,
)
from repper.heads.settings import CommonSettings
from repper.methods.common_head import common_stage
from repper.methods.stage import Stage, Training, cohort_size
from repper.runs.budget import within_budget
from repper.settings.config import Config


def load_data(config: Config) -> Dataset:
    """The data set that the settings name."""
    return load(
        config.data,
        config.data_dir,
        image_size=config.image_size,
        by_client=by_folders(config.partition),
        download=config.download,
        skip_unreadable=config.skip_unreadable,
        test_share=config.test_share,
        train_images=config.train_images,
    )


def build_partition(config: Config, data: Dataset) -> Partition:
    """The partition that the settings name: a kind, or a manifest to repeat."""
    if config.partition.endswith(".json"):
        return read_partition(Path(config.partition), data)
    return split(
        data,
        config.partition,
        clients=config.clients,
        alpha=config.alpha,
        classes_per_client=config.classes_per_client,
        min_train=config.min_train,
        min_test=config.min_test,
        seed=config.seed,
    )


def build_stages(config: Config) -> tuple[Stage, ...]:
    """The federated stages of the run, as far as its privacy budget allows."""
    return within_budget(config, asked_stages(config))


def asked_stages(config: Config) -> tuple[Stage, ...]:
    """The federated stages for the rounds and the participation asked for."""
    clients = config.stage1()
    share = Fraction(cohort_size(len(clients), config.participation), len(clients))
    names = [f.name for f in dataclasses.fields(Training)]
    training = Training(**{name: getattr(config, name) for name in names})
    method = config.build_method()
    # All images in one place are those of one client, whose number comes after the others'.
    who = (config.clients,) if method.pooled else clients
    asked = Stage(method, config.rounds, share, training, who, travels=not method.pooled)
    stages = method.stages(asked)
    if not (isinstance(stages, tuple) and stages and all(isinstance(s, Stage) for s in stages)):
        raise RepperError(
            f"stages of {type(method).__name__} must return a tuple of Stage, got {stages!r}"
        )
    last = {config.personalize_as(client) for client in (None, *config.overrides)}
    if last & {*NEED_COMMON}:
        own = CommonSettings(**config.own_of(CommonSettings, "personalize"))
        stages = (*stages, common_stage(asked, clients, own, scaled=not config.is_hidden))
    return stages


def build_personalizers(config: Config) -> Personalizers:
    """The personalizer of every client."""
    clients = (None, *config.overrides)
    common, *single = (_personalizer(config, config.personalize_as(client)) for client in clients)
    return Personalizers(common, dict(zip(config.overrides, single, strict=True)))


def _personalizer(config: Config, kind: str) -> Personalizer:
    if kind == KEEP:
        return Keep()
    if kind in NEED_COMMON:
        own = CommonSettings(**config.own_of(CommonSettings, "personalize"))
        return {COMMON: UseCommon, COMMON_TUNED: TuneCommon}[kind](own.smoothing)
    if kind == FINETUNE:
        return FineTune(tuple(config.own_of(HEADS["linear"], "personalize").items()))
    unit = config.head_input == "z"
    if kind == config.personalize and (value := config.values.get("personalize")) is not None:
        if isinstance(value, Personalizer):
            return value
        settings = value.get_params()
        settings.pop("random_state", None)
        return FitHead(type(value), tuple(settings.items()), unit)
    head = HEADS[kind]
    settings = config.own_of(head, "personalize")
    if dataclasses.is_dataclass(head):
        check_fields(head(**settings))  # now, and not when the encoder is trained
    return FitHead(head, tuple(settings.items()), unit)


def check_clients(config: Config) -> None:
    """Refuse settings that do not go with the number of clients, once it is known."""
    rounds = sum(stage.rounds for stage in build_stages(config))
    if config.validation and config.evaluate_every > rounds > 0:
        raise RepperError(
            f"--evaluate-every {config.evaluate_every} evaluates none of {rounds} rounds of "
            f"{config.method}, so --validation has nothing to choose from"
        )
    for client in config.overrides:
        if not 0 <= client < config.clients:
            raise RepperError(f"[clients.{client}]: clients are numbered 0 to {config.clients - 1}")

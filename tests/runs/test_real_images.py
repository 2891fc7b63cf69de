"""What must hold on real photographs: the CIFAR-10 files in REPPER_DATA."""

import dataclasses

import numpy as np
import pytest

import repper as api
from repper.data import Dataset, Split
from repper.data.partition import split
from repper.engines.serial import SerialEngine
from repper.runs.plan import plan
from repper.settings.config import Config


def part(data: Dataset, train: int, test: int) -> Dataset:
    def first(images: Split, count: int) -> Split:
        return Split(images.images[:count], images.labels[:count])

    return dataclasses.replace(data, train=first(data.train, train), test=first(data.test, test))


def test_cifar10_is_read_with_all_its_classes(cifar10):
    assert cifar10.train.images.shape[1:] == (3, 32, 32)
    assert cifar10.classes[3] == "cat"
    assert np.bincount(cifar10.train.labels, minlength=10).min() > 0
    assert f"{len(cifar10.train)} of 50000" in cifar10.note


def test_stage_1_beats_an_untrained_encoder_by_a_clear_margin(cifar10, tmp_path):
    data = part(cifar10, 2000, 1500)
    settings = {
        "clients": 8,
        "participation": 0.5,
        "epochs": 4,
        "width": 0.5,
        "batch": 64,
        "knn": 0,
        "engine": "serial",
    }
    untrained, trained = (
        api.run(data, out=str(tmp_path / str(rounds)), rounds=rounds, **settings)
        for rounds in (0, 8)
    )
    assert trained.accuracy["mean"] > untrained.accuracy["mean"] + 5
    losses = [record["loss"] for record in trained.rounds()]
    assert losses[-1] < losses[0] - 0.2


@pytest.mark.parametrize(
    ("encoder", "width", "rounds"), [("resnet18", 0.25, 5), ("mobilenet", 0.5, 6)]
)
def test_the_contrastive_loss_of_large_encoders_falls(cifar10, encoder, width, rounds):
    data = part(cifar10, 256, 64)
    config = Config(
        encoder=encoder, clients=1, width=width, epochs=2, batch=64, augment="weak", knn=0,
        loss="paper", personalize="linear", device="cpu",
    )  # fmt: skip
    planned = plan(config, data, split(data, "iid", clients=1))
    assert planned.work.flip
    shared = planned.enter(0).received
    losses = []
    with SerialEngine(planned.work, data, 0) as engine:
        for number in range(1, rounds + 1):
            [update] = engine.fit(shared, [0], number)
            shared = update.sent
            losses.append(update.loss)
    assert losses[-1] < losses[0] - 0.1

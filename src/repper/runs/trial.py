"""A trial of the user's own code before a run begins, on random images.

A mistake in a head, or in the method of a second stage, would otherwise show only when the encoder
is trained; and a run is not resumed with other code.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import torch

from repper.basics.errors import RepperError
from repper.basics.registry import is_reference, short_reference
from repper.data.dataset import Dataset, Split
from repper.data.partition import Partition
from repper.encoders.encoder import Encoder, extract
from repper.engines.serial import SerialEngine
from repper.engines.task import Work
from repper.heads.personalize import Personalizers
from repper.methods.network import holdings
from repper.server import Rule
from repper.server.round_loop import begin, federate

IMAGES = 8


def try_out(work: Work, rule: Rule) -> None:
    """Let one client with a few random images do a round of every stage, and fit every head."""
    images = _noise(work)
    rows = np.arange(IMAGES)
    stages = tuple(
        replace(
            stage,
            rounds=min(1, stage.rounds),
            participation=Fraction(1),
            clients=(0,),
            training=replace(stage.training, compile=False),
        )
        for stage in work.stages
    )
    alone = replace(
        work, stages=stages, partition=Partition((rows,), (rows,)), pool=(), private=None, knn=0,
        hostile=work.hostile and replace(work.hostile, clients=(0,)),
    )  # fmt: skip
    networks = alone.networks()
    _check_encoder(networks[0].encoder, images, work.spec.name)
    last, used = len(stages) - 1, networks[-1]
    with SerialEngine(alone, images, 1) as engine:
        number = 0
        for index, (stage, network, holds) in enumerate(
            zip(stages, networks, holdings(stages, networks, work.local_norm), strict=True)
        ):
            served = begin(network, stage.method, holds, rule)
            for done in federate(
                engine, served, stage, seed=0, rule=rule, index=index, before=number
            ):
                number, served = done.number, done.served
    for personalizer in work.personalizers.all:
        if personalizer.needs_a_head and used.classifier is None:
            continue
        one = replace(alone, personalizers=Personalizers(personalizer))
        with SerialEngine(one, images, 1) as engine:
            list(engine.personalize(served.used(rule), [0], number, None, last))


def _check_encoder(encoder: Encoder, images: Dataset, name: str) -> None:
    r = extract(encoder, torch.from_numpy(images.train.images))
    if r.shape != (IMAGES, encoder.features):
        made = r.shape[1] if r.ndim == 2 else f"an array {tuple(r.shape[1:])} instead of"
        raise RepperError(
            f"{short_reference(name) if is_reference(name) else name} makes {made} features of an "
            f"image, but its Encoder says {encoder.features}"
        )


def _noise(work: Work) -> Dataset:
    random = np.random.default_rng(0)
    shape = (IMAGES, work.spec.channels, work.spec.size, work.spec.size)
    pixels = random.integers(0, 256, shape, dtype=np.uint8)
    split = Split(pixels, np.arange(IMAGES) % min(2, len(work.classes)))
    return Dataset("noise", work.classes, split, split, flip=work.flip)

"""What leaks? Attacks that try to read training data out of what clients of repper send.

    REPPER_DATA=... .venv/bin/python benchmarks/leaks.py

Prints three tables: images from updates, class counts from updates, and whether an image was among
those that a model has learned from, each beside its chance level. Some twelve minutes of one core,
less with `--only counts` or `--seeds 1`. Finished attacks are kept in --out and not run again. An
attack that fails here proves nothing: ours has seconds for an image, and others have months.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from leaking import counts, inversion, membership
from leaking.victim import ClipAndNoise, Fleet, difference, fleet, length
from numpy.typing import NDArray
from PIL import Image

import repper
from repper.basics.files import write_atomically
from repper.basics.names import is_weight
from repper.basics.params import Params, select
from repper.data.dataset import Dataset, Split
from repper.data.partition import Rows
from repper.engines.engine import one_thread
from repper.methods import Training
from repper.server.round_loop import federate
from repper.updates.transforms import Transform

Pixels = list[list[int]]
"""A channel of an image."""

EPOCHS, BATCH = 2, 64
NOISES = (None, 0.01, 1.0)
"""Of what is clipped and noised at the client: the noise's multiplier, or None without both."""
TRIES, DUMMIES, CANDIDATES = 300, 16, 100
SHADOWS, VICTIMS, HELD, ALPHA = 60, 20, 64, 0.5
CLIENTS, OWN, ROUNDS = 4, 64, 6
"""As many epochs for a client as the defaults of a run give, 30."""


def protected(noise: float | None, clip: float) -> tuple[Transform, ...]:
    return () if noise is None else (ClipAndNoise(clip, noise),)


def named(noise: float | None) -> str:
    return "none" if noise is None else f"clip, noise {noise:g}"


def some(split: Split, rows: Rows) -> Split:
    return Split(split.images[rows], split.labels[rows])


@dataclass(frozen=True)
class Kept:
    """Results of attacks, a file each."""

    folder: Path

    def of(self, name: str, seed: int, attack: Callable[[], Any]) -> Any:
        path = self.folder / f"{name.replace(' | ', ', ')}, seed {seed}.json"
        if not path.is_file():
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(attack()))
        return json.loads(path.read_text())


# Images from updates


@dataclass(frozen=True)
class Case:
    """Whose update is attacked: of so many images and one step, or with 0 of a whole round."""

    method: str
    images: int
    noise: float | None = None
    norm: str = "batch"

    @property
    def named(self) -> str:
        norm = "" if self.norm == "batch" else f", {self.norm} norm"
        what = f"{self.images}, one step" if self.images else f"{HELD}, a round"
        return f"{self.method}{norm} | {what} | {named(self.noise)}"


CASES = (
    *(Case("repper", images) for images in (1, 4, 16, 0)),
    *(Case("fedavg", images) for images in (1, 4, 0)),
    Case("scaffold", 1),
    Case("repper", 4, norm="group"),
    *(Case("fedavg", images, norm="group") for images in (1, 4)),
    *(Case("scaffold", images, norm="group") for images in (1, 4, 16, 0)),
    *(Case("scaffold", 1, noise, "group") for noise in NOISES[1:]),
)
"""Batch norm is the default. RepPer learns nothing from one image: see tests/test_leaks.py."""


def images(data: Dataset, seeds: int, kept: Kept) -> Iterator[str]:
    yield "| method | images | protection | place | first | likeness, others | PSNR, others |"
    yield "|---|---|---|---:|---:|---:|---:|"
    shown: list[list[list[Pixels]]] = []
    for case in CASES:
        # A single image is quickly attacked, and says little: two a seed.
        count = 2 * seeds if case.images == 1 else seeds
        trials = [
            kept.of(case.named, seed, partial(inverted, data, case, seed)) for seed in range(count)
        ]
        place, first, own, other, near, far = np.mean([one["score"] for one in trials], axis=0)
        yield (
            f"| {case.named} | {place:.1f} | {100 * first:.0f} % | {own:.2f}, {other:.2f} | "
            f"{near:.1f}, {far:.1f} |"
        )
        if case.noise is None and case.images == 1:
            shown += [[one[side] for one in trials] for side in ("true", "guess")]
    draw(shown, kept.folder / "images.png")


def inverted(data: Dataset, case: Case, seed: int) -> dict[str, Any]:
    """How near the images of the attack come to the true ones and to others, and the first."""
    order = np.random.default_rng(seed).permutation(len(data.train))
    rows, others = np.sort(order[: case.images or HELD]), order[1 - CANDIDATES :]
    once = Training(epochs=1, batch=BATCH, augment="none")
    training = once if case.images else Training(epochs=EPOCHS, batch=BATCH)
    victim = fleet(data, [rows], case.method, training, seed=seed, norm=case.norm)
    served = victim.begin(seed)
    sent = victim.update(served, 0).sent
    if case.noise is not None:
        clip = length(difference(sent, served.shared))
        victim = replace(victim, work=replace(victim.work, sending=protected(case.noise, clip)))
        sent = victim.update(served, 0).sent
    steps = training.epochs * -(-len(rows) // BATCH)
    guess = inversion.invert(
        victim.work,
        served.shared,
        inversion.evidence(served.shared, sent, steps),
        data.train.labels[rows][: case.images or DUMMIES],
        tries=TRIES,
        seed=seed,
    )
    true, strange = (data.train.images[part] / np.float32(127.5) - 1 for part in (rows, others))
    shown = {"true": true[0], "guess": guess[0]}
    pixels = {side: np.uint8((one + 1) * 127.5).tolist() for side, one in shown.items()}
    return {"score": inversion.nearness(guess, true, strange)} | pixels


def draw(shown: list[list[list[Pixels]]], path: Path) -> None:
    """A picture: for every kind of update true images in a row, and those of the attack below."""
    lines = [np.concatenate([np.array(one, np.uint8) for one in row], 2) for row in shown]
    image = Image.fromarray(np.concatenate(lines, 1).transpose(1, 2, 0))
    image.resize((3 * image.width, 3 * image.height), Image.Resampling.NEAREST).save(path)


# Class counts from updates


def dealt(data: Dataset, clients: int, random: np.random.Generator) -> list[Rows]:
    """Rows of clients of one size, each with a class mix of its own, no row twice."""
    free = [list(random.permutation(np.flatnonzero(data.train.labels == k))) for k in range(10)]
    found = []
    for _ in range(clients):
        mix = random.dirichlet(np.full(len(free), ALPHA))
        wanted = random.multinomial(HELD, mix)
        found.append(np.sort([free[k].pop() for k, n in enumerate(wanted) for _ in range(n)]))
    return found


def class_counts(data: Dataset, seeds: int, kept: Kept) -> Iterator[str]:
    yield "| what travels | protection | error | of the mean | uniform | correlation |"
    yield "|---|---|---:|---:|---:|---:|"
    for method, common in (("repper", False), ("fedavg", False), ("repper", True)):
        what = "the common head" if common else f"{method}'s update"
        found = [
            kept.of(what, seed, partial(counted, data, method, common, seed))
            for seed in range(seeds)
        ]
        for place, noise in enumerate(NOISES):
            ours, mean, uniform, together = np.mean([one[place] for one in found], axis=0)
            yield (
                f"| {what} | {named(noise)} | {ours:.1f} | {mean:.1f} | {uniform:.1f} | "
                f"{together:.2f} |"
            )
    exact = [kept.of("crafted heads", seed, partial(crafted, data, seed)) for seed in range(seeds)]
    yield f"| fedavg's loss, crafted heads | any | {np.mean(exact):.1f} | | | |"


def counted(
    data: Dataset, method: str, common: bool, seed: int
) -> list[tuple[float, float, float, float]]:
    """The attack's error, those of two guesses, and the attack's correlation, for each noise."""
    rows = dealt(data, SHADOWS + VICTIMS, np.random.default_rng(seed))
    training = Training(epochs=EPOCHS, batch=BATCH)
    everyone = fleet(data, rows, method, training, seed=seed, common=common)
    # The encoder has learned for a while, from clients of the attacker's own.
    served = fleet(data, rows[:10], method, training, seed=seed, rounds=5).train(seed)
    stage, number = 0, 6
    if common:
        served, stage, number = everyone.second(served.shared), 1, 2
        measure = replace(everyone.work.stages[1], rounds=1)
        with everyone.engine() as engine:
            [measured] = federate(engine, served, measure, seed=seed, index=1)
        served = measured.served
    clients = range(len(rows))
    with everyone.engine() as engine:
        updates = engine.fit(served.received, clients, number, stage)
        sent = {update.client: update.sent for update in updates}
    clip = float(np.median([length(difference(one, served.shared)) for one in sent.values()]))
    mixes = np.array([counts.shares(data.train.labels[one], len(data.classes)) for one in rows])
    truth, mean = mixes[SHADOWS:], mixes[:SHADOWS].mean(0)
    plain = [
        counts.errors(np.tile(one, (VICTIMS, 1)), truth)["error"]
        for one in (mean, np.full_like(mean, 1 / len(mean)))
    ]
    found = []
    for noise in NOISES:
        seen = [sent[client] for client in clients]
        for transform in protected(noise, clip):
            seen = [transform(one, served.shared, client) for client, one in enumerate(seen)]
        x = np.stack([flat(difference(one, served.shared)) for one in seen])
        ours = counts.errors(counts.read_off(x[:SHADOWS], mixes[:SHADOWS], x[SHADOWS:]), truth)
        found.append((ours["error"], plain[0], plain[1], ours["correlation"]))
    return found


def flat(change: Params) -> NDArray[np.float64]:
    return torch.cat([change[name].flatten() for name in sorted(change)]).double().numpy()


def crafted(data: Dataset, seed: int) -> float:
    """The error of counts from the mean losses of heads that a server has made."""
    [rows] = dealt(data, 1, np.random.default_rng(seed))
    victim = fleet(data, [rows], "fedavg", Training(epochs=1, batch=4096), seed=seed)
    found = counts.counts_from_losses(victim, victim.begin(seed), 0)
    return 100 * float(np.abs(found / HELD - counts.shares(data.train.labels[rows], 10)).mean())


# Members


def members(data: Dataset, seeds: int, kept: Kept) -> Iterator[str]:
    yield "| what is attacked | protection | AUC | found at 1 % false alarms | probe |"
    yield "|---|---|---:|---:|---:|"
    for method in ("repper", "fedavg"):
        for noise in NOISES[:2]:
            found = [
                kept.of(
                    f"members {method}, {named(noise)}",
                    seed,
                    partial(told_apart, data, method, noise, seed),
                )
                for seed in range(seeds)
            ]
            for what in found[0]:
                auc, rare, probe = np.mean([one[what] for one in found], axis=0)
                yield (
                    f"| {what} | {named(noise)} | {auc:.2f} | {100 * rare:.1f} % | {probe:.0f} % |"
                )


def told_apart(
    data: Dataset, method: str, noise: float | None, seed: int
) -> dict[str, tuple[float, float, float]]:
    """AUC and rare finds of the attack on the model of all rounds, and on one client's update."""
    order = np.random.default_rng(seed).permutation(len(data.train))
    size = CLIENTS * OWN
    own = [np.sort(order[k * size : (k + 1) * size]) for k in range(5)]
    known = some(data.train, np.sort(order[5 * size : 5 * size + 1000]))
    final, last = [], []
    training = Training(epochs=5, batch=BATCH)
    for side in (0, 1):
        rows = [
            np.sort(part)
            for part in np.array_split(np.random.default_rng(seed).permutation(own[side]), CLIENTS)
        ]
        group = fleet(data, rows, method, training, seed=seed, rounds=ROUNDS)
        if noise is not None:
            served = group.begin(seed)
            clip = length(difference(group.update(served, 0).sent, served.shared))
            group = replace(group, work=replace(group.work, sending=protected(noise, clip)))
        served = group.train(seed)
        update = group.update(served, 0, ROUNDS + 1).sent
        before, after = served.shared, select(update, is_weight)

        def look(params: Params, part: Rows, group: Fleet = group) -> membership.Signs:
            return membership.signs(group.work, params, some(data.train, part), known, seed)

        strangers = own[2 + side]
        final.append((look(before, own[side]), look(before, strangers)))
        last.append(tuple(
            np.hstack([look(after, part), look(after, part) - look(before, part)])
            for part in (rows[0], strangers)
        ))  # fmt: skip
    probe = membership.probe(group.work, before, known, some(data.train, own[4]))
    return {
        f"{method}, the model of all rounds": (*membership.attack(*final), probe),
        f"{method}, one client's update": (*membership.attack(*last), probe),
    }


TABLES: dict[str, Callable[..., Iterator[str]]] = {
    "images": images, "counts": class_counts, "members": members,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=TABLES, action="append")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/leaks"))
    options = parser.parse_args()
    data, kept = repper.load("cifar10", train_images=10_000), Kept(options.out)
    with one_thread():
        for name in options.only or TABLES:
            for line in TABLES[name](data, options.seeds, kept):
                print(line, flush=True)
            print(flush=True)


if __name__ == "__main__":
    main()

"""What leaks? Attacks that try to read training data out of what clients of repper send.

    REPPER_DATA=... .venv/bin/python benchmarks/leaks.py --picture leaks.png

Prints three tables: images from updates, class counts from updates, and whether an image was among
those that a model has learned from, each beside its chance level. About ten minutes on two cores;
`--only counts` and `--seeds 1` do less. An attack that fails here proves nothing: ours is given
seconds for an image, and others have months.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from leaking import counts, inversion, membership
from leaking.victim import ClipAndNoise, Fleet, difference, fleet, length
from numpy.typing import NDArray

import repper
from repper.datasets.dataset import Dataset, Split
from repper.engines.engine import one_thread
from repper.federate import Served, federate
from repper.methods import Training
from repper.names import is_weight
from repper.params import Params, select
from repper.partition import Rows
from repper.transforms import Transform

EPOCHS, BATCH = 2, 64
NOISES = (None, 0.01, 1.0)
"""Of what is clipped and noised at the client: the noise's multiplier, or None without both."""
TRIES, DUMMIES, CANDIDATES = 400, 16, 100
SHADOWS, VICTIMS, HELD, ALPHA = 60, 20, 64, 0.5
CLIENTS, OWN, ROUNDS = 4, 80, 10


def protected(noise: float | None, clip: float) -> tuple[Transform, ...]:
    return () if noise is None else (ClipAndNoise(clip, noise),)


def named(noise: float | None) -> str:
    return "none" if noise is None else f"clip, noise {noise:g}"


def some(split: Split, rows: Rows) -> Split:
    return Split(split.images[rows], split.labels[rows])


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


CASES = [
    Case(method, images, noise)
    for method in ("repper", "fedavg", "scaffold")
    for images, noises in ((1, NOISES), (4, NOISES), (16, NOISES[:1]), (0, NOISES[:1]))
    for noise in noises
] + [Case("scaffold", 1, norm="group")]


def images(data: Dataset, seeds: int, picture: Path | None) -> Iterator[str]:
    yield "| method | images | protection | place | first | likeness, others | PSNR, others |"
    yield "|---|---|---|---:|---:|---:|---:|"
    shown: list[NDArray[np.float32]] = []
    for case in CASES:
        # A single image is quickly attacked, and says little: four a seed.
        trials = [
            inverted(data, case, seed) for seed in range(4 * seeds if case.images == 1 else seeds)
        ]
        place, first, own, other, near, far = np.mean([score for *_, score in trials], axis=0)
        yield (
            f"| {case.named} | {place:.1f} | {100 * first:.0f} % | {own:.2f}, {other:.2f} | "
            f"{near:.1f}, {far:.1f} |"
        )
        if case.noise is None and case.images == 1:
            shown += [
                np.concatenate([part[0] for part in trials[:8]]),
                np.concatenate([part[1] for part in trials[:8]]),
            ]
    if picture:
        draw(shown, picture)


def inverted(
    data: Dataset, case: Case, seed: int
) -> tuple[NDArray[np.float32], NDArray[np.float32], tuple[float, ...]]:
    """True images, those of the attack, and how near these are to the true ones and to others."""
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
    return true, guess, inversion.nearness(guess, true, strange)


def draw(shown: list[NDArray[np.float32]], path: Path) -> None:
    """A picture: true images in a row, those of the attack below."""
    from PIL import Image

    lines = [np.concatenate(list(row), 2) for row in shown]
    pixels = np.concatenate(lines, 1).transpose(1, 2, 0)
    image = Image.fromarray(((pixels + 1) * 127.5).astype(np.uint8))
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


def class_counts(data: Dataset, seeds: int) -> Iterator[str]:
    yield "| what travels | protection | error | of the mean | uniform | correlation |"
    yield "|---|---|---:|---:|---:|---:|"
    for method, common in (("repper", False), ("fedavg", False), ("repper", True)):
        for noise in NOISES:
            found = [counted(data, method, common, noise, seed) for seed in range(seeds)]
            ours, mean, uniform, together = np.mean(found, axis=0)
            what = "the common head" if common else f"{method}'s update"
            yield (
                f"| {what} | {named(noise)} | {ours:.1f} | {mean:.1f} | {uniform:.1f} | "
                f"{together:.2f} |"
            )
    exact = [crafted(data, seed) for seed in range(seeds)]
    yield f"| fedavg's loss, crafted heads | any | {np.mean(exact):.1f} | | | |"


def counted(
    data: Dataset, method: str, common: bool, noise: float | None, seed: int
) -> tuple[float, float, float, float]:
    """The attack's error, those of two guesses, and the attack's correlation."""
    random = np.random.default_rng(seed)
    rows = dealt(data, SHADOWS + VICTIMS, random)
    training = Training(epochs=EPOCHS, batch=BATCH)
    everyone = fleet(data, rows, method, training, seed=seed, common=common)
    # The encoder has learned for a while, from clients of the attacker's own.
    first = fleet(data, rows[:10], method, training, seed=seed, rounds=5)
    served, stage, number = first.train(seed), 0, 6
    if common:
        served, stage, number = everyone.second(served.shared), 1, 2
        with everyone.engine() as engine:
            second = replace(everyone.work.stages[1], rounds=1)
            [measured] = federate(engine, served, second, seed=seed, index=1)
        served = measured.served
    mixes = np.array([counts.shares(data.train.labels[one], 10) for one in rows])
    sent = updates(everyone, served, range(len(rows)), number, stage)
    if noise is not None:
        clip = float(np.median(np.linalg.norm(sent, axis=1)))
        work = replace(everyone.work, sending=protected(noise, clip))
        sent = updates(replace(everyone, work=work), served, range(len(rows)), number, stage)
    guess = counts.read_off(sent[:SHADOWS], mixes[:SHADOWS], sent[SHADOWS:])
    truth, mean = mixes[SHADOWS:], mixes[:SHADOWS].mean(0)
    ours = counts.errors(guess, truth)
    plain = [
        counts.errors(np.tile(one, (VICTIMS, 1)), truth)["error"] for one in (mean, 0.1 + 0 * mean)
    ]
    return ours["error"], *plain, ours["correlation"]


def updates(
    fleet: Fleet, served: Served, clients: range, number: int, stage: int
) -> NDArray[np.float64]:
    """What each client changes in a round, a row per client."""
    with fleet.engine() as engine:
        found = {
            one.client: one for one in engine.fit(served.received, list(clients), number, stage)
        }
    return np.stack([flat(difference(found[one].sent, served.shared)) for one in clients])


def flat(change: Params) -> NDArray[np.float64]:
    return torch.cat([change[name].flatten() for name in sorted(change)]).double().numpy()


def crafted(data: Dataset, seed: int) -> float:
    """The error of counts from the mean losses of heads that a server has made."""
    [rows] = dealt(data, 1, np.random.default_rng(seed))
    victim = fleet(data, [rows], "fedavg", Training(epochs=1, batch=4096), seed=seed)
    found = counts.counts_from_losses(victim, victim.begin(seed), 0)
    return 100 * float(np.abs(found / HELD - counts.shares(data.train.labels[rows], 10)).mean())


# Members


def members(data: Dataset, seeds: int) -> Iterator[str]:
    yield "| what is attacked | protection | AUC | found at 1 % false alarms | probe |"
    yield "|---|---|---:|---:|---:|"
    for method in ("repper", "fedavg"):
        for noise in NOISES[:2]:
            found = [told_apart(data, method, noise, seed) for seed in range(seeds)]
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
    parser.add_argument("--picture", type=Path, help="where to draw images of the attack")
    options = parser.parse_args()
    data = repper.load("cifar10", train_images=10_000)
    with one_thread():
        for name in options.only or TABLES:
            more = (options.picture,) if name == "images" else ()
            for line in TABLES[name](data, options.seeds, *more):
                print(line, flush=True)
            print(flush=True)


if __name__ == "__main__":
    main()

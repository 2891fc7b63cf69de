"""Settings that were given and that nothing in a run asks for: likely a misunderstanding."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Collection, Iterator, Sequence

from repper.config import OF_HEADS, OPTIONS, Config
from repper.heads import HEADS
from repper.methods import METHODS
from repper.personalize import FINETUNE


def say_what_is_idle(given: Collection[str], runs: Sequence[Config]) -> None:
    """Say on stderr which of the settings given none of the runs uses."""
    for sentence in idle(given, runs):
        print(f"note: {sentence}", file=sys.stderr)


def idle(given: Collection[str], runs: Sequence[Config]) -> Iterator[str]:
    """A sentence about every setting that is not at its default and that none of the runs uses."""
    here = {run.method for run in runs} | {f"--partition {run.partition}" for run in runs}
    here |= {run.personalize_as(client) for run in runs for client in (-1, *run.overrides)}
    for name, users in _users().items():
        setting = OPTIONS[name]
        if name not in given or getattr(runs[0], name) == setting.default or here & {*users}:
            continue
        *most, last = users
        whose = f"{', '.join(most)} and {last}" if most else last
        heads = " heads" if last in (*HEADS, FINETUNE) else ""
        yield f"--{setting.key} changes nothing here: it is for {whose}{heads}"


def _users() -> dict[str, list[str]]:
    """Who asks for a setting: methods, heads, ways to divide the data. Others are for all."""
    users = {"alpha": ["--partition dirichlet"], "classes_per_client": ["--partition shards"]}
    for method in METHODS:
        for f in dataclasses.fields(METHODS[method]):
            users.setdefault(f.name, []).append(method)
    arguments = {head: HEADS[head]().get_params() for head in HEADS}
    for name, argument in OF_HEADS.items():
        users[name] = [head for head in HEADS if argument in arguments[head]]
        # To tune a head is to train a linear one further, on features as they are.
        if "linear" in users[name] and name != "head_plain":
            users[name].append(FINETUNE)
    return users | {"head_input": [*HEADS], "head_curve": users["head_epochs"]}

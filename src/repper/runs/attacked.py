"""The outcome of an attack on a run: who attacked, and how often a backdoor works."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from repper.basics.params import Params
from repper.edge.saved_head import read_head
from repper.encoders.encoder import features_of
from repper.engines.engine import one_thread
from repper.heads.scores import mean_of
from repper.runs.plan import Plan
from repper.updates.attacks import Backdoor, Hostile

EncoderOf = Callable[[int], Params]


def attack_facts(planned: Plan, hostile: Hostile, heads: Path, encoder_of: EncoderOf) -> Any:
    """The entry of a result about the attack; `encoder_of` gives the encoder that a client uses."""
    facts: dict[str, Any] = {
        "name": planned.config.shown("attack"),
        "clients": list(hostile.clients),
        "honest": planned.config.clients - len(hostile.clients),
    }
    if isinstance(hostile.attack, Backdoor):
        facts |= _backdoor(planned, hostile.attack, heads, encoder_of)
    return facts


def _backdoor(
    planned: Plan, attack: Backdoor, heads: Path, encoder_of: EncoderOf
) -> dict[str, Any]:
    """How often honest clients answer with the attacker's class, with its mark and without.

    In percent of a client's test images of other classes, as the mean over clients.
    """
    images, partition = planned.dealt.images.test, planned.work.partition
    marked, unmarked = list[float | None](), list[float | None]()

    def taken(client: int, shown: NDArray[np.uint8]) -> float | None:
        features = features_of(planned.work.spec, encoder_of(client), shown)
        head = read_head(heads / f"{client}.safetensors")
        return float(100 * np.mean(head.predict(features) == attack.target))

    with one_thread():
        for client in planned.personalized:
            rows = partition.test[client]
            rows = rows[images.labels[rows] != attack.target]
            if len(rows):
                own = images.images[rows]
                unmarked.append(taken(client, own))
                marked.append(taken(client, attack.mark(torch.from_numpy(own)).numpy()))
    return {
        "target": planned.work.classes[attack.target],
        "success": mean_of(marked),
        "without_mark": mean_of(unmarked),
    }


def said_of(result: Mapping[str, Any]) -> str:
    """A sentence or two on the attack in a result; empty if there was none."""
    if (found := result.get("attack")) is None:
        return ""
    text = (
        f"{len(found['clients'])} of {result['clients']} clients attack ({found['name']}); "
        f"scores are those of the {found['honest']} honest ones."
    )
    if found.get("success") is not None:
        text += (
            f" Their test images of other classes are classified as {found['target']} in "
            f"{found['success']:.1f} % of cases with the mark, "
            f"{found['without_mark']:.1f} % without."
        )
    return text

"""FedAvg as a bare Flower app over real nodes, on the images of the nodes' sites."""

from __future__ import annotations

import time
import tomllib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from PIL import Image

from .plain import network, report, train

client = ClientApp()  # one name a line: Flower looks for them in the text
server = ServerApp()
moments: list[float] = []


@client.train()
def fit(message: Message, context: Context) -> Message:
    home = Path(str(context.node_config["home"]))
    data = Path(tomllib.loads((home / "site.toml").read_text())["data"])
    classes = str(context.run_config["classes"]).split(",")
    files = sorted(data.glob("*/*.png"))
    files = files[: int(len(files) * 0.8)]
    pixels = np.stack([np.asarray(Image.open(file).convert("RGB")) for file in files])
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2).float().div_(127.5).sub_(1.0)
    labels = torch.tensor([classes.index(file.parent.name) for file in files])
    model = network(3)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    train(model, images, labels, int(context.run_config["epochs"]), 256)
    content = RecordDict(
        {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": len(labels)}),
        }
    )
    return Message(content=content, reply_to=message)


class Timed(FedAvg):
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        answers = list(replies)
        if any(one.has_error() for one in answers):
            raise RuntimeError("not all sites answered well")
        result = super().aggregate_train(server_round, answers)
        moments.append(time.perf_counter())
        return result


@server.main()
def main(grid: Grid, context: Context) -> None:
    sites = int(context.run_config["sites"])
    strategy = Timed(
        fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=sites, min_available_nodes=sites
    )
    while len(list(grid.get_node_ids())) < sites:
        time.sleep(0.5)
    moments.append(time.perf_counter())
    rounds = int(context.run_config["rounds"])
    strategy.start(grid, ArrayRecord(network(3).state_dict()), num_rounds=rounds)
    report(moments)

"""FedAvg in Flower's simulation, one client per core at a time."""

from __future__ import annotations

import time
from collections.abc import Iterable

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from plain import model_of_process, report, scenario, train
from torch import nn

client, server = ClientApp(), ServerApp()
moments: list[float] = []


@client.train()
def fit(message: Message, context: Context) -> Message:
    task, model = scenario(), model_of_process()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    images, labels = task.of(int(context.node_config["partition-id"]))
    train(model, images, labels, task.epochs, task.batch)
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
        if len(answers) != scenario().cohort or any(one.has_error() for one in answers):
            raise RuntimeError("not all clients answered well")
        result = super().aggregate_train(server_round, answers)
        moments.append(time.perf_counter())
        return result


@server.main()
def main(grid: Grid, context: Context) -> None:
    task = scenario()
    model: nn.Module = task.network()
    strategy = Timed(
        fraction_train=task.cohort / task.clients,
        fraction_evaluate=0.0,
        min_train_nodes=task.cohort,
        min_available_nodes=task.clients,
    )
    strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=task.rounds)
    report(moments)


if __name__ == "__main__":
    run_simulation(
        server, client, num_supernodes=scenario().clients,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )  # fmt: skip

"""FedAvg in pfl-research: torchrun --nproc-per-node CORES pfl_research.py"""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from plain import report, scenario
from torch import Tensor, nn

moments: list[float] = []


class Classifier(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def loss(self, images: Tensor, labels: Tensor, eval: bool = False) -> Tensor:
        self.train(not eval)
        return nn.functional.cross_entropy(self.body(images), labels)

    def metrics(self, images: Tensor, labels: Tensor, eval: bool = False) -> dict[str, Any]:
        return {}


class Clock(TrainingProcessCallback):
    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        moments.append(time.perf_counter())
        return False, Metrics()


def main() -> None:
    task = scenario()
    np.random.seed(0)
    torch.manual_seed(0)
    users = list(range(task.clients))
    data = FederatedDataset(
        lambda user: Dataset(list(task.of(user)), user_id=str(user)),
        get_user_sampler("minimize_reuse", users),
    )
    module = Classifier(task.network())
    model = PyTorchModel(
        module,
        lambda parameters, lr: torch.optim.Adam(parameters, lr=lr, weight_decay=1e-4, fused=True),
        torch.optim.SGD(module.parameters(), 1.0),
        amp_dtype=torch.bfloat16 if os.environ.get("HALF") else None,
    )
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=task.rounds, evaluation_frequency=10**9,
            train_cohort_size=task.cohort, val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=task.epochs, local_learning_rate=1e-3, local_batch_size=task.batch
        ),
        callbacks=[Clock()],
    )  # fmt: skip
    if pytorch_ops.distributed.global_rank == 0:
        report(moments)


if __name__ == "__main__":
    main()

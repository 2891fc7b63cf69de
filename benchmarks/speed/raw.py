"""The best that plain PyTorch does on these cores: forward, backward and step on ready tensors."""

from __future__ import annotations

import multiprocessing
import os
import time
from multiprocessing.synchronize import Barrier

import torch

from repper.encoders.encoder import EncoderSpec
from repper.engines.processes import KEEP_MEMORY
from repper.methods.losses import supcon

SECONDS = 10.0


def images_per_second(
    encoder: str, batch: int, processes: int, threads: int, keep_memory: bool = False
) -> float:
    """Images, of two views each, that go through a training step in a second, all together.

    With `keep_memory` the allocator is set as in our workers, which few would think of.
    """
    added = KEEP_MEMORY if keep_memory else {}
    os.environ.update(added)
    try:
        return _all_together(encoder, batch, processes, threads)
    finally:
        for name in added:
            del os.environ[name]


def _all_together(encoder: str, batch: int, processes: int, threads: int) -> float:
    context = multiprocessing.get_context("spawn")
    barrier, rates = context.Barrier(processes), context.Queue()
    workers = [
        context.Process(target=_train, args=(encoder, batch, threads, barrier, rates))
        for _ in range(processes)
    ]
    for worker in workers:
        worker.start()
    total = sum(rates.get() for _ in workers)
    for worker in workers:
        worker.join()
    return total


def _train(
    encoder: str,
    batch: int,
    threads: int,
    barrier: Barrier,
    rates: multiprocessing.Queue[float],
) -> None:
    torch.set_num_threads(threads)
    network = EncoderSpec(encoder, 3, 32).build()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, weight_decay=1e-4, fused=True)
    views = torch.randn(2 * batch, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    labels = (torch.arange(batch) % 10).repeat(2)

    def step() -> None:
        optimizer.zero_grad()
        supcon(network(views), labels, 0.1, "usual").backward()
        optimizer.step()

    step()
    barrier.wait()
    began, steps = time.perf_counter(), 0
    while time.perf_counter() - began < SECONDS:
        step()
        steps += 1
    rates.put(batch * steps / (time.perf_counter() - began))

"""The best that plain PyTorch does on these cores: forward, backward and step on ready tensors."""

from __future__ import annotations

import multiprocessing
import os
import time
from multiprocessing.synchronize import Barrier

import torch

from repper.encoders.encoder import EncoderSpec
from repper.engines.pool import KEEP_MEMORY
from repper.losses import supcon

BATCH = 256


def images_per_second(
    encoder: str, processes: int, threads: int, seconds: float, keep_memory: bool = False
) -> float:
    """Images, of two views each, that go through a training step in a second, all together.

    With `keep_memory` the allocator is set as in our workers, which few would think of.
    """
    added = KEEP_MEMORY if keep_memory else {}
    os.environ.update(added)
    try:
        return _all_together(encoder, processes, threads, seconds)
    finally:
        for name in added:
            del os.environ[name]


def _all_together(encoder: str, processes: int, threads: int, seconds: float) -> float:
    context = multiprocessing.get_context("spawn")
    barrier, rates = context.Barrier(processes), context.Queue()
    workers = [
        context.Process(target=_train, args=(encoder, threads, seconds, barrier, rates))
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
    threads: int,
    seconds: float,
    barrier: Barrier,
    rates: multiprocessing.Queue[float],
) -> None:
    torch.set_num_threads(threads)
    network = EncoderSpec(encoder, 3, 32).build()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, weight_decay=1e-4, fused=True)
    views = torch.randn(2 * BATCH, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    labels = (torch.arange(BATCH) % 10).repeat(2)

    def step() -> None:
        optimizer.zero_grad()
        supcon(network(views), labels).backward()
        optimizer.step()

    step()
    barrier.wait()
    began, steps = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        step()
        steps += 1
    rates.put(BATCH * steps / (time.perf_counter() - began))

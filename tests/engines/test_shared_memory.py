import multiprocessing

import numpy as np
import pytest
import torch

from repper.engines.shared_memory import SharedTensor


def double(shared, done):
    shared.tensor.mul_(2)
    done.send(tuple(shared.tensor.shape))


@pytest.mark.parametrize("shape", [(2, 3), (0,), (4, 0, 2)])
def test_a_tensor_is_shared_with_a_new_process(shape):
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    shared = SharedTensor.copy_of(array)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=double, args=(shared, theirs))
    process.start()
    assert ours.recv() == shape
    process.join()
    assert torch.equal(shared.tensor, torch.from_numpy(2 * array))


def test_kinds_of_numbers_survive():
    for array in (np.array([1, -2], np.int64), np.array([[255, 0]], np.uint8)):
        assert SharedTensor.copy_of(array).tensor.tolist() == array.tolist()

"""Gaussian noise from a key: unpredictable without it, and the same when a round is repeated."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

KEY_BYTES = 32


def key_of_seed(seed: int) -> bytes:
    """A key for research: whoever knows the seed of the run can subtract the noise."""
    return hashlib.sha256(f"repper noise of seed {seed}".encode()).digest()


def gaussian(key: bytes, about: bytes, count: int) -> NDArray[np.float64]:
    """Draw `count` standard normal numbers from a key and from `about`.

    `about` is the sum that the noise hides. The same sum gets the same noise, so that a repeated
    round releases nothing new. Another sum gets other noise: if it got the same, the difference of
    the two releases would be free of noise. The bits are those of SHAKE-256 over a key of fixed
    length: without the key they cannot be told from random ones. Two of 64 bits make two normal
    numbers (Box and Muller 1958).
    """
    if len(key) != KEY_BYTES:
        raise ValueError(f"the key of the noise must have {KEY_BYTES} bytes, got {len(key)}")
    pairs = -(-count // 2)
    seed = key + hashlib.sha256(about).digest()
    bits = np.frombuffer(hashlib.shake_256(seed).digest(16 * pairs), "<u8").reshape(2, pairs)
    first, second = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    length, angle = np.sqrt(-2 * np.log(first)), 2 * np.pi * second
    return np.concatenate([length * np.cos(angle), length * np.sin(angle)])[:count]

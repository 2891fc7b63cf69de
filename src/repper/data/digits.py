"""Handwritten digits that come with scikit-learn: 1,797 real images of 8 x 8 pixels."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from repper.data.dataset import Dataset, Split
from repper.data.location import Request


def digits(_request: Request) -> Dataset:
    """All digits, split once and for all into 1,437 to learn from and 360 to test on.

    The split is stratified and does not depend on a run's seed.
    """
    bunch = load_digits()
    # Sixteen grey levels (and black) spread over a byte: 16 becomes 255.
    images = np.round(bunch.images * (255 / 16)).astype(np.uint8)[:, None]
    labels = bunch.target.astype(np.int64)
    train, test = train_test_split(
        np.arange(len(labels)), test_size=360, stratify=labels, random_state=0
    )
    return Dataset(
        name="digits",
        classes=tuple("0123456789"),
        train=Split(images[train], labels[train]),
        test=Split(images[test], labels[test]),
        flip=False,
        note="1437 train and 360 test images of scikit-learn's digits",
    )

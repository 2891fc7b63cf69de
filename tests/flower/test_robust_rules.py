"""Our robust server rules give what Flower's own strategies give on the same updates."""

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedMedian, FedTrimmedAvg, Krum, MultiKrum

from repper.server import robust as ours
from server.test_robust import W, combined, near


def replies(updates):
    """The same updates as Flower's strategies get them."""
    return [
        Message(
            RecordDict(
                {
                    "arrays": ArrayRecord([update.weights[W].numpy()]),
                    "metrics": MetricRecord({"num-examples": update.examples}),
                }
            ),
            dst_node_id=1,
            message_type="train",
        )
        for update in updates
    ]


@pytest.mark.parametrize(
    ("rule", "theirs"),
    [
        (ours.Median(), FedMedian()),
        (ours.TrimmedMean(hostile=0.2), FedTrimmedAvg(beta=0.2)),
        (ours.Krum(hostile=0.2), Krum(num_malicious_nodes=2)),
        (ours.MultiKrum(hostile=0.2), MultiKrum(num_malicious_nodes=2, num_nodes_to_select=8)),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("seed", range(3))
def test_a_rule_gives_what_flowers_own_gives(rule, theirs, seed):
    updates = near(np.zeros(40), 10, seed, size=40)
    arrays, _ = theirs.aggregate_train(1, replies(updates))
    [expected] = arrays.to_numpy_ndarrays()
    assert combined(rule, updates)[W].numpy() == pytest.approx(expected, abs=1e-5)

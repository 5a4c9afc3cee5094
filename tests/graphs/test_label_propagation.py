"""Label propagation, by hand."""

import pytest
import torch

from graft.graphs.label_propagation import propagate_labels
from graft.methods.fedavg import FedAvg
from tests.methods.adafgl.cases import linked
from tests.toy import toy_setup


@pytest.mark.parametrize(
    ("share", "anchored", "wanted"),
    [
        (0.5, True, [[1.875, 0.125], [0.625, 0.375]]),
        (0.5, False, [[0.875, 0.125], [0.625, 0.375]]),
        (1.0, False, [[0.75, 0.25], [0.75, 0.25]]),
        (0.0, False, [[1.0, 0.0], [0.5, 0.5]]),
    ],
)
def test_one_step_between_two_nodes(share, anchored, wanted):
    graph = toy_setup(FedAvg(), graphs=[linked([(0, 1)], [0, 1])]).fleet([0]).graph
    start = torch.tensor([[[1.0, 0.0], [0.5, 0.5]]])
    labels = propagate_labels(graph, start, torch.tensor([[anchored, False]]), 1, share)
    torch.testing.assert_close(labels[0], torch.tensor(wanted))
    assert torch.equal(propagate_labels(graph, start, torch.tensor([[anchored, False]]), 0, share), start)

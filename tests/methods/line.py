"""Peers so small that they can be worked out by hand: each has a row of numbers, a place to begin and a parabola."""

from dataclasses import asdict, fields

import torch

from graft.federation.fleet import Fleet
from graft.models.architecture import Model, Output
from graft.tensors.trees import Tree
from tests.toy import toy_setup


class Numbers(Model):
    """Its only weights are a row of numbers, or a matrix of them; it says nothing about nodes."""

    name = "numbers"

    def __init__(self, shape):
        self.shape = shape

    def start(self, generator):  # noqa: ARG002
        return Tree(x=torch.zeros(self.shape))

    def __call__(self, weights, graph, random=None):  # noqa: ARG002
        blank = weights["x"].flatten(1).sum(1).view(-1, 1, 1).expand(-1, graph.nodes, 3)
        return Output(blank, blank)


def line(method, starts, minima=None, curvature=0.0, **settings):
    """A federation of peers that begin at `starts` and roll towards `minima`; at rest unless `curvature` is given."""
    starts = torch.tensor(starts, dtype=torch.float32)
    minima = torch.zeros_like(starts) if minima is None else torch.tensor(minima, dtype=torch.float32)

    class Apart(Fleet):
        """A view whose clients begin at points of their own."""

        def initial(self, model=None):  # noqa: ARG002
            return Tree(x=starts[self.clients])

    class OnALine(type(method)):
        def start_client(self, fleet):
            super().start_client(Apart(**{field.name: getattr(fleet, field.name) for field in fields(Fleet)}))

        def loss(self, fleet, weights):
            rows = curvature / 2 * (weights["x"] - minima[fleet.clients]).square()
            return rows.reshape(len(rows), -1).sum(1)

    moved = OnALine(**asdict(method))
    training = {"optimizer": "sgd", "learning_rate": 0.1, "weight_decay": 0.0, "epochs": 1, "weight_by": "uniform"}
    return toy_setup(moved, len(starts), Numbers(starts.shape[1:]), **(training | settings))


def places(finished, field="model"):
    """Where every peer is."""
    state = finished.engine.state()
    return torch.stack([state[peer][field].x for peer in finished.engine.members()])

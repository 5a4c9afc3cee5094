"""Federations so small that they can be worked out by hand: a model of one number, and a parabola a client."""

import torch

from graft.methods.fedavg import FedAvg
from graft.methods.fedprox import FedProx
from graft.models.architecture import Model, Output
from graft.tensors.trees import Tree
from tests.toy import toy_setup

CURVATURE = torch.tensor([1.0, 3.0])
MINIMUM = torch.tensor([0.0, 4.0])


class OneNumber(Model):
    """Its only weight is x; it says nothing about nodes."""

    name = "number"

    def __init__(self, start=0.0):
        self.begin = start

    def start(self, generator):  # noqa: ARG002
        return Tree(x=torch.tensor(self.begin))

    def __call__(self, weights, graph, random=None):  # noqa: ARG002
        blank = weights["x"].view(-1, 1, 1).expand(-1, graph.nodes, 1)
        return Output(blank, blank)


class Parabolas(FedAvg):
    """Client k minimises curvature / 2 * (x - minimum)^2: f1 = x^2 / 2 and f2 = 3 (x - 4)^2 / 2."""

    def loss(self, fleet, weights, received):  # noqa: ARG002
        return CURVATURE[fleet.clients] / 2 * (weights.x - MINIMUM[fleet.clients]).square()


class Valley(FedAvg):
    """Every client minimises (x - 3)^2."""

    def loss(self, fleet, weights, received):  # noqa: ARG002
        return (weights.x - 3).square()


class PulledValley(FedProx, Valley):
    """The same with FedProx's pull: its loss adds to that of the next class in line."""


def number_setup(method, clients=2, start=0.0, **training):
    settings = {"optimizer": "sgd", "learning_rate": 0.1, "weight_decay": 0.0, "weight_by": "uniform"} | training
    return toy_setup(method, clients, models=OneNumber(start), **settings)

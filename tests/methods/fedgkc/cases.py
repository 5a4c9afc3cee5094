"""Cases that the tests of FedGKC share: federations that can be worked out by hand, and the terms of the losses."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from graft.data.graphs import make_graph
from graft.engines.in_process import InProcess
from graft.methods.fedgkc import FedGKCPaper
from graft.models.architecture import LayeredModel, Output
from graft.tensors.trees import Tree
from tests.toy import random_weights, toy_graphs, toy_setup

CPU = torch.device("cpu")
ALPHA, BETA, REST = 0.6, 0.2, 0.2  # of the paper
ARCHITECTURES = ("gcn", "gat", "sage", "gin", "sgc", "mlp")
by_hand = pytest.mark.usefixtures("_lookup")


@dataclass(frozen=True)
class Lookup(LayeredModel):
    """Looks its outputs up: the embedding is one table of weights, the logits are the features plus another."""

    kind = "lookup"

    def start(self, generator):  # noqa: ARG002
        return Tree(embedding=torch.zeros(4, self.classes), logits=torch.zeros(4, self.classes))

    def __call__(self, weights, graph, random=None):  # noqa: ARG002
        features = graph.features if isinstance(graph.features, torch.Tensor) else graph.features.dense()
        nodes = graph.nodes
        return Output(weights["embedding"][:, :nodes] + 0 * features, weights["logits"][:, :nodes] + features)


def hand_graph(probabilities, edges=()):
    """Nodes whose features are the logarithms of the probabilities to be predicted."""
    x = np.log(np.asarray(probabilities, dtype=np.float64))
    nodes, classes = x.shape
    masks = {"train": np.arange(nodes) == 0, "validation": np.zeros(nodes, bool), "test": np.zeros(nodes, bool)}
    pairs = np.asarray(edges, dtype=int).reshape(-1, 2).T
    return make_graph("hand", x, pairs, np.zeros(nodes, int), classes, masks)


def hand_setup(graphs, models="lookup", epochs=0, **fields_of_method):
    return toy_setup(FedGKCPaper(copilot="lookup", **fields_of_method), models=models, graphs=graphs, epochs=epochs)


FIRST = [(0.7, 0.2, 0.1), (0.5, 0.3, 0.2), (0.1, 0.1, 0.8)]
SECOND = [(0.4, 0.3, 0.3), (0.9, 0.05, 0.05)]
PATH = [(0, 1), (1, 2)]


def fleet_of(method, models="gcn", graphs=None, clients=None, **settings):
    """A fleet in its first round of training, and different random weights of copilot and local model."""
    setup = toy_setup(method, models=models, graphs=graphs or toy_graphs(), **settings)
    fleet = setup.fleet(clients or setup.clients).for_call(1, "train")
    count = len(fleet.clients)
    copilot = random_weights(fleet.architecture(method.copilot), count, seed=1)
    return fleet, Tree(copilot=copilot, model=random_weights(fleet.model, count, seed=2))


def watched(setup):
    """An engine, and a list of its replies."""
    engine, seen = InProcess(setup), []
    ask = engine.ask
    engine.ask = lambda request: seen.append(ask(request)) or seen[-1]
    return engine, seen


def record_of(finished):
    """What the method recorded in the last round, as plain numbers and lists."""
    return {
        name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in finished.records.items()
    }


def edge_by_edge(graph, teacher, student, reduction="sum"):
    """Eq. 1 edge by edge, the way that needs a tensor of edges by width."""
    own = np.arange(graph.nodes)
    nodes, around = np.concatenate([graph.edges, [own, own]], axis=1)
    expected = teacher[around].log_softmax(1)
    each = (expected.exp() * (expected - student[nodes].log_softmax(1))).sum(1)
    summed = torch.zeros(graph.nodes).index_add(0, torch.from_numpy(nodes), each)
    counts = torch.from_numpy(np.bincount(nodes)) if reduction == "mean" else 1
    return (summed / counts).mean()


FULL = {"labels": ALPHA, "predictions": REST, "neighbourhood": BETA}
SELF = {"self": 1}
DUAL = {"labels": ALPHA, "predictions": 1 - ALPHA}  # the "conventional dual-model": mutual learning
ALONE = {"labels": ALPHA}
OTHER = {"labels": 0.5, "predictions": 0.4, "neighbourhood": 0.1}

LOSSES = [  # settings, what the copilot's loss is made of, and what the local model's is
    ({}, FULL, FULL | SELF),
    ({"kama": False}, FULL, FULL | SELF),
    ({"smkd": False}, DUAL, DUAL),
    ({"smkd": False, "kama": False}, DUAL, DUAL),
    ({"self_distill": False}, FULL, FULL),
    ({"mutual": False}, ALONE, ALONE | SELF),
    ({"mutual": False, "self_distill": False}, ALONE, ALONE),
    ({"strength": False}, FULL, FULL | SELF),
    ({"clarity1": False}, FULL, FULL | SELF),
    ({"clarity2": False}, FULL, FULL | SELF),
    ({"feedback": 0.5}, {"labels": ALPHA, "predictions": REST / 2, "neighbourhood": BETA / 2}, FULL | SELF),
    ({"feedback": 0.5, "smkd": False}, {"labels": ALPHA, "predictions": (1 - ALPHA) / 2}, DUAL),
    ({"feedback": 0.0}, ALONE, FULL | SELF),
    ({"self_weight": 3.0}, FULL, FULL | {"self": 3}),
    ({"self_weight": 0.0}, FULL, FULL),
    ({"alpha": 0.5, "beta": 0.1}, OTHER, OTHER | SELF),
    ({"beta": 0.0}, DUAL, DUAL | SELF),
    ({"neigh_reduction": "mean"}, FULL, FULL | SELF),
    ({"mse_reduction": "sum_dim"}, FULL, FULL | SELF),
    ({"views": "fgssl"}, FULL, FULL | SELF),
    ({"views": "light"}, FULL, FULL | SELF),
]
every_loss = pytest.mark.parametrize(("settings", "copilot", "local"), LOSSES, ids=[str(case[0]) for case in LOSSES])
SWITCHES = [case[0] for case in LOSSES if False in case[0].values()]

"""Cases that the tests of FedSage+ share."""

import numpy as np
import torch

from graft.data.graphs import make_graph
from graft.methods.fedsage_plus import FedSagePlus
from graft.tensors.trees import Tree, map_tree
from tests.toy import toy_setup

CPU = torch.device("cpu")
QUICK = {"generator_epochs": 3, "shared_epochs": 2}


class Keen(FedSagePlus):
    """Generates two neighbours for every node, so that there is always something to judge."""

    def make(self, fleet, latent, counts, *others):
        return super().make(fleet, latent, torch.full_like(counts, 2), *others)._replace(counts=counts)


def star():
    """Node 0 in the middle of nodes 1 to 4."""
    return make_graph("star", np.eye(5), np.array([[0, 0, 0, 0], [1, 2, 3, 4]]), np.zeros(5, int), 1)


def started_fleet(method, clients=(0,), **settings):
    """Clients with the state that they start from."""
    fleet = toy_setup(method, **settings).fleet(list(clients))
    method.start_client(fleet)
    return fleet


def mended_fleet(method, clients=(0, 1, 2), count=2.5, **settings):
    """Clients whose generators predict of every node that it misses so many neighbours."""
    fleet = started_fleet(method, clients, **settings)
    state = fleet.state
    state.update(map_tree(torch.clone, state))
    state.generator["count"] = Tree(
        weight=torch.zeros_like(state.generator["count"].weight),
        bias=torch.full_like(state.generator["count"].bias, count),
    )
    state.mended = torch.ones_like(state.mended)
    return fleet


def edges_of(pattern):
    return set(zip(pattern.row_of.tolist(), pattern.columns.tolist(), strict=True))


def all_features(graph):
    """The features of every node, padding included."""
    return graph.features @ torch.eye(graph.width).expand(graph.clients, -1, -1)

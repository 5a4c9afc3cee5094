"""The random graph on which the clients' models are compared: communities without an edge between them, and Gaussian
features. It is drawn from the run's seed, so every client makes the same one and nobody has to send it."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from graft.graphs.fleet_graph import FleetGraph
from graft.tensors.randomness import seed_for, streams
from graft.tensors.sparse import BlockSparse


class ProxyGraph(FleetGraph):
    """One graph that the models of all clients of a fleet see; its features are kept once."""

    def __init__(self, single: FleetGraph, clients: int) -> None:
        features = single.features.expand(clients, -1, -1)
        super().__init__(single.neighbours.select([0] * clients), features, single.sizes.expand(clients))
        self.single = single
        self.cacheable = True

    def propagated_features(self, matrix: str, steps: int = 1) -> Tensor | None:
        propagated = self.single.propagated_features(matrix, steps)
        return None if propagated is None else propagated.expand(self.clients, -1, -1)

    def select_range(self, clients: range) -> FleetGraph:
        return self.single if len(clients) == 1 else super().select_range(clients)


@lru_cache(maxsize=2)  # a run needs one; the fleets that use it keep it
def random_graph(
    seed: int, features: int, blocks: int, block_nodes: int, chance: float, device: torch.device
) -> FleetGraph:
    """Returns blocks of nodes in which two nodes are linked by chance, with features of mean 0 and variance 1."""
    random = streams(torch.device("cpu"), seed_for(seed, "proxy graph"), [0])
    nodes = blocks * block_nodes
    x = random.normal(nodes * features).view(1, nodes, features)
    first, second = torch.triu_indices(block_nodes, block_nodes, 1)
    linked = torch.zeros(blocks, block_nodes, block_nodes, dtype=torch.bool)
    linked[:, first, second] = (random.uniform(blocks * len(first)) < chance).view(blocks, -1)
    linked |= linked.mT.clone()
    block, _, column = linked.nonzero(as_tuple=True)
    starts = functional.pad(linked.sum(2).flatten().cumsum(0), (1, 0)).to(torch.int32)
    columns = (block * block_nodes + column).to(torch.int32)
    neighbours = BlockSparse(starts.to(device), columns.to(device), None, 1, (nodes, nodes)).with_values(None)
    graph = FleetGraph(neighbours, x.to(device), torch.tensor([nodes], device=device))
    graph.cacheable = True
    return graph

"""Some nodes of every client, for a layer whose output is needed at these nodes alone."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from graft.graphs.fleet_graph import FleetGraph
from graft.tensors.sparse import BlockSparse


def gather_nodes(values: Tensor, nodes: Tensor) -> Tensor:
    """Returns the rows of values [clients, nodes, ...] at some nodes of each client, [clients, some, ...]."""
    return values.gather(1, nodes.view(*nodes.shape, *[1] * (values.dim() - 2)).expand(-1, -1, *values.shape[2:]))


class NodeSubset:
    """Some nodes of every client, with the graph's matrices restricted to their rows.

    The last layer of a model reads all nodes, and its output is often needed at few.
    """

    def __init__(
        self, graph: FleetGraph, nodes: Tensor, real: Tensor, source: tuple[NodeSubset, list[int]] | None = None
    ) -> None:
        self.graph = graph
        self.nodes = nodes  # int64 [clients, some]
        self.real = real  # bool [clients, some]: False for padding, where a client has fewer
        self._source = source  # what this was selected from, and the positions of its clients there
        self._propagated: dict[tuple[str, int], Tensor] = {}
        self._ranges: dict[range, NodeSubset] = {}

    @property
    def total(self) -> int:
        """Returns how many nodes each client has in all, padding included."""
        return self.graph.nodes

    @property
    def features(self) -> Any:
        return self.graph.features

    @cached_property
    def normalised(self) -> BlockSparse:
        return self._restrict("normalised")

    @cached_property
    def mean(self) -> BlockSparse:
        return self._restrict("mean")

    @cached_property
    def with_self_loops(self) -> BlockSparse:
        return self._restrict("with_self_loops")

    @cached_property
    def selection(self) -> BlockSparse:
        """Returns the matrix with one entry for each of these nodes, in its column."""
        if self._source is not None:
            return self._restrict("selection")
        clients, nodes = self.graph.clients, self.graph.nodes
        diagonal = torch.arange(clients * nodes + 1, dtype=torch.int32, device=self.nodes.device)
        identity = BlockSparse(diagonal, diagonal[:-1], None, clients, (nodes, nodes))
        return identity.select_rows(self.nodes, self.real)

    def _restrict(self, matrix: str) -> BlockSparse:
        if self._source is None:
            whole: BlockSparse = getattr(self.graph, matrix)
            return whole.select_rows(self.nodes, self.real)
        subset, chosen = self._source
        restricted: BlockSparse = getattr(subset, matrix)
        return restricted.select(chosen)

    def gather(self, values: Tensor) -> Tensor:
        """Returns the values of these nodes out of those of all nodes; zero for padding."""
        if values.dtype == torch.float32:
            return self.selection @ values
        return gather_nodes(values, self.nodes) * self.real.unsqueeze(2)

    def propagated_features(self, matrix: str, steps: int = 1) -> Tensor | None:
        """Returns the rows of these nodes in the graph's propagated features, if it has any."""
        propagated = self.graph.propagated_features(matrix, steps)
        if propagated is not None and (matrix, steps) not in self._propagated:
            self._propagated[matrix, steps] = self.selection.times(propagated)
        return self._propagated.get((matrix, steps))

    def select_range(self, clients: range) -> NodeSubset:
        """Returns the subset of a contiguous range of the clients."""
        if len(clients) == self.graph.clients:
            return self
        if clients not in self._ranges:
            rows, source = slice(clients.start, clients.stop), None if self._source is None else (self, list(clients))
            self._ranges[clients] = NodeSubset(
                self.graph.select_range(clients), self.nodes[rows], self.real[rows], source
            )
        return self._ranges[clients]

"""The private graphs of a fleet, laid side by side: node tensors [clients, nodes, ...] and one sparse adjacency.

A client with fewer nodes than the largest of its fleet is padded at its end with nodes that have no edges,
no features and no label, and belong to no mask, so nothing that is averaged ever counts them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from graft.data.edges import LEAST_WEIGHT
from graft.data.graphs import Graph, edge_weights
from graft.tensors.randomness import Stream
from graft.tensors.sparse import BlockSparse, contiguous, padded_size, stacked_product

# On a CPU features are multiplied as sparse ones where they and the graph together have at most this share of the
# entries that dense ones have. At half of it that was measured 1.3 to 4 times as fast, at widths of 16 to 256; at twice
# as much it is slower for wide layers.
SPARSE_ON_CPU = 0.2


class MaskedFeatures:
    """Features with some columns set to zero: the mask goes onto the weights, so the features are never copied."""

    def __init__(self, features: Tensor | BlockSparse, columns: Tensor) -> None:
        self.features = features
        self.columns = columns  # float [clients, features]: 1 kept, 0 hidden

    def __matmul__(self, weight: Tensor) -> Tensor:
        masked = self.columns.unsqueeze(2) * weight
        return stacked_product(self.features, masked) if isinstance(self.features, Tensor) else self.features @ masked

    def dense(self) -> Tensor:
        features = self.features if isinstance(self.features, Tensor) else self.features.dense()
        return features * self.columns.unsqueeze(1)


class FleetGraph:
    """The graphs and features of a fleet, as models see them."""

    def __init__(
        self,
        neighbours: BlockSparse,
        features: Any,
        sizes: Tensor,
        base: FleetGraph | None = None,
    ) -> None:
        # A: both directions, no self-loops. Its values are the weights of edges; in a view, 0 for one that is left out.
        self.neighbours = neighbours
        self.features = features  # dense [clients, nodes, features], block-diagonal or masked: `features @ weights`
        self.sizes = sizes  # int64 [clients], without padding
        self.base = base  # what this is a view of
        self.cacheable = False  # whether it is some clients' own, and is used again and again
        self._source: tuple[FleetGraph, slice | list[int]] | None = None  # what it was selected from, and which clients
        self._propagated: dict[tuple[str, int], Tensor | None] = {}

    @property
    def clients(self) -> int:
        return self.neighbours.blocks

    @property
    def nodes(self) -> int:
        return self.neighbours.rows

    @cached_property
    def real(self) -> Tensor:
        """Returns which nodes are not padding, [clients, nodes]."""
        return torch.arange(self.nodes, device=self.sizes.device) < self.sizes[:, None]

    @cached_property
    def degree(self) -> Tensor:
        """Returns how many neighbours every node has, or the sum of the weights of its edges, [clients, nodes]."""
        values = self.neighbours.values
        counts = self.neighbours.starts.diff().float() if values is None else self.neighbours.row_sums(values)
        return counts.view(self.clients, self.nodes)

    @property
    def weighted(self) -> bool:
        """Returns whether edges have weights; in a view of a graph without, they are there or not."""
        return (self.base or self).neighbours.values is not None

    @property
    def divisor(self) -> Tensor:
        """Returns what to divide a sum over neighbours by for its mean: the degree, and for a node without neighbours,
        whose sum is zero, anything else."""
        return self.degree.clamp(min=LEAST_WEIGHT if self.weighted else 1)

    @property
    def links(self) -> BlockSparse:
        """Returns A without weights: 1 where there is an edge."""
        values = self.neighbours.values
        if values is None or not self.weighted:
            return self.neighbours
        return self.neighbours.with_values(None if self.base is None else (values > 0).float())

    @property
    def neighbour_counts(self) -> Tensor:
        """Returns how many neighbours every node has, whatever the weights of its edges, [clients, nodes]."""
        if not self.weighted:
            return self.degree
        values = self.links.values
        counts = self.neighbours.starts.diff().float() if values is None else self.neighbours.row_sums(values)
        return counts.view(self.clients, self.nodes)

    @cached_property
    def mean(self) -> BlockSparse:
        """Returns D^-1 A: the mean over neighbours, zero for a node without any."""
        inverse = self.divisor.flatten().reciprocal()
        pattern = self.neighbours
        values = 1.0 if pattern.values is None else pattern.values
        return pattern.with_values(inverse[pattern.row_of] * values, inverse[pattern.columns] * values)

    @cached_property
    def _loop_order(self) -> Tensor:
        """Returns the permutation that sorts the entries of A followed by those of I into A + I."""
        total = self.clients * self.nodes
        every = torch.arange(total, device=self.sizes.device)
        rows = torch.cat([self.neighbours.row_of, every])
        return torch.argsort(rows * total + torch.cat([self.neighbours.columns.long(), every]))

    @cached_property
    def with_self_loops(self) -> BlockSparse:
        """Returns A + I; a self-loop has weight 1."""
        if self.base is not None:
            values = self.neighbours.values
            assert values is not None
            both = torch.cat([values, values.new_ones(self.clients * self.nodes)])
            return self.base.with_self_loops.with_values(both[self.base._loop_order])
        total = self.clients * self.nodes
        every = torch.arange(total, dtype=torch.int32, device=self.sizes.device)
        columns = torch.cat([self.neighbours.columns, every])[self._loop_order]
        starts = self.neighbours.starts + torch.arange(total + 1, dtype=torch.int32, device=every.device)
        weights = self.neighbours.values
        values = None if weights is None else torch.cat([weights, weights.new_ones(total)])[self._loop_order]
        return BlockSparse(starts, columns, None, self.clients, (self.nodes, self.nodes)).with_values(values)

    @cached_property
    def normalised(self) -> BlockSparse:
        """Returns D^-1/2 (A + I) D^-1/2 with the degrees of A + I."""
        scale = (self.degree.flatten() + 1).rsqrt()
        pattern = self.with_self_loops
        values = scale[pattern.row_of] * scale[pattern.columns]
        return pattern.with_values(values if pattern.values is None else values * pattern.values)

    def propagated_features(self, matrix: str, steps: int = 1) -> Tensor | None:
        """Returns the features after some products with a matrix of this graph, worked out once; None where that is no
        help.

        A layer is linear up to here, so it may propagate the features instead of their projection. Sparse features
        would be sparse no longer (on Cora, one step gives each node three times as many), and for a graph that does
        not last it is not worth it.
        """
        if (matrix, steps) not in self._propagated:
            self._propagated[matrix, steps] = self._propagate_features(matrix, steps)
        return self._propagated[matrix, steps]

    def _propagate_features(self, matrix: str, steps: int) -> Tensor | None:
        if self._source is not None:
            source, rows = self._source
            propagated = source.propagated_features(matrix, steps)
            return None if propagated is None else propagated[rows]
        if not self.cacheable or not isinstance(self.features, Tensor):
            return None
        propagated = self.features
        for _ in range(steps):
            propagated = getattr(self, matrix).times(propagated)
        return propagated

    def self_loops_per_head(self, heads: int) -> BlockSparse:
        """Returns A + I, once for every attention head of every client."""
        if self.base is not None:
            pattern, entries = self.base._headed(heads)
            values = self.with_self_loops.values
            assert values is not None
            headed = pattern.with_values(values[entries])
            headed.binary = not self.weighted
            return headed
        return self._headed(heads)[0]

    def _headed(self, heads: int) -> tuple[BlockSparse, Tensor | slice]:
        if heads not in self._heads:
            repeated = [client for client in range(self.clients) for _ in range(heads)]
            self._heads[heads] = self.with_self_loops.select(repeated), self.with_self_loops.entries_of(repeated)
        return self._heads[heads]

    @cached_property
    def _heads(self) -> dict[int, tuple[BlockSparse, Tensor | slice]]:
        return {}

    @cached_property
    def edge_of(self) -> tuple[Tensor, int]:
        """Returns every entry's undirected edge, counted within its client, and the most edges of a client."""
        total = self.clients * self.nodes
        rows, columns = self.neighbours.row_of, self.neighbours.columns.long()
        pairs = torch.minimum(rows, columns) * total + torch.maximum(rows, columns)
        unique, edge = torch.unique(pairs, return_inverse=True)
        owner = torch.div(unique, total * self.nodes, rounding_mode="floor")
        counts = torch.bincount(owner, minlength=self.clients)
        first = counts.cumsum(0) - counts
        return edge - first[rows // self.nodes], int(counts.max()) if len(unique) else 0

    def perturbed(self, random: Stream, edges: float, features: float) -> FleetGraph:
        """Returns a view without a share of the edges, both directions of each together, and of the feature columns."""
        edge, most = self.edge_of
        keep = random.keep(edges, 1, max(most, 1)).flatten(1)
        kept = self.keep_edges(keep[self.neighbours.row_of // self.nodes, edge])
        columns = random.keep(features, 1, self.width).flatten(1).float()
        return FleetGraph(kept, MaskedFeatures(self.features, columns), self.sizes, base=self)

    def keep_edges(self, kept: Tensor) -> BlockSparse:
        """Returns A with zeros for the entries that are not kept, bool [entries], which must be both directions of
        edges."""
        values = kept.float()
        if self.neighbours.values is not None:
            values *= self.neighbours.values
        return self.neighbours.with_values(values)

    def select_range(self, clients: range) -> FleetGraph:
        """Returns the graphs of a contiguous range of clients; made once, and of views where that is possible."""
        if len(clients) == self.clients:
            return self
        if clients not in self._ranges:
            self._ranges[clients] = self._cut(clients)
        return self._ranges[clients]

    def _cut(self, clients: range) -> FleetGraph:
        chosen = list(clients)
        if self.base is None:
            return self.select(chosen)
        base, values, masked = self.base.select_range(clients), self.neighbours.values_of(chosen), self.features
        features = MaskedFeatures(base.features, masked.columns[clients.start : clients.stop])
        return FleetGraph(base.neighbours.with_values(values), features, base.sizes, base=base)

    @cached_property
    def _ranges(self) -> dict[range, FleetGraph]:
        return {}

    @property
    def step_tensors(self) -> list[Tensor]:
        """Returns what a view does not share with the graph that it is a view of."""
        if self.base is None:
            return []
        masks = [self.features.columns] if isinstance(self.features, MaskedFeatures) else []
        return [*masks, *([] if self.neighbours.values is None else [self.neighbours.values])]

    @property
    def width(self) -> int:
        """Returns the number of features of a node."""
        return int(self.features.shape[2] if isinstance(self.features, Tensor) else self.features.width)

    def select(self, chosen: list[int]) -> FleetGraph:
        """Returns the graphs of some clients of the fleet; what was prepared for the whole fleet is cut, not made
        again."""
        rows = slice(chosen[0], chosen[-1] + 1) if contiguous(chosen) else chosen
        features = self.features[rows] if isinstance(self.features, Tensor) else self.features.select(chosen)
        picked = FleetGraph(self.neighbours.select(chosen), features, self.sizes[chosen])
        picked._source = self, rows
        if "with_self_loops" in self.__dict__:
            picked.with_self_loops = self.with_self_loops.select(chosen)
        if "normalised" in self.__dict__:  # it shares its pattern with A + I, and the mean with A
            picked.normalised = picked.with_self_loops.with_values(self.normalised.values_of(chosen))
        if "mean" in self.__dict__:
            values = (matrix.values_of(chosen) for matrix in (self.mean, self.mean.transpose))
            picked.mean = picked.neighbours.with_values(*values)
        return picked


def build_fleet_graph(graphs: Sequence[Graph], device: torch.device) -> FleetGraph:
    """Puts the graphs of some clients side by side on a device."""
    nodes = padded_size(max(graph.nodes for graph in graphs), device)
    sizes = torch.tensor([graph.nodes for graph in graphs], device=device)
    rows = np.concatenate([graph.edges[0] + client * nodes for client, graph in enumerate(graphs)])
    columns = np.concatenate([graph.edges[1] + client * nodes for client, graph in enumerate(graphs)])
    weighted = any(graph.weights is not None for graph in graphs)
    weights = np.concatenate([edge_weights(graph) for graph in graphs]) if weighted else None
    neighbours = _compressed(np.bincount(rows, minlength=len(graphs) * nodes), columns, weights, (nodes, nodes), device)
    graph = FleetGraph(neighbours.with_values(neighbours.values), _features(graphs, nodes, device), sizes)
    graph.cacheable = True
    return graph


def _features(graphs: Sequence[Graph], nodes: int, device: torch.device) -> Tensor | BlockSparse:
    width = graphs[0].features
    if isinstance(graphs[0].x, np.ndarray) and not (device.type == "cpu" and _worth_sparse(graphs)):
        dense = torch.zeros(len(graphs), nodes, width)
        for client, graph in enumerate(graphs):
            dense[client, : graph.nodes] = torch.from_numpy(graph.x)
        return dense.to(device)
    tables = [csr_array(graph.x) for graph in graphs]
    counts = np.zeros((len(graphs), nodes), dtype=np.int64)
    for client, table in enumerate(tables):
        counts[client, : table.shape[0]] = np.diff(table.indptr)
    columns = np.concatenate([table.indices.astype(np.int64) + client * width for client, table in enumerate(tables)])
    values = np.concatenate([table.data for table in tables])
    return _compressed(counts.ravel(), columns, values, (nodes, width), device)


def _worth_sparse(graphs: Sequence[Graph]) -> bool:
    """Returns whether dense features have so many zeros that sparse products are faster.

    Dense features are multiplied with the graph once, sparse ones in every pass, so its entries count too.
    """
    entries = sum(np.count_nonzero(graph.x) + graph.edges.shape[1] + graph.nodes for graph in graphs)
    return bool(entries <= SPARSE_ON_CPU * sum(graph.x.size for graph in graphs))


def _compressed(
    counts: np.ndarray, columns: np.ndarray, values: np.ndarray | None, shape: tuple[int, int], device: torch.device
) -> BlockSparse:
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return BlockSparse(
        torch.from_numpy(starts).to(device),
        torch.from_numpy(columns.astype(np.int32)).to(device),
        None if values is None else torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)).to(device),
        len(counts) // shape[0],
        shape,
    )

"""The private graphs of a fleet, laid side by side: node tensors [clients, nodes, ...] and one sparse adjacency.

A client with fewer nodes than the largest of its fleet is padded with spare nodes at its end: they have no
edges, no features and no label, and belong to no mask, so nothing that is averaged ever counts them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from graft.data.graphs import Graph
from graft.sparse import BlockSparse


class FleetGraph:
    """What models see of the data of a fleet."""

    def __init__(self, neighbours: BlockSparse, features: Tensor | BlockSparse, sizes: Tensor) -> None:
        self.neighbours = neighbours  # A: both directions, no self-loops
        self.features = features  # dense [clients, nodes, features] or block-diagonal; either way `features @ weights`
        self.sizes = sizes  # int64 [clients], without the spare nodes

    @property
    def clients(self) -> int:
        return self.neighbours.blocks

    @property
    def nodes(self) -> int:
        return self.neighbours.rows

    @cached_property
    def real(self) -> Tensor:
        """Which nodes are not spare, [clients, nodes]."""
        return torch.arange(self.nodes, device=self.sizes.device) < self.sizes[:, None]

    @cached_property
    def degree(self) -> Tensor:
        """Neighbours of every node, [clients, nodes]."""
        return self.neighbours.starts.diff().view(self.clients, self.nodes).float()

    @cached_property
    def mean(self) -> BlockSparse:
        """D^-1 A: the mean over neighbours, zero for a node without any."""
        inverse = self.degree.flatten().clamp(min=1).reciprocal()
        pattern = self.neighbours
        return pattern.with_values(inverse[pattern.row_of], inverse[pattern.columns])

    @cached_property
    def looped(self) -> BlockSparse:
        """The pattern of A + I."""
        total = self.clients * self.nodes
        every = torch.arange(total, device=self.sizes.device)
        rows = torch.cat([self.neighbours.row_of, every])
        columns = torch.cat([self.neighbours.columns.long(), every])
        order = torch.argsort(rows * total + columns)
        starts = self.neighbours.starts + torch.arange(total + 1, dtype=torch.int32, device=every.device)
        shape = (self.nodes, self.nodes)
        return BlockSparse(starts, columns[order].to(torch.int32), None, self.clients, shape).with_values(None)

    @cached_property
    def normalised(self) -> BlockSparse:
        """D^-1/2 (A + I) D^-1/2 with the degrees of A + I."""
        scale = (self.degree.flatten() + 1).rsqrt()
        pattern = self.looped
        return pattern.with_values(scale[pattern.row_of] * scale[pattern.columns])

    def with_loops(self, heads: int) -> BlockSparse:
        """The pattern of A + I, once for every attention head of every client."""
        if heads not in self._heads:
            self._heads[heads] = self.looped.select([client for client in range(self.clients) for _ in range(heads)])
        return self._heads[heads]

    @cached_property
    def _heads(self) -> dict[int, BlockSparse]:
        return {}

    def select(self, chosen: list[int]) -> FleetGraph:
        """The graphs of some clients of the fleet; what was prepared for the whole fleet is cut, not made again."""
        features = self.features[chosen] if isinstance(self.features, Tensor) else self.features.select(chosen)
        picked = FleetGraph(self.neighbours.select(chosen), features, self.sizes[chosen])
        for prepared in ("looped", "normalised", "mean"):
            if prepared in self.__dict__:
                picked.__dict__[prepared] = getattr(self, prepared).select(chosen)
        return picked


def lay_out(graphs: Sequence[Graph], device: torch.device) -> FleetGraph:
    """Put the graphs of some clients side by side on a device."""
    nodes = max(graph.nodes for graph in graphs)
    sizes = torch.tensor([graph.nodes for graph in graphs], device=device)
    rows = np.concatenate([graph.edges[0] + client * nodes for client, graph in enumerate(graphs)])
    columns = np.concatenate([graph.edges[1] + client * nodes for client, graph in enumerate(graphs)])
    neighbours = _compressed(np.bincount(rows, minlength=len(graphs) * nodes), columns, None, (nodes, nodes), device)
    return FleetGraph(neighbours.with_values(None), _features(graphs, nodes, device), sizes)


def _features(graphs: Sequence[Graph], nodes: int, device: torch.device) -> Tensor | BlockSparse:
    width = graphs[0].features
    if isinstance(graphs[0].x, np.ndarray):
        dense = torch.zeros(len(graphs), nodes, width)
        for client, graph in enumerate(graphs):
            dense[client, : graph.nodes] = torch.from_numpy(graph.x)
        return dense.to(device)
    counts = np.zeros((len(graphs), nodes), dtype=np.int64)
    for client, graph in enumerate(graphs):
        counts[client, : graph.nodes] = np.diff(graph.x.indptr)
    columns = np.concatenate([graph.x.indices.astype(np.int64) + client * width for client, graph in enumerate(graphs)])
    values = np.concatenate([graph.x.data for graph in graphs])
    return _compressed(counts.ravel(), columns, values, (nodes, width), device)


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

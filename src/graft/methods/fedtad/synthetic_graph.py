"""A small synthetic graph, given by a dense adjacency, that all models of a stack see."""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from graft.graphs.fleet_graph import FleetGraph
from graft.models.architecture import Model
from graft.tensors.randomness import Stream
from graft.tensors.sparse import BlockSparse
from graft.tensors.trees import Weights, flatten, select_clients

Similarity = Literal["dot", "cosine"]


class SharedMatrix(BlockSparse):
    """One dense matrix that every model of a stack multiplies with.

    Few nodes make a dense product the fastest, and its shapes do not depend on the edges, so nothing is read back. To
    what needs a pattern, such as attention, it is a complete one with zeros for the edges that are not there.
    """

    def __init__(self, matrix: Tensor, models: int, *, symmetric: bool = True) -> None:
        pattern = complete(models, len(matrix), matrix.device)
        shape = (pattern.rows, pattern.width)
        super().__init__(pattern.starts, pattern.columns, matrix.flatten().repeat(models), models, shape)
        self._pattern = pattern
        self.symmetric = symmetric
        self.matrix = matrix

    def times(self, dense: Tensor) -> Tensor:
        return self.matrix @ dense

    def __matmul__(self, dense: Tensor) -> Tensor:
        return self.matrix @ dense


@lru_cache(maxsize=16)
def complete(blocks: int, nodes: int, device: torch.device) -> BlockSparse:
    """Returns the sparsity pattern of blocks of complete graphs with self-loops."""
    rows = blocks * nodes
    starts = torch.arange(rows + 1, dtype=torch.int32, device=device) * nodes
    first = torch.arange(blocks, dtype=torch.int32, device=device).repeat_interleave(nodes) * nodes
    columns = first[:, None] + torch.arange(nodes, dtype=torch.int32, device=device)
    return BlockSparse(starts, columns.flatten(), None, blocks, (nodes, nodes))


class PseudoGraph(FleetGraph):
    """A graph of few nodes given by a dense adjacency, the same for all models of a stack."""

    def __init__(self, adjacency: Tensor, features: Tensor, models: int = 1) -> None:
        sizes = torch.full((models,), len(adjacency), device=adjacency.device)
        super().__init__(SharedMatrix(adjacency, models), features.unsqueeze(0), sizes)
        self.adjacency = adjacency  # [nodes, nodes], symmetric, zero on the diagonal

    def for_models(self, models: int) -> PseudoGraph:
        return PseudoGraph(self.adjacency, self.features[0], models)

    @cached_property
    def degree(self) -> Tensor:
        return self.adjacency.sum(1).expand(self.clients, -1)

    @cached_property
    def mean(self) -> BlockSparse:
        return SharedMatrix(self.adjacency / self.degree[0].clamp(min=1)[:, None], self.clients, symmetric=False)

    @cached_property
    def _with_loops(self) -> Tensor:
        return self.adjacency + torch.eye(self.nodes, device=self.adjacency.device)

    @cached_property
    def with_self_loops(self) -> BlockSparse:
        return SharedMatrix(self._with_loops, self.clients)

    @cached_property
    def normalised(self) -> BlockSparse:
        scale = (self.degree[0] + 1).rsqrt()
        return SharedMatrix(scale[:, None] * self._with_loops * scale, self.clients)

    def self_loops_per_head(self, heads: int) -> BlockSparse:
        pattern = SharedMatrix(self._with_loops, self.clients * heads)
        pattern.binary = True
        return pattern


def nearest(features: Tensor, count: int, by: Similarity) -> Tensor:
    """For every node the nodes it is most similar to, itself among them where it is: [nodes, nodes] of 0 and 1, with
    `count` ones a row.

    The selection is hard: no gradient flows through it.
    """
    points = functional.normalize(features.detach(), dim=1, eps=1e-12) if by == "cosine" else features.detach()
    chosen = (points @ points.T).topk(count, dim=1).indices
    return torch.zeros(len(features), len(features), device=features.device).scatter_(1, chosen, 1.0)


def neighbour_graph(features: Tensor, count: int, by: Similarity) -> PseudoGraph:
    """Returns nodes joined to those that are nearest to them, in both directions; models add self-loops themselves."""
    chosen = nearest(features, count, by)
    return PseudoGraph(torch.maximum(chosen, chosen.T).fill_diagonal_(0), features)


def stacked_logits(model: Model, weights: Weights, graph: FleetGraph, random: Stream | None = None) -> Tensor:
    """Returns the logits of every model of a stack on one graph, [models, nodes, classes]; a random stream means
    dropout."""
    models = len(next(leaf for _, leaf in flatten(weights)))
    if model.stackable:
        return model(weights, shared_by(graph, models), random).logits
    single = shared_by(graph, 1)
    streams = [None] * models if random is None else [Stream(key) for key in random.bits(1)]
    rows = torch.arange(models, device=graph.sizes.device).unbind()
    outputs = [model(select_clients(weights, row[None]), single, own) for row, own in zip(rows, streams, strict=True)]
    return torch.cat([output.logits for output in outputs])


def shared_by(graph: FleetGraph, models: int) -> FleetGraph:
    """Returns a single graph, repeated for so many models."""
    if graph.clients == models:
        return graph
    return graph.for_models(models) if isinstance(graph, PseudoGraph) else graph.select([0] * models)

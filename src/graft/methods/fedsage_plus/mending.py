"""Graphs mended with generated neighbours."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from graft.graphs.fleet_graph import FleetGraph
from graft.graphs.node_subset import gather_nodes
from graft.tensors.sparse import BlockSparse


class MendedFeatures:
    """Given features, dense or sparse, and those of each client's generated nodes, which follow its own."""

    def __init__(self, given: Tensor | BlockSparse, generated: Tensor, order: Tensor) -> None:
        self.given = given  # [clients, nodes, features]
        self.generated = generated  # [clients, most generated, features]
        self.order = order  # int64 [clients, all nodes]: rows of the given, the generated and one row of padding
        self.width = generated.shape[2]

    def __matmul__(self, weight: Tensor) -> Tensor:
        padding = weight.new_zeros(len(weight), 1, weight.shape[2])
        return gather_nodes(torch.cat([self.given @ weight, self.generated @ weight, padding], dim=1), self.order)


def mend_graph(graph: FleetGraph, parts: Sequence[tuple[Tensor, Tensor]]) -> FleetGraph:
    """Returns the graphs with every client's (owners, features) added; their `sizes` and `real` are still those of the
    real nodes."""
    neighbours = add_neighbours(graph, [owners for owners, _ in parts])
    most = max(len(owners) for owners, _ in parts)
    generated = torch.zeros(graph.clients, most, graph.width, device=graph.sizes.device)
    order = torch.full((graph.clients, neighbours.rows), graph.nodes + most, device=generated.device)
    for client, size in enumerate(graph.sizes.tolist()):
        count = len(parts[client][0])
        generated[client, :count] = parts[client][1]
        order[client, :size] = torch.arange(size)
        order[client, size : size + count] = torch.arange(graph.nodes, graph.nodes + count)
    return FleetGraph(neighbours, MendedFeatures(graph.features, generated, order), graph.sizes)


def add_neighbours(graph: FleetGraph, owners: Sequence[Tensor]) -> BlockSparse:
    """Returns A with a new node, joined in both directions, for every entry of each client's owners; new nodes follow
    the client's real ones. Where edges have weights, a new one has the mean weight of the client's."""
    sizes = graph.sizes.tolist()
    nodes = max(size + len(own) for size, own in zip(sizes, owners, strict=True))
    rows, columns, weights = graph.neighbours.row_of, graph.neighbours.columns.long(), graph.neighbours.values
    if weights is not None:
        rows, columns, weights = rows[weights > 0], columns[weights > 0], weights[weights > 0]
    added = [] if weights is None or not graph.weighted else mean_weights(rows // graph.nodes, weights, owners)
    shift = torch.div(rows, graph.nodes, rounding_mode="floor") * (nodes - graph.nodes)
    entries = [(rows + shift, columns + shift)]
    for client, own in enumerate(owners):
        new = torch.arange(len(own), device=rows.device) + sizes[client] + client * nodes
        entries += [(own + client * nodes, new), (new, own + client * nodes)]
    rows, columns = (torch.cat(part) for part in zip(*entries, strict=True))
    total = graph.clients * nodes
    order = (rows * total + columns).argsort()
    starts = functional.pad(torch.bincount(rows, minlength=total).cumsum(0), (1, 0))
    pattern = BlockSparse(starts.to(torch.int32), columns[order].to(torch.int32), None, graph.clients, (nodes, nodes))
    return pattern.with_values(torch.cat([weights, *added])[order] if weights is not None and added else None)


def mean_weights(client: Tensor, weights: Tensor, owners: Sequence[Tensor]) -> list[Tensor]:
    """Returns the weights of both directions of every client's new edges, from the client and weight of its others; 1
    without any."""
    sums, counts = (torch.bincount(client, values, len(owners)) for values in (weights, None))
    means = torch.where(counts > 0, sums / counts.clamp(min=1), 1).to(weights)
    return [means[index].expand(2 * len(own)) for index, own in enumerate(owners)]


def offset_nodes(parts: Sequence[Tensor]) -> Tensor:
    """Node numbers of several clients in one tensor, offset so that no number means two nodes."""
    counts = [int(part.max()) + 1 if len(part) else 0 for part in parts]
    return torch.cat([part + sum(counts[:index]) for index, part in enumerate(parts)])

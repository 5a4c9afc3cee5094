"""Clustering of edges into latent types, by the projections of their two nodes.

Weights of edges enter the channels, not the clusters: how strong an edge is does not say of which type it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from graft.graphs.fleet_graph import FleetGraph

if TYPE_CHECKING:
    from graft.tensors.randomness import Stream


def type_views(graph: FleetGraph, types: Tensor, count: int) -> list[FleetGraph]:
    """Returns the graph split by the type of its edges; every edge is in exactly one view."""
    return [
        FleetGraph(graph.keep_edges(types == index), graph.features, graph.sizes, base=graph) for index in range(count)
    ]


def edge_nodes(graph: FleetGraph) -> tuple[Tensor, Tensor]:
    """Returns the two nodes of every entry of A, the one with the lower number first, so that both directions agree."""
    rows, columns = graph.neighbours.row_of, graph.neighbours.columns.long()
    return torch.minimum(rows, columns), torch.maximum(rows, columns)


def nearest_types(graph: FleetGraph, nodes: Tensor, centroids: Tensor) -> Tensor:
    """Returns the centroid of the highest cosine for every entry of A; the first of several."""
    lower, upper = edge_nodes(graph)
    # The inner product is a sum over the two nodes, and the norm of an edge does not change which one is highest.
    first, second = functional.normalize(centroids, dim=2).chunk(2, dim=2)
    scores = [(nodes @ half.mT).flatten(0, 1)[end] for half, end in ((first, lower), (second, upper))]
    return (scores[0] + scores[1]).argmax(1)


def type_means(graph: FleetGraph, nodes: Tensor, types: Tensor, before: Tensor) -> Tensor:
    """Returns the mean edge of each type, [clients, types, 2 * width]; a type without edges stays as it was before."""
    count = before.shape[1]
    sums = []
    for end in edge_nodes(graph):
        incidence = nodes.new_zeros(nodes.shape[0] * nodes.shape[1] * count)
        incidence.index_add_(0, end * count + types, torch.ones_like(types, dtype=nodes.dtype))
        incidence = incidence.view(*nodes.shape[:2], count)
        sums.append(incidence.mT @ nodes)
    sizes = incidence.sum(1).unsqueeze(2)
    return torch.where(sizes > 0, torch.cat(sums, dim=2) / sizes.clamp(min=1), before)


def initial_centroids(graph: FleetGraph, nodes: Tensor, random: Stream, count: int) -> Tensor:
    """Returns one iteration of k-means over each client's edges, begun as k-means++ (Arthur and Vassilvitskii, SODA
    2007); zeros for a client without edges."""
    clients, entries = graph.clients, graph.neighbours.entries
    centroids = nodes.new_zeros(clients, count, 2 * nodes.shape[2])
    if entries == 0:
        return centroids
    lower, upper = edge_nodes(graph)
    owner = torch.div(lower, graph.nodes, rounding_mode="floor")
    begin = graph.neighbours.starts[:: graph.nodes].long()
    position = torch.arange(entries, device=nodes.device)
    distances: list[Tensor] = []
    for index in range(count):
        nearest = torch.stack(distances).amin(0) if distances else torch.ones_like(lower, dtype=nodes.dtype)
        draws = random.uniform(int(begin.diff().max()))[owner, position - begin[owner]]
        picked = argmin_by_client(-draws.log() / nearest, owner, clients)
        edges = torch.cat([nodes.flatten(0, 1)[end[picked]] for end in (lower, upper)], dim=1)
        centroids[:, index] = edges * (begin.diff() > 0).unsqueeze(1)
        distances.append(squared_distances(nodes, centroids[:, index], (lower, upper)))
    return type_means(graph, nodes, torch.stack(distances).argmin(0), centroids)


def squared_distances(nodes: Tensor, centroids: Tensor, ends: tuple[Tensor, Tensor]) -> Tensor:
    """Returns the squared distance of every entry of A to one centroid of its client."""
    halves = centroids.unsqueeze(1).chunk(2, dim=2)
    parts = [(nodes - half).square().sum(2).flatten()[end] for half, end in zip(halves, ends, strict=True)]
    return parts[0] + parts[1]


def argmin_by_client(values: Tensor, owner: Tensor, clients: int) -> Tensor:
    """Returns the index of each client's lowest value, the first of several; of a client without values, any index."""
    least = values.new_full((clients,), float("inf")).scatter_reduce(0, owner, values, "amin")
    indices = torch.arange(len(values), device=values.device)
    indices = torch.where(values == least[owner], indices, len(values) - 1)
    return indices.new_full((clients,), len(values) - 1).scatter_reduce(0, owner, indices, "amin")

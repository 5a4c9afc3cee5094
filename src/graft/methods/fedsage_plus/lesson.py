"""What a generator of neighbours learns from: a client's graph without some of its validation nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from graft.graphs.fleet_graph import FleetGraph
from graft.tensors.randomness import Stream

if TYPE_CHECKING:
    from graft.federation.fleet import Fleet


class Lesson(NamedTuple):
    """What one client's generator learns from."""

    graph: FleetGraph  # without the edges of hidden nodes
    visible: Tensor  # bool [1, nodes]: neither padding nor hidden
    missing: Tensor  # [1, nodes]: how many of a node's neighbours are hidden
    targets: Tensor  # int64 [nodes, slots]: some of those
    valid: Tensor  # bool [nodes, slots]: which targets exist
    features: Tensor  # [nodes, features]


def make_lesson(fleet: Fleet, share: float, slots: int) -> Lesson:
    """Returns the lesson of a single client that hides a share of its validation nodes."""
    graph = fleet.graph
    hidden = hidden_nodes(fleet, share)
    visible = graph.real & ~hidden
    missing = (graph.links @ hidden.float().unsqueeze(2)).squeeze(2) * visible
    targets, valid = neighbours_among(graph, hidden[0], slots)
    return Lesson(without_edges_of(graph, hidden), visible, missing, targets, valid, dense_features(graph)[0])


def hidden_nodes(fleet: Fleet, share: float) -> Tensor:
    """Returns the validation nodes that a generator does not see, [clients, nodes]."""
    validation = fleet.labels.masks[:, 1]
    draws = Stream(fleet.state.seeds[:, 0]).uniform(fleet.graph.nodes).masked_fill(~validation, 2.0)
    rank = draws.argsort(1).argsort(1)
    return validation & (rank < (share * validation.sum(1, keepdim=True)).long())


def without_edges_of(graph: FleetGraph, hidden: Tensor) -> FleetGraph:
    """Returns the view without the edges of some nodes."""
    flat, pattern = hidden.flatten(), graph.neighbours
    kept = ~(flat[pattern.row_of] | flat[pattern.columns])
    return FleetGraph(graph.keep_edges(kept), graph.features, graph.sizes, base=graph)


def neighbours_among(graph: FleetGraph, selected: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """For every node of one client the first of its neighbours that are selected, [nodes, most], and which exist."""
    rows, columns = graph.neighbours.row_of, graph.neighbours.columns.long()
    rows, columns = rows[selected[columns]], columns[selected[columns]]
    first = torch.searchsorted(rows, rows)  # entries are sorted by row
    slot = torch.arange(len(rows), device=rows.device) - first
    rows, columns, slot = (part[slot < most] for part in (rows, columns, slot))
    neighbours = torch.full((graph.nodes, most), -1, device=selected.device)
    neighbours[rows, slot] = columns
    return neighbours.clamp(min=0), neighbours >= 0


def nearest_features(generated: Tensor, features: Tensor, candidates: Tensor, valid: Tensor) -> Tensor:
    """For every generated row the features of the nearest of its candidate nodes; at least one must be valid."""
    with torch.no_grad():
        # No tensor of rows by candidates by features.
        gaps = [(features[column] - generated).square().sum(1) for column in candidates.unbind(1)]
        best = torch.stack(gaps, dim=1).masked_fill(~valid, float("inf")).argmin(1, keepdim=True)
        return features[candidates.gather(1, best)[:, 0]]


def dense_features(graph: FleetGraph) -> Tensor:
    return graph.features if isinstance(graph.features, Tensor) else graph.features.dense()

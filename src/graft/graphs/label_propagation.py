"""Label propagation without weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from graft.graphs.fleet_graph import FleetGraph


def propagate_labels(graph: FleetGraph, start: Tensor, anchored: Tensor, steps: int, share: float) -> Tensor:
    """Returns labels [clients, nodes, classes] after some steps, each a mix of the neighbours, with this share, and of
    the start; it adds what anchored nodes, bool [clients, nodes], began with once more."""
    anchors = start * anchored.unsqueeze(2)
    labels = start
    for _ in range(steps):
        neighbours = graph.normalised @ labels
        labels = share * neighbours + (1 - share) * start + anchors
    return labels

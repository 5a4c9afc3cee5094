"""Topology adaptive graph convolution (Du, Zhang, Wu, Moura and Kar, 2017), as one layer without activation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from graft.graphs.fleet_graph import FleetGraph
from graft.graphs.node_subset import NodeSubset
from graft.models.architecture import add_bias, project, project_subset, propagate, start_linear
from graft.models.sgc import SGC
from graft.tensors.trees import Tree, Weights


@dataclass(frozen=True)
class TAG(SGC):
    """A node's features, and those after each of 1 to `depth` steps of propagation, have a linear map of their own; the
    embedding is their sum, without activation.

    SGC has the last of these maps alone. What is linear in its weights loses little when it is averaged, and a map of
    the node itself serves graphs whose neighbours differ in class.
    """

    kind: ClassVar[str] = "tag"

    def start(self, generator: torch.Generator) -> Tree:
        layer = start_hops(self.features, self.width, self.hidden, generator)
        if self.head == "linear":
            return Tree(layer0=layer, head=start_linear(self.width, self.classes, generator))
        return Tree(layer0=layer, head=start_hops(self.width, self.classes, 1, generator))

    def first_layer(self, weights: Weights, graph: FleetGraph | NodeSubset) -> Tensor:
        return add_bias(sum_of_hops(weights["layer0"], graph, graph.features, self.hidden), weights["layer0"])

    def layer(self, weights: Weights, graph: FleetGraph | NodeSubset, hidden: Tensor) -> Tensor:
        """Applies the convolutional head: maps of the embedding and of one more step of propagation."""
        return add_bias(sum_of_hops(weights, graph, hidden, 1), weights)


def start_hops(inputs: int, outputs: int, steps: int, generator: torch.Generator) -> Tree:
    """Returns a weight matrix for each number of steps, from 0 on, and a bias."""
    maps = [start_linear(inputs, outputs, generator) for _ in range(steps + 1)]
    return Tree({f"hop{step}": linear.weight for step, linear in enumerate(maps)}, bias=maps[0].bias)


def sum_of_hops(weights: Weights, graph: FleetGraph | NodeSubset, hidden: Any, steps: int) -> Tensor:
    """Returns the sum over 0 to `steps` steps of propagation of what each has by its own matrix."""
    own = project_subset(graph, hidden, weights["hop0"])
    if steps == 0:
        return own
    if hidden is graph.features and graph.propagated_features("normalised", steps) is not None:
        return own + sum(
            propagate(graph, "normalised", hidden, weights[f"hop{step}"], steps=step) for step in range(1, steps + 1)
        )
    # Projected first, all hops but the last share their steps of propagation.
    whole = graph.graph if isinstance(graph, NodeSubset) else graph
    total = project(hidden, weights[f"hop{steps}"])
    for step in range(steps - 1, 0, -1):
        total = whole.normalised @ total + project(hidden, weights[f"hop{step}"])
    return graph.normalised @ total + own

"""Graph isomorphism network (Xu et al., ICLR 2019), for nodes: no pooling, epsilon fixed at 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from graft.graph import FleetGraph
from graft.models.architecture import LayeredModel, linear, project, shifted, start_linear
from graft.weights import Tree, Weights


@dataclass(frozen=True)
class GIN(LayeredModel):
    """Each layer adds a node and its neighbours and passes the sum through a two-layer perceptron."""

    kind: ClassVar[str] = "gin"

    def start_layer(self, inputs: int, outputs: int, generator: torch.Generator) -> Tree:
        return Tree(
            first=start_linear(inputs, self.width, generator), second=start_linear(self.width, outputs, generator)
        )

    def layer(self, weights: Weights, graph: FleetGraph, hidden: Any) -> Tensor:
        projected = project(hidden, weights["first"]["weight"])
        summed = projected + graph.neighbours @ projected
        return linear(torch.relu(shifted(summed, weights["first"])), weights["second"])

"""Multilayer perceptron: the baseline that ignores the graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from graft.graphs.fleet_graph import FleetGraph
from graft.graphs.node_subset import NodeSubset
from graft.models.architecture import LayeredModel, add_bias, project_subset, start_linear
from graft.tensors.trees import Tree, Weights


@dataclass(frozen=True)
class MLP(LayeredModel):
    """Linear layers over each node's own features."""

    kind: ClassVar[str] = "mlp"

    def start_layer(self, inputs: int, outputs: int, generator: torch.Generator) -> Tree:
        return start_linear(inputs, outputs, generator)

    def layer(self, weights: Weights, graph: FleetGraph | NodeSubset, hidden: Any) -> Tensor:
        return add_bias(project_subset(graph, hidden, weights["weight"]), weights)

"""GraphSAGE with the mean aggregator (Hamilton, Ying and Leskovec, NeurIPS 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from graft.graphs.fleet_graph import FleetGraph
from graft.graphs.node_subset import NodeSubset
from graft.models.architecture import LayeredModel, add_bias, project_subset, propagate, start_linear
from graft.tensors.trees import Tree, Weights


@dataclass(frozen=True)
class SAGE(LayeredModel):
    """Each layer adds linear maps of the node and of the mean of its neighbours."""

    kind: ClassVar[str] = "sage"

    def start_layer(self, inputs: int, outputs: int, generator: torch.Generator) -> Tree:
        neighbours = start_linear(inputs, outputs, generator)
        own = start_linear(inputs, outputs, generator)
        return Tree(neighbours=neighbours.weight, own=own.weight, bias=neighbours.bias)

    def layer(self, weights: Weights, graph: FleetGraph | NodeSubset, hidden: Any) -> Tensor:
        neighbours = propagate(graph, "mean", hidden, weights["neighbours"])
        return add_bias(neighbours + project_subset(graph, hidden, weights["own"]), weights)

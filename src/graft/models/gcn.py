"""Graph convolutional network (Kipf and Welling, ICLR 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from graft.graphs.fleet_graph import FleetGraph
from graft.graphs.node_subset import NodeSubset
from graft.models.architecture import LayeredModel, add_bias, glorot, propagate
from graft.tensors.trees import Tree, Weights


@dataclass(frozen=True)
class GCN(LayeredModel):
    """Each layer averages over neighbours and the node itself, normalised by both degrees."""

    kind: ClassVar[str] = "gcn"

    def start_layer(self, inputs: int, outputs: int, generator: torch.Generator) -> Tree:
        return Tree(weight=glorot(inputs, outputs, generator), bias=torch.zeros(outputs))

    def layer(self, weights: Weights, graph: FleetGraph | NodeSubset, hidden: Any) -> Tensor:
        return add_bias(propagate(graph, "normalised", hidden, weights["weight"]), weights)

"""Graph isomorphism network (Xu et al., ICLR 2019), for nodes: no pooling, epsilon fixed at 0.

A sum over neighbours grows with the degree. Without normalisation the network was seen to fall to the majority
class on graphs such as Photo (mean degree 31), alone or in a federation. The paper's perceptron has batch
normalisation; layer normalisation does the same service without statistics that would have to travel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from graft.graphs.fleet_graph import FleetGraph
from graft.graphs.node_subset import NodeSubset
from graft.models.architecture import LayeredModel, add_bias, linear, propagate, start_linear
from graft.tensors.trees import Tree, Weights


@dataclass(frozen=True)
class GIN(LayeredModel):
    """Each layer sums a node and its neighbours and passes the sum through a two-layer perceptron."""

    normalise: bool = True  # layer normalisation inside the perceptron

    kind: ClassVar[str] = "gin"

    @property
    def normalisation(self) -> frozenset[str]:  # type: ignore[override]
        layers = [f"layer{index}" for index in range(self.hidden)] + (["head"] if self.head == "conv" else [])
        return frozenset(f"{layer}/{part}" for layer in layers for part in ("scale", "shift") if self.normalise)

    def start_layer(self, inputs: int, outputs: int, generator: torch.Generator) -> Tree:
        first, second = start_linear(inputs, self.width, generator), start_linear(self.width, outputs, generator)
        if self.normalise:
            return Tree(first=first, scale=torch.ones(self.width), shift=torch.zeros(self.width), second=second)
        return Tree(first=first, second=second)

    def layer(self, weights: Weights, graph: FleetGraph | NodeSubset, hidden: Any) -> Tensor:
        inner = add_bias(propagate(graph, "with_self_loops", hidden, weights["first"]["weight"]), weights["first"])
        if self.normalise:
            inner = functional.layer_norm(inner, inner.shape[2:])
            inner = inner * weights["scale"].unsqueeze(1) + weights["shift"].unsqueeze(1)
        return linear(torch.relu(inner), weights["second"])


@dataclass(frozen=True)
class PlainGIN(GIN):
    """GIN without any normalisation, which is what is seen to fall to the majority class."""

    normalise: bool = False

    kind: ClassVar[str] = "gin_plain"

"""Simplified graph convolution (Wu et al., ICML 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from graft.graphs.fleet_graph import FleetGraph
from graft.graphs.node_subset import NodeSubset
from graft.models.architecture import LayeredModel, add_bias, linear, propagate, start_linear
from graft.tensors.randomness import Stream
from graft.tensors.trees import Tree, Weights


@dataclass(frozen=True)
class SGC(LayeredModel):
    """`depth` steps of propagation and one linear map to the embedding, which has no activation."""

    kind: ClassVar[str] = "sgc"

    def start(self, generator: torch.Generator) -> Tree:
        return Tree(
            layer0=start_linear(self.features, self.width, generator),
            head=start_linear(self.width, self.classes, generator),
        )

    def first_layer(self, weights: Weights, graph: FleetGraph | NodeSubset) -> Tensor:
        first = weights["layer0"]
        return add_bias(propagate(graph, "normalised", graph.features, first["weight"], steps=self.hidden), first)

    @property
    def single_layer(self) -> bool:
        return self.head == "linear"

    def embed(
        self,
        weights: Weights,  # noqa: ARG002
        graph: FleetGraph,  # noqa: ARG002
        first: Tensor,
        random: Stream | None,  # noqa: ARG002
        rows: NodeSubset | None = None,  # noqa: ARG002
    ) -> Tensor:
        return first

    def layer(self, weights: Weights, graph: FleetGraph | NodeSubset, hidden: Tensor) -> Tensor:
        """Applies the convolutional head: the last step of propagation, then the classifier."""
        return linear(graph.normalised @ hidden, weights)

    def start_layer(self, inputs: int, outputs: int, generator: torch.Generator) -> Tree:
        return start_linear(inputs, outputs, generator)

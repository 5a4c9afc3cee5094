"""Multilayer perceptron: the reference that ignores the graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from graft.graph import FleetGraph
from graft.models.architecture import LayeredModel, linear, start_linear
from graft.weights import Tree, Weights


@dataclass(frozen=True)
class MLP(LayeredModel):
    """Linear layers over each node's own features."""

    kind: ClassVar[str] = "mlp"

    def start_layer(self, inputs: int, outputs: int, generator: torch.Generator) -> Tree:
        return start_linear(inputs, outputs, generator)

    def layer(self, weights: Weights, graph: FleetGraph, hidden: Any) -> Tensor:  # noqa: ARG002
        return linear(hidden, weights)

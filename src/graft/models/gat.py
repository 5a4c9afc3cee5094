"""Graph attention network (Velickovic et al., ICLR 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from graft.graphs.fleet_graph import FleetGraph
from graft.graphs.node_subset import NodeSubset
from graft.models.architecture import LayeredModel, add_bias, glorot, project
from graft.tensors.sparse import MANY_NODES, attention
from graft.tensors.trees import Tree, Weights


@dataclass(frozen=True)
class GAT(LayeredModel):
    """Each layer averages neighbours and the node itself by attention; heads are concatenated."""

    heads: int = 4  # the width is divided among them; a convolutional head has a single one

    kind: ClassVar[str] = "gat"
    supports_rows: ClassVar[bool] = False  # every edge is weighed with its counterpart, so both must be there

    def start_layer(self, inputs: int, outputs: int, generator: torch.Generator) -> Tree:
        return self.start_attention(inputs, outputs, self.heads, generator)

    def start_head(self, inputs: int, generator: torch.Generator) -> Tree:
        return self.start_attention(inputs, self.classes, 1, generator)

    def start_attention(self, inputs: int, outputs: int, heads: int, generator: torch.Generator) -> Tree:
        return Tree(
            weight=glorot(inputs, outputs, generator),
            target=glorot(heads, outputs // heads, generator),
            source=glorot(heads, outputs // heads, generator),
            bias=torch.zeros(outputs),
        )

    def layer(self, weights: Weights, graph: FleetGraph | NodeSubset, hidden: Any) -> Tensor:
        assert isinstance(graph, FleetGraph)
        projected = project(hidden, weights["weight"])
        clients, nodes, width = projected.shape
        heads = weights["target"].shape[1]
        # Heads are laid out like further clients: [clients * heads, nodes, width of a head].
        values = projected.view(clients, nodes, heads, -1).transpose(1, 2).flatten(0, 1)
        vectors = torch.stack([weights["target"], weights["source"]], dim=2).flatten(0, 1)
        if values.is_cuda and nodes >= MANY_NODES:  # for which the product below was seen to take very long
            target, source = ((values * vectors[:, index, None]).sum(2) for index in range(2))
        else:
            target, source = (vectors @ values.mT).unbind(1)
        attended = attention(graph.self_loops_per_head(heads), target, source, values, slope=0.2)
        merged = attended.view(clients, heads, nodes, -1).transpose(1, 2).reshape(clients, nodes, width)
        return add_bias(merged, weights)

"""The network of FedLIT: a channel of graph convolutions for every latent type of edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from graft.methods.fedlit.edge_types import nearest_types, type_means, type_views
from graft.models.architecture import LayeredModel, Output, add_bias, glorot, linear, project, start_linear
from graft.tensors.trees import Tree, Weights, map_tree, stack

if TYPE_CHECKING:
    from graft.graphs.fleet_graph import FleetGraph
    from graft.tensors.randomness import Stream
    from graft.tensors.sparse import BlockSparse


@dataclass(frozen=True)
class Channels(LayeredModel):
    """A projection of the features, a channel of `depth` graph convolutions for every type of edges, and a head on
    the sum of the channels.

    The similarity of an edge and a centroid is the cosine between the centroid and the projections of the edge's two
    nodes, side by side in the order of their numbers. Centroids are not trained; in training mode they move to the
    means of their edges.
    """

    types: int = 2
    em_iterations: int = 1
    self_loops: bool = False

    kind: ClassVar[str] = "channels"
    frozen = frozenset({"centroids"})

    def start(self, generator: torch.Generator) -> Tree:
        def channel() -> Tree:
            weights = Tree(inner=start_linear(self.width, self.width, generator))
            for index in range(self.depth):
                weight = glorot(self.width, self.width, generator)
                weights[f"layer{index}"] = Tree(weight=weight, bias=torch.zeros(self.width))
            return weights

        return Tree(
            projection=start_linear(self.features, self.width, generator),
            channels=stack([channel() for _ in range(self.types)]),
            head=start_linear(self.width, self.classes, generator),
            centroids=torch.zeros(self.types, 2 * self.width),
        )

    def __call__(self, weights: Weights, graph: FleetGraph, random: Stream | None = None) -> Output:
        nodes = linear(graph.features, weights["projection"])
        types = self.cluster(weights["centroids"], graph, nodes.detach(), training=random is not None)
        embedding = torch.zeros_like(nodes)
        for index, view in enumerate(type_views(graph, types, self.types)):
            channel = map_tree(lambda leaf, index=index: leaf[:, index], weights["channels"])
            embedding = embedding + self.forward_channel(channel, view, nodes, random)
        return Output(embedding, linear(embedding, weights["head"]))

    @torch.no_grad()
    def cluster(self, centroids: Tensor, graph: FleetGraph, nodes: Tensor, *, training: bool) -> Tensor:
        """Returns the type of every entry of A; in training mode the centroids are updated in place, as running means
        are."""
        types = nearest_types(graph, nodes, centroids)
        for iteration in range(self.em_iterations if training else 0):
            if iteration:
                types = nearest_types(graph, nodes, centroids)
            centroids.copy_(type_means(graph, nodes, types, centroids))
        return types

    def forward_channel(self, channel: Weights, view: FleetGraph, nodes: Tensor, random: Stream | None) -> Tensor:
        """Returns the embeddings by one channel of the nodes that have an edge of its type, and zero for all others."""
        adjacency = view.normalised if self.self_loops else normalise_without_loops(view)
        hidden = linear(nodes, channel["inner"])
        for index in range(self.depth):
            layer = channel[f"layer{index}"]
            hidden = torch.relu(add_bias(adjacency @ project(hidden, layer["weight"]), layer))
            hidden = self.apply_dropout(hidden, random)
        return hidden if self.self_loops else hidden * (view.degree > 0).unsqueeze(2)


def normalise_without_loops(view: FleetGraph) -> BlockSparse:
    """D^-1/2 A D^-1/2."""
    pattern, values = view.neighbours, view.neighbours.values
    assert values is not None
    scale = view.divisor.flatten().rsqrt()
    return pattern.with_values(scale[pattern.row_of] * scale[pattern.columns] * values)

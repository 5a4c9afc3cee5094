"""NeighGen, the generator of missing neighbours in FedSage+."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from graft.models.architecture import LayeredModel, Model, add_bias, glorot, linear, project, start_linear
from graft.tensors.trees import Tree, Weights

if TYPE_CHECKING:
    from graft.graphs.fleet_graph import FleetGraph
    from graft.tensors.randomness import Stream
    from graft.tensors.sparse import BlockSparse

ACTIVATIONS = {"tanh": torch.tanh, "identity": lambda values: values}


class Generated(NamedTuple):
    """The neighbours that a generator adds to one client's graph."""

    counts: Tensor  # [1, nodes]: predicted number of missing neighbours of each node
    owners: Tensor  # int64 [generated]: the node that each generated one is a neighbour of
    features: Tensor  # [1, generated, features]


@dataclass(frozen=True)
class Generator(Model):
    """NeighGen: an encoder, a number of missing neighbours, a maker of their features and an auxiliary classifier."""

    features: int
    classes: int
    encoder_width: int
    latent: int
    slots: int
    rank: int

    name = "generator"

    def start(self, generator: torch.Generator) -> Tree:
        def convolutions(outputs: int) -> Tree:
            first, second = (self.features, self.encoder_width), (self.encoder_width, outputs)
            return Tree(first=start_convolution(*first, generator), second=start_convolution(*second, generator))

        maker = Tree(first=start_linear(self.latent, 256, generator), second=start_linear(256, 2048, generator))
        if self.rank:
            maker.narrow = start_linear(2048, self.rank, generator).weight
        maker.last = start_linear(self.rank or 2048, self.slots * self.features, generator)
        return Tree(
            encoder=convolutions(self.latent),
            count=start_linear(self.latent, 1, generator),
            maker=maker,
            classifier=convolutions(self.classes),
        )


def start_convolution(inputs: int, outputs: int, generator: torch.Generator) -> Tree:
    return Tree(weight=glorot(inputs, outputs, generator), bias=torch.zeros(outputs))


def convolve(adjacency: BlockSparse, hidden: Tensor, weights: Weights) -> Tensor:
    return add_bias(adjacency @ project(hidden, weights["weight"]), weights)


def encode(model: LayeredModel, weights: Weights, graph: FleetGraph, random: Stream | None) -> Tensor:
    """Latent vectors of all nodes by two graph convolutions, with the dropout of the clients' model in between."""
    encoder = weights["encoder"]
    hidden = torch.relu(convolve(graph.normalised, graph.features, encoder["first"]))
    return torch.relu(convolve(graph.normalised, model.apply_dropout(hidden, random), encoder["second"]))


def count_missing(latent: Tensor, weights: Weights) -> Tensor:
    """Returns the predicted number of missing neighbours of each node, [clients, nodes]."""
    return torch.relu(linear(latent, weights["count"])).squeeze(2)


def make_features(
    model: LayeredModel, maker: Weights, latent: Tensor, numbers: Tensor, slots: int, random: Stream | None
) -> tuple[Tensor, Tensor]:
    """Owners and features of so many neighbours of each node of one client, from noisy latent vectors.

    They come slot by slot, so that nothing is made that no node needs.
    """
    nodes = numbers.nonzero()[:, 0]
    hidden = torch.relu(linear(torch.relu(linear(latent[:, nodes], maker["first"])), maker["second"]))
    if len(nodes):
        hidden = model.apply_dropout(hidden, random)
    if "narrow" in maker:
        hidden = hidden @ maker["narrow"]
    weights = maker["last"]["weight"].chunk(slots, dim=2)
    biases = maker["last"]["bias"].chunk(slots, dim=1)
    owners, features = [], []
    for slot in range(slots):
        needing = (numbers[nodes] > slot).nonzero()[:, 0]
        owners.append(nodes[needing])
        features.append(hidden[:, needing] @ weights[slot] + biases[slot].unsqueeze(1))
    return torch.cat(owners), torch.cat(features, dim=1)

"""The personal model of AdaFGL: a homophilous branch, and a heterophilous one of three parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from graft.methods.adafgl.propagation import propagate_hops, signed_messages, signed_similarity
from graft.models.architecture import Model, project, start_linear
from graft.tensors.trees import Tree, Weights

if TYPE_CHECKING:
    from graft.graphs.fleet_graph import FleetGraph
    from graft.tensors.randomness import Stream

PARTS = 4  # perceptrons: of a node's own features, and three of propagated ones: homophilous, heterophilous, signed
SLOPE = 0.25  # of a PReLU before training


class BranchLogits(NamedTuple):
    """The logits of both branches, [clients, nodes, classes]."""

    homophilous: Tensor
    heterophilous: tuple[Tensor, Tensor, Tensor]  # own features, propagated features, signed messages


@dataclass(frozen=True)
class Branches(Model):
    """Perceptrons of two layers, whose first layers are one product with the features."""

    features: int
    classes: int
    width: int
    hops: int
    dropout: float

    name = "branches"

    def start(self, generator: torch.Generator) -> Tree:
        inputs = (self.features, *[self.features * (self.hops + 1)] * (PARTS - 1))
        first = [start_linear(count, self.width, generator) for count in inputs]
        second = [start_linear(self.width, self.classes, generator) for _ in range(PARTS)]
        # By feature, then by hop and part: what features are multiplied with once, and propagated after that.
        propagated = [layer.weight.view(self.hops + 1, self.features, self.width) for layer in first[1:]]
        return Tree(
            own=first[0].weight,
            propagated=torch.stack(propagated).permute(2, 1, 0, 3).reshape(self.features, -1),
            first_bias=torch.stack([layer.bias for layer in first]),
            slope=torch.full((PARTS,), SLOPE),
            second=torch.stack([layer.weight for layer in second]),
            second_bias=torch.stack([layer.bias for layer in second]),
            signed_slope=torch.full((1,), SLOPE),
        )

    def logits(
        self,
        weights: Weights,
        graph: FleetGraph,
        matrices: Weights,
        signed_share: float,
        random: Stream | None = None,
    ) -> BranchLogits:
        """Returns the logits of both branches along the matrices `propagation` and `similar`; with a random stream in
        training mode."""
        hidden = self.hidden(weights, graph.features, matrices["propagation"], graph.nodes)
        if random is not None and self.dropout:
            hidden = random.dropout(hidden.flatten(2), self.dropout).view_as(hidden)
        # Parts are laid out like further clients: [clients * parts, nodes, width].
        logits = project(hidden.transpose(1, 2).flatten(0, 1), weights["second"].flatten(0, 1))
        by_part = logits.view(len(hidden), PARTS, graph.nodes, -1) + weights["second_bias"].unsqueeze(2)
        own, homophilous, heterophilous, embedding = by_part.unbind(1)
        embedding = embedding * graph.real.unsqueeze(2)  # a bias would have padding take part in products
        signed = signed_similarity(embedding.softmax(2), matrices["similar"], graph.real, signed_share)
        alike, unlike = signed_messages(signed, embedding, weights["signed_slope"])
        messages = (alike.softmax(2) - unlike.softmax(2) + embedding) / 2
        return BranchLogits(homophilous, (own, heterophilous, messages))

    def hidden(self, weights: Weights, features: Any, propagation: Tensor, nodes: int) -> Tensor:
        """Returns the hidden layers of all parts, [clients, nodes, parts, width].

        Features are projected first and propagated then, so that nothing wider than the hidden layers is propagated.
        """
        own = project(features, weights["own"]).unsqueeze(2)
        by_hop = project(features, weights["propagated"]).view(len(own), nodes, self.hops + 1, -1)
        propagated = propagate_hops(propagation, by_hop).view(len(own), nodes, PARTS - 1, self.width)
        values = torch.cat([own, propagated], dim=2) + weights["first_bias"].unsqueeze(1)
        slope: Tensor = weights["slope"].view(-1, 1, PARTS, 1)
        return torch.relu(values) - slope * torch.relu(-values)

"""The personal model of AdaFGL: a homophilous branch, and a heterophilous one of three parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from graft.methods.adafgl.propagation import (
    TrainRows,
    propagate_hops,
    propagate_parts,
    signed_messages,
    signed_similarity,
)
from graft.models.architecture import Model, project, start_linear
from graft.tensors.trees import Tree, Weights
from graft.training.losses import softmax

if TYPE_CHECKING:
    from graft.graphs.fleet_graph import FleetGraph
    from graft.tensors.randomness import Stream

PARTS = 4  # perceptrons: of a node's own features, and three of propagated ones: homophilous, heterophilous, signed
EVERYWHERE, AT_ROWS = slice(1, None, 2), slice(0, None, 2)  # those needed at all nodes, and at training nodes alone
SLOPE = 0.25  # of a PReLU before training


class BranchLogits(NamedTuple):
    """The logits of both branches, [clients, nodes, classes]; heterophilous ones may be of training nodes alone."""

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

    def logits(self, weights: Weights, graph: FleetGraph, matrices: Weights, signed_share: float) -> BranchLogits:
        """Returns the logits of both branches along the matrices `propagation` and `similar`, in evaluation mode."""
        hidden = self.hidden(weights, graph.features, matrices["propagation"], graph.nodes)
        own, homophilous, heterophilous, embedding = second_layer(hidden, weights, slice(None))
        messages = signed_part(embedding, weights, graph, matrices["similar"], signed_share)
        return BranchLogits(homophilous, (own, heterophilous, messages))

    def train_logits(
        self,
        weights: Weights,
        graph: FleetGraph,
        matrices: Weights,
        rows: TrainRows,
        signed_share: float,
        random: Stream | None,
    ) -> BranchLogits:
        """Returns the logits of both branches, the heterophilous ones of training nodes alone; with a random stream in
        training mode.

        The homophilous part is taught at all nodes, and signed messages come from all of them: these two are computed
        everywhere.
        """
        clients, nodes = len(weights["own"]), graph.nodes
        by_hop = project(graph.features, weights["propagated"]).view(clients, nodes, self.hops + 1, PARTS - 1, -1)
        everywhere, propagated = propagate_parts(matrices["propagation"], rows.powers, by_hop)
        own = rows.subset.gather(project(graph.features, weights["own"]))
        everywhere = activate(everywhere, weights, EVERYWHERE)
        at_rows = activate(torch.stack([own, propagated], dim=2), weights, AT_ROWS)
        if random is not None and self.dropout:
            # Of all parts at all nodes, as they would be dropped there.
            kept = random.dropout(everywhere.new_ones(clients, nodes, PARTS * self.width), self.dropout)
            everywhere = everywhere * kept.view(clients, nodes, PARTS, -1)[:, :, EVERYWHERE]
            at_rows = at_rows * rows.subset.gather(kept).view(*at_rows.shape[:2], PARTS, -1)[:, :, AT_ROWS]
        homophilous, embedding = second_layer(everywhere, weights, EVERYWHERE)
        own, heterophilous = second_layer(at_rows, weights, AT_ROWS)
        messages = signed_part(embedding, weights, graph, matrices["similar"], signed_share, rows)
        return BranchLogits(homophilous, (own, heterophilous, messages))

    def hidden(self, weights: Weights, features: Any, propagation: Tensor, nodes: int) -> Tensor:
        """Returns the hidden layers of all parts, [clients, nodes, parts, width].

        Features are projected first and propagated then, so that nothing wider than the hidden layers is propagated.
        """
        own = project(features, weights["own"]).unsqueeze(2)
        by_hop = project(features, weights["propagated"]).view(len(own), nodes, self.hops + 1, -1)
        propagated = propagate_hops(propagation, by_hop).view(len(own), nodes, PARTS - 1, self.width)
        return activate(torch.cat([own, propagated], dim=2), weights, slice(None))


def activate(values: Tensor, weights: Weights, parts: slice) -> Tensor:
    """Returns hidden layers [clients, nodes, parts, width] of some parts, with bias and PReLU."""
    values = values + weights["first_bias"][:, parts].unsqueeze(1)
    slope: Tensor = weights["slope"][:, parts].unsqueeze(1).unsqueeze(3)
    return torch.relu(values) - slope * torch.relu(-values)


def second_layer(hidden: Tensor, weights: Weights, parts: slice) -> tuple[Tensor, ...]:
    """Returns the logits of some parts from their hidden layers [clients, nodes, parts, width]."""
    # Parts are laid out like further clients: [clients * parts, nodes, width].
    by_part = project(hidden.transpose(1, 2).flatten(0, 1), weights["second"][:, parts].flatten(0, 1))
    logits = by_part.view(len(hidden), hidden.shape[2], hidden.shape[1], -1)
    bias: Tensor = weights["second_bias"][:, parts].unsqueeze(2)
    return (logits + bias).unbind(1)


def signed_part(
    embedding: Tensor,
    weights: Weights,
    graph: FleetGraph,
    similar: Tensor,
    share: float,
    rows: TrainRows | None = None,
) -> Tensor:
    """Returns the logits by signed messages, of all nodes or at some rows."""
    embedding = embedding * graph.real.unsqueeze(2)  # a bias would have padding take part in products
    signed = signed_similarity(softmax(embedding), similar, graph.real, share, rows)
    alike, unlike = signed_messages(signed, embedding, weights["signed_slope"])
    own = embedding if rows is None else rows.subset.gather(embedding)
    return (softmax(alike) - softmax(unlike) + own) / 2

"""Knowledge-aware model aggregation (KAMA): what a copilot knows of a client's graph, and its share in the mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from graft.tensors.trees import vote_shares
from graft.training.losses import mean_over

if TYPE_CHECKING:
    from graft.graphs.fleet_graph import FleetGraph
    from graft.methods.fedgkc.method import FedGKC


class Knowledge(NamedTuple):
    """What a copilot knows, [clients]."""

    strength: Tensor
    clarity: Tensor
    total: Tensor  # by which it is weighed


class Shares(NamedTuple):
    """The shares of clients in the mean, [clients]."""

    volume: Tensor  # by their numbers of nodes
    final: Tensor  # by volume and knowledge
    fell_back: Tensor  # whether no copilot knows anything, so that volume counts alone


def knowledge_of(method: FedGKC, graph: FleetGraph, probabilities: Tensor) -> tuple[Tensor, Tensor]:
    """Eqs. 7 and 8: strength and clarity of predictions [clients, nodes, classes], each a mean over a client's nodes.

    Strength is confidence; clarity is the margin over the other classes, less the similarity to neighbours.
    """
    confidence = probabilities.amax(2)
    margin = (2 * confidence - 1) / max(probabilities.shape[2] - 1, 1)
    unit = functional.normalize(probabilities, dim=2, eps=1e-12)
    over_smoothing = ((graph.neighbours @ unit) * unit).sum(2) / graph.divisor
    clarity = method.clarity1 * margin - method.clarity2 * method.smoothing * over_smoothing
    return mean_over(method.strength * confidence, graph.real), mean_over(clarity, graph.real)


def aggregation_shares(method: FedGKC, sizes: Tensor, knowledge: Tensor) -> Shares:
    """Returns shares halfway between a client's volume and its share in the knowledge of all, or the latter alone."""
    volume = vote_shares(sizes)
    positive = knowledge.double().clamp(min=0)  # Eq. 8 goes negative for a near-uniform copilot
    usable = positive.sum() > 1e-8
    if method.sharpness != 1:
        positive = (positive / positive.max().clamp(min=1e-8)) ** method.sharpness
    by_knowledge = torch.where(usable, positive / positive.sum().clamp(min=1e-8), volume)
    return Shares(volume, (volume + by_knowledge) / 2 if method.volume else by_knowledge, ~usable)

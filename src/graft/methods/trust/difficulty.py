"""The progressive curriculum of nodes (PCNS): how difficult a node is, and how many of the easiest are taught."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING:
    from graft.federation.fleet import Fleet
    from graft.graphs.fleet_graph import FleetGraph
    from graft.tensors.trees import Weights

STEPS = 1e5  # difficulties are compared to five decimals: equal ones must not be told apart by rounding


def easiest_first(fleet: Fleet, guide: Weights, distance: float) -> Tensor:
    """Returns the place of every node, [clients, nodes], in the order of its difficulty to a model; 0 is the easiest,
    padding comes last, and of equal nodes the first comes first."""
    output = fleet.predict(guide)
    known = torch.where(fleet.labels.masks[:, 0], fleet.labels.classes, output.logits.argmax(2))
    every = torch.arange(output.logits.shape[2], device=fleet.device)
    one_hot = (known.unsqueeze(2) == every).to(output.logits) * fleet.graph.real.unsqueeze(2)
    difficulty = label_entropy(fleet.graph, one_hot) + distance * distance_to_class(output.embedding, one_hot)
    return places(difficulty, fleet.graph.real)


def label_entropy(graph: FleetGraph, one_hot: Tensor) -> Tensor:
    """D1: the entropy of the classes [clients, nodes, classes] among a node and its neighbours."""
    counts = graph.with_self_loops @ one_hot
    shares = counts / counts.sum(2, keepdim=True).clamp(min=1e-12)
    entropy: Tensor = -torch.special.xlogy(shares, shares).sum(2)
    return entropy


def distance_to_class(embedding: Tensor, one_hot: Tensor) -> Tensor:
    """D2: 1 less the cosine of a node's embedding and the mean embedding of its class."""
    means = (one_hot.mT @ embedding) / one_hot.sum(1).clamp(min=1).unsqueeze(2)
    own = one_hot @ functional.normalize(means, dim=2, eps=1e-12)
    return 1 - (own * functional.normalize(embedding, dim=2, eps=1e-12)).sum(2)


def places(difficulty: Tensor, real: Tensor) -> Tensor:
    """Returns the place of every node in the order of difficulty."""
    steps = torch.where(real, (difficulty * STEPS).round(), torch.inf)
    order = steps.argsort(dim=1, stable=True)
    every = torch.arange(order.shape[1], device=order.device).expand_as(order)
    return torch.empty_like(order).scatter(1, order, every)


def share_taught(epoch: Tensor, start: float, epochs: float) -> Tensor:
    """f: the share of the nodes that are taught in an epoch, counted from 0 over the whole training; all of them from
    epoch `epochs` on."""
    return (start + (1 - start) * epoch.double() / epochs).clamp(max=1)


def easiest(places: Tensor, share: Tensor, sizes: Tensor) -> Tensor:
    """Returns which of some nodes, by their places [clients, nodes] among all, are in a share of each client's easiest,
    rounded down; of the padding nobody asks."""
    count = (share * sizes + 1e-9).floor()
    return places < count.unsqueeze(1)

"""Prototypes: mean embeddings of classes, their means over clients, and the pull towards them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from graft.graphs.fleet_graph import FleetGraph
from graft.graphs.node_subset import gather_nodes
from graft.tensors.sparse import BlockSparse
from graft.tensors.trees import Tree, Weights, broadcast_tree

if TYPE_CHECKING:
    from graft.federation.fleet import Fleet
    from graft.federation.server import Server
    from graft.models.architecture import Model, Output


def prototype_loss(fleet: Fleet, embedding: Tensor, received: Weights, *, per_class: bool = False) -> Tensor:
    """Returns the mean squared error between embeddings of the training nodes and the prototypes of their classes, over
    the nodes whose class has one.

    What clients receive are `prototypes` [clients, classes, width] and which of them are `present`.
    """
    _, labels, shares = fleet.train_nodes
    prototypes: Tensor = received["prototypes"]
    present: Tensor = received["present"]
    targets = gather_nodes(prototypes, labels)
    errors = (embedding - targets).square().mean(2)
    pulled = (shares > 0) & present.gather(1, labels)
    if per_class:
        sizes = one_hot_classes(fleet, present.shape[1]).sum(1).clamp(min=1)
        return (errors * pulled / sizes.gather(1, labels)).sum(1)
    return (errors * pulled).sum(1) / pulled.sum(1).clamp(min=1)


def class_means(fleet: Fleet, output: Output) -> Tree:
    """Each client's mean embedding of its training nodes of every class, and their number."""
    one_hot = one_hot_classes(fleet, output.logits.shape[2])
    counts = one_hot.sum(1)
    sums = one_hot.to(output.embedding).transpose(1, 2) @ fleet.at_train_nodes(output.embedding)
    return Tree(prototypes=sums / counts.clamp(min=1).unsqueeze(2), counts=counts)


def one_hot_classes(fleet: Fleet, classes: int) -> Tensor:
    """Returns the classes of training nodes, one-hot, [clients, training nodes, classes]."""
    _, labels, shares = fleet.train_nodes
    return (labels.unsqueeze(2) == torch.arange(classes, device=labels.device)) & (shares > 0).unsqueeze(2)


def owner_means(prototypes: Tensor, votes: Tensor) -> tuple[Tensor, Tensor]:
    """Returns means over the clients that have a class, and a mask of the classes that any client has."""
    totals = votes.sum(0)
    shares = (votes / totals.clamp(min=1)).to(prototypes)
    return torch.einsum("kc,kcd->cd", shares, prototypes), totals > 0


def renewed(known: Weights, prototypes: Tensor, votes: Tensor) -> Tree:
    """Returns the prototypes after a round; a class that nobody sent keeps the one it had, if any."""
    means, owned = owner_means(prototypes, votes)
    return Tree(
        prototypes=torch.where(owned.unsqueeze(1), means, known["prototypes"]), present=known["present"] | owned
    )


def distances(points: Tensor, prototypes: Tensor) -> Tensor:
    """Euclidean distances; not by the squares of the norms, whose difference may be negative."""
    return torch.cdist(points, prototypes, compute_mode="donot_use_mm_for_euclid_dist")


def mean_norm(shared: Weights) -> Tensor:
    """Returns the mean norm of the prototypes that are present."""
    norms: Tensor = shared["prototypes"].norm(dim=1)
    present: Tensor = shared["present"]
    return (norms * present).sum() / present.sum().clamp(min=1)


def output_shape(server: Server, model: Model) -> tuple[int, int]:
    """Returns the width of a model's embeddings and the number of its classes, found by a forward pass on two linked
    nodes."""
    features = torch.zeros(1, 2, server.features, device=server.device)
    starts, columns = (torch.tensor(part, dtype=torch.int32, device=server.device) for part in ([0, 1, 2], [1, 0]))
    linked = BlockSparse(starts, columns, None, 1, (2, 2)).with_values(None)
    graph = FleetGraph(linked, features, torch.tensor([2], device=server.device))
    with torch.no_grad():
        output = model(broadcast_tree(server.initial(model), 1, server.device), graph)
    return output.embedding.shape[2], output.logits.shape[2]

"""FedProto. Tan, Long, Liu, Zhou, Lu, Jiang and Zhang: FedProto: federated prototype learning across heterogeneous
clients. AAAI 2022."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from graft.errors import InputError
from graft.federation.method import Method, step
from graft.graphs.fleet_graph import FleetGraph
from graft.graphs.node_subset import gather_nodes
from graft.tensors.sparse import BlockSparse
from graft.tensors.trees import Tree, Weights, broadcast_tree, map_tree

if TYPE_CHECKING:
    from graft.federation.exchange import Clients, Server
    from graft.federation.fleet import Fleet
    from graft.models.architecture import Model, Output


@dataclass(frozen=True)
class PrototypeMethod(Method):
    """Clients keep models of any architecture and send their mean embedding of each class; embeddings are pulled
    towards what the server makes of these means.

    Every message has a row for each class. Counts, or a mask, tell which classes are present: the rows of absent
    classes are sent, and counted as sent, but never used. Clients that classify by prototypes are also sent the new
    ones after the round; until then they predict by their classifier.
    """

    heterogeneous: ClassVar[bool] = True

    lam: Annotated[float, Ge(0)] = 1.0  # lambda: weight of the pull towards the prototypes; 0 is local training
    inference: Literal["head", "prototype"] = "head"  # predict by the classifier, or by the nearest prototype

    def start_server(self, server: Server) -> None:
        width, classes = self.common_shape(server)
        server.state.known = Tree(
            prototypes=torch.zeros(classes, width, device=server.device),
            present=torch.zeros(classes, dtype=torch.bool, device=server.device),
        )

    def start_client(self, fleet: Fleet) -> None:
        super().start_client(fleet)
        if self.inference == "prototype":
            output = fleet.predict(fleet.state.model)
            shape = (len(fleet.clients), output.logits.shape[2], output.embedding.shape[2])
            fleet.state.known = Tree(
                prototypes=output.embedding.new_zeros(shape),
                present=output.embedding.new_zeros(shape[:2], dtype=torch.bool),
            )

    @step
    def train(self, fleet: Fleet, known: Weights) -> Tree:
        fleet.state.model = fleet.fit(fleet.state.model, lambda weights: self.loss(fleet, weights, known))
        return class_means(fleet, fleet.predict(fleet.state.model))

    @step
    def receive(self, fleet: Fleet, known: Weights) -> Tree:
        fleet.state.known = map_tree(torch.clone, known)
        return Tree()

    def loss(self, fleet: Fleet, weights: Weights, known: Weights) -> Tensor:
        output = fleet.train_output(weights)
        return fleet.train_loss(output.logits) + self.lam * self.pull(fleet, output.embedding, known)

    def pull(self, fleet: Fleet, embedding: Tensor, known: Weights) -> Tensor:
        return prototype_loss(fleet, embedding, known)

    def answers(self, fleet: Fleet) -> Tensor:
        if self.inference == "head":
            return super().answers(fleet)
        output, known = fleet.predict(self.personal(fleet)), fleet.state.known
        present = known.present.unsqueeze(1)
        nearness = -distances(output.embedding, known.prototypes).masked_fill(~present, float("inf"))
        return torch.where(present.any(2, keepdim=True), nearness, output.logits)

    def tell(self, server: Server, clients: Clients) -> None:
        """Send the new prototypes to clients that classify by them."""
        if self.inference == "prototype":
            clients.ask(self.receive, server.state.known)

    def common_shape(self, server: Server) -> tuple[int, int]:
        """The width of every client's embeddings, and the number of classes."""
        shapes = {model: output_shape(server, model) for model in dict.fromkeys(server.models)}
        if len(set(shapes.values())) > 1:
            sizes = ", ".join(f"{model.name} {width} and {classes}" for model, (width, classes) in shapes.items())
            raise InputError(
                f"{type(self).__name__} compares embeddings across clients, so all models need embeddings of one width "
                f"and the same number of classes, not {sizes}."
            )
        return next(iter(shapes.values()))


@dataclass(frozen=True)
class FedProto(PrototypeMethod):
    """The prototype of a class is the mean over the clients that have it."""

    aggregation: Literal["uniform", "count"] = "uniform"  # one vote a client, or one a training node
    per_class: bool = False  # whether the pull is a sum of means over each class (OpenFGL), not one mean over nodes

    def round(self, server: Server, clients: Clients) -> None:
        replies = clients.ask(self.train, server.state.known)
        server.state.known = self.combine(replies.prototypes, replies.counts, server.state.known)
        # Embeddings and prototypes may collapse together; this shows it.
        server.record(prototype_norm=mean_norm(server.state.known))
        self.tell(server, clients)

    def pull(self, fleet: Fleet, embedding: Tensor, known: Weights) -> Tensor:
        return prototype_loss(fleet, embedding, known, per_class=self.per_class)

    def combine(self, prototypes: Tensor, counts: Tensor, known: Weights) -> Tree:
        """The new prototypes; a class that nobody sent in this round keeps the one it had, if any."""
        # Never both a vote by nodes and a division by owners, which would shrink prototypes.
        votes = counts if self.aggregation == "count" else counts > 0
        means, owned = owner_means(prototypes, votes)
        return Tree(
            prototypes=torch.where(owned.unsqueeze(1), means, known["prototypes"]), present=known["present"] | owned
        )


def prototype_loss(fleet: Fleet, embedding: Tensor, known: Weights, *, per_class: bool = False) -> Tensor:
    """The mean squared error between training nodes, whose embeddings these are, and the prototypes of their classes,
    where these have one."""
    _, labels, shares = fleet.train_nodes
    prototypes: Tensor = known["prototypes"]
    present: Tensor = known["present"]
    targets = gather_nodes(prototypes, labels)
    errors = (embedding - targets).square().mean(2)
    pulled = (shares > 0) & present.gather(1, labels)
    if per_class:
        sizes = members(fleet, present.shape[1]).sum(1).clamp(min=1)
        return (errors * pulled / sizes.gather(1, labels)).sum(1)
    return (errors * pulled).sum(1) / pulled.sum(1).clamp(min=1)


def class_means(fleet: Fleet, output: Output) -> Tree:
    """Each client's mean embedding of its training nodes of every class, and their number."""
    one_hot = members(fleet, output.logits.shape[2])
    counts = one_hot.sum(1)
    sums = one_hot.to(output.embedding).transpose(1, 2) @ fleet.at_train_nodes(output.embedding)
    return Tree(prototypes=sums / counts.clamp(min=1).unsqueeze(2), counts=counts)


def members(fleet: Fleet, classes: int) -> Tensor:
    """The classes of training nodes, one-hot, [clients, training nodes, classes]."""
    _, labels, shares = fleet.train_nodes
    return (labels.unsqueeze(2) == torch.arange(classes, device=labels.device)) & (shares > 0).unsqueeze(2)


def owner_means(prototypes: Tensor, votes: Tensor) -> tuple[Tensor, Tensor]:
    """Means over the clients that have a class, and a mask of the classes that any client has."""
    totals = votes.sum(0)
    shares = (votes / totals.clamp(min=1)).to(prototypes)
    return torch.einsum("kc,kcd->cd", shares, prototypes), totals > 0


def distances(points: Tensor, prototypes: Tensor) -> Tensor:
    """Euclidean distances; not by the squares of the norms, whose difference may be negative."""
    return torch.cdist(points, prototypes, compute_mode="donot_use_mm_for_euclid_dist")


def mean_norm(known: Weights) -> Tensor:
    norms: Tensor = known["prototypes"].norm(dim=1)
    present: Tensor = known["present"]
    return (norms * present).sum() / present.sum().clamp(min=1)


def output_shape(server: Server, model: Model) -> tuple[int, int]:
    """The width of a model's embeddings and the number of its classes, found by asking it about two linked nodes."""
    features = torch.zeros(1, 2, server.architecture("gcn").features, device=server.device)  # type: ignore[attr-defined]
    starts, columns = (torch.tensor(part, dtype=torch.int32, device=server.device) for part in ([0, 1, 2], [1, 0]))
    linked = BlockSparse(starts, columns, None, 1, (2, 2)).with_values(None)
    graph = FleetGraph(linked, features, torch.tensor([2], device=server.device))
    with torch.no_grad():
        output = model(broadcast_tree(server.initial(model), 1, server.device), graph)
    return output.embedding.shape[2], output.logits.shape[2]

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
from graft.federation.reveals import Reveals
from graft.fields import Search
from graft.methods.fedproto.prototypes import (
    class_means,
    distances,
    mean_norm,
    output_shape,
    prototype_loss,
    renewed,
)
from graft.tensors.trees import Tree, Weights, map_tree

if TYPE_CHECKING:
    from graft.federation.clients import Clients
    from graft.federation.fleet import Fleet
    from graft.federation.server import Server


@dataclass(frozen=True)
class PrototypeExchange(Method):
    """Clients keep models of any architecture and send their mean embedding of each class; the server sends back what
    it makes of these means.

    Every message has a row for each class. Counts, or a mask, tell which classes are present: the rows of absent
    classes are sent, and counted as sent, but never used.
    """

    heterogeneous: ClassVar[bool] = True
    capturable: ClassVar[bool] = True
    reveals: ClassVar = {
        "train/prototypes": Reveals("mean embedding of the client's training nodes of each class"),
    }

    def start_server(self, server: Server) -> None:
        width, classes = self.common_shape(server)
        server.state.known = Tree(
            prototypes=torch.zeros(classes, width, device=server.device),
            present=torch.zeros(classes, dtype=torch.bool, device=server.device),
        )

    def common_shape(self, server: Server) -> tuple[int, int]:
        """Returns the width of every client's embeddings, and the number of classes."""
        shapes = {model: output_shape(server, model) for model in dict.fromkeys(server.models)}
        if len(set(shapes.values())) > 1:
            sizes = ", ".join(f"{model.name} {width} and {classes}" for model, (width, classes) in shapes.items())
            raise InputError(
                f"{type(self).__name__} compares embeddings across clients, so all models need embeddings of one width "
                f"and the same number of classes, not {sizes}."
            )
        return next(iter(shapes.values()))

    def start_known(self, fleet: Fleet) -> Tree:
        """Returns the prototypes of clients that have heard of none."""
        output = fleet.predict(fleet.state.model)
        shape = (len(fleet.clients), output.logits.shape[2], output.embedding.shape[2])
        return Tree(
            prototypes=output.embedding.new_zeros(shape),
            present=output.embedding.new_zeros(shape[:2], dtype=torch.bool),
        )


@dataclass(frozen=True)
class PrototypeMethod(PrototypeExchange):
    """Embeddings are pulled towards the prototypes that the server sends.

    Clients that classify by prototypes are also sent the new ones after the round; until then they predict by their
    classifier.
    """

    reveals: ClassVar = {"train/counts": Reveals("number of training nodes of each class", ("labels",))}

    # lambda: weight of the pull towards the prototypes; 0 is local training.
    lam: Annotated[float, Ge(0), Search(0.01, 10.0, log=True)] = 1.0
    inference: Literal["head", "prototype"] = "head"  # predict by the classifier, or by the nearest prototype

    def start_client(self, fleet: Fleet) -> None:
        super().start_client(fleet)
        if self.inference == "prototype":
            fleet.state.known = self.start_known(fleet)

    @step
    def train(self, fleet: Fleet, received: Weights) -> Tree:
        fleet.state.model = fleet.fit(fleet.state.model, lambda weights, batch: self.loss(batch, weights, received))
        return class_means(fleet, fleet.predict(fleet.state.model))

    @step
    def receive(self, fleet: Fleet, received: Weights) -> Tree:
        fleet.state.known = map_tree(torch.clone, received)
        return Tree()

    def loss(self, fleet: Fleet, weights: Weights, received: Weights) -> Tensor:
        output = fleet.train_output(weights)
        return fleet.train_loss(output.logits) + self.lam * self.pull(fleet, output.embedding, received)

    def pull(self, fleet: Fleet, embedding: Tensor, received: Weights) -> Tensor:
        return prototype_loss(fleet, embedding, received)

    def logits(self, fleet: Fleet) -> Tensor:
        if self.inference == "head":
            return super().logits(fleet)
        output, shared = fleet.predict(self.personal(fleet)), fleet.state.known
        present = shared.present.unsqueeze(1)
        nearness = -distances(output.embedding, shared.prototypes).masked_fill(~present, float("inf"))
        return torch.where(present.any(2, keepdim=True), nearness, output.logits)

    def model_alone(self) -> bool:
        return self.inference == "head"

    def send_prototypes(self, server: Server, clients: Clients) -> None:
        """Send the new prototypes to clients that classify by them."""
        if self.inference == "prototype":
            clients.ask(self.receive, server.state.known)


@dataclass(frozen=True)
class FedProto(PrototypeMethod):
    """Clients keep models of any architecture; what is averaged are prototypes, mean embeddings of each class, towards
    which embeddings are pulled."""

    aggregation: Literal["uniform", "count"] = "uniform"  # votes in a prototype: one a client, or one a training node
    per_class: bool = False  # whether the pull is a sum of means over each class (OpenFGL), not one mean over nodes

    def round(self, server: Server, clients: Clients) -> None:
        replies = clients.ask(self.train, server.state.known)
        # Never both a vote by nodes and a division by owners, which would shrink prototypes.
        votes = replies.counts if self.aggregation == "count" else replies.counts > 0
        server.state.known = renewed(server.state.known, replies.prototypes, votes)
        # Embeddings and prototypes may collapse together; this shows it.
        server.record(prototype_norm=mean_norm(server.state.known))
        self.send_prototypes(server, clients)

    def pull(self, fleet: Fleet, embedding: Tensor, received: Weights) -> Tensor:
        return prototype_loss(fleet, embedding, received, per_class=self.per_class)

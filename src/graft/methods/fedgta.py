"""FedGTA. Li, Wu, Zhang, Zhu, Li and Wang: FedGTA: topology-aware averaging for federated graph learning. PVLDB
17(1), 2023."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor
from torch.nn import functional

from graft.federation.method import Method, step
from graft.federation.reveals import MODEL, Reveals
from graft.fields import Search
from graft.graphs.label_propagation import propagate_labels
from graft.tensors.randomness import index_tensor
from graft.tensors.trees import Tree, Weights, broadcast_tree, map_tree, select_clients, write_rows

if TYPE_CHECKING:
    from graft.federation.clients import Clients, Replies
    from graft.federation.fleet import Fleet
    from graft.federation.server import Server


@dataclass(frozen=True)
class FedGTA(Method):
    """Every client gets a mean of its own: over clients whose propagated predictions have similar moments, weighted by
    their confidence at nodes of high degree."""

    one_model: ClassVar[bool] = True
    keeps_start: ClassVar[bool] = False
    capturable: ClassVar[bool] = True
    reveals: ClassVar = {
        "train/model": MODEL,
        "train/moments": Reveals("moments over the client's nodes of propagated labels and predictions, by class"),
        "train/confidence": Reveals("confidence of the same, weighted by degree and summed over nodes"),
    }

    propagation_steps: Annotated[int, Ge(0), Search(1, 10)] = 5  # k: how often predictions are propagated
    # Share of the neighbours in a propagated prediction, beside the node's own.
    propagation: Annotated[float, Ge(0), Le(1), Search(0.1, 0.9)] = 0.5
    # Softens predictions before their confidence is measured.
    temperature: Annotated[float, Gt(0), Search(1.0, 50.0, log=True)] = 20.0
    # Which moments of each class's predictions are compared; hybrid: raw and central ones.
    moments: Annotated[Literal["hybrid", "raw", "central"], Search(choices=("hybrid", "raw"))] = "hybrid"
    orders: Annotated[int, Ge(1), Search(2, 20)] = 10  # the moments of order 1 to this one are compared
    threshold: Annotated[float, Search(0.3, 0.99)] = 0.5  # epsilon: clients mix whose moments have a cosine above it

    def start_server(self, server: Server) -> None:
        same = broadcast_tree(server.initial(), server.clients, server.device)
        server.state.models = map_tree(Tensor.contiguous, same)

    def round(self, server: Server, clients: Clients) -> None:
        models = server.state.models
        replies = clients.ask(self.train, each={client: select_clients(models, client) for client in clients.members})
        self.aggregate(server, clients, replies)

    def aggregate(self, server: Server, clients: Clients, replies: Replies) -> None:  # noqa: ARG002
        partners = self.partners(replies.moments)
        averaged = mix(replies.model, shares(partners, replies.confidence))
        # Clients that did not participate keep the model that was last made for them.
        rows = index_tensor(tuple(replies.clients), server.device)
        server.state.models = write_rows(server.state.models, rows, averaged)
        server.record(partners=partners.sum(1), confidence=replies.confidence)

    @step
    def train(self, fleet: Fleet, model: Weights) -> Tree:
        fleet.state.model = fleet.fit(model, lambda weights, batch: self.loss(batch, weights))
        sharp, soft = self.smoothed(fleet, fleet.predict(fleet.state.model).logits)
        return Tree(
            model=fleet.state.model,
            moments=self.fingerprint(fleet, sharp),
            confidence=fleet.labelled_only(self.confidence(fleet, soft)),
        )

    def loss(self, fleet: Fleet, weights: Weights) -> Tensor:
        return fleet.label_loss(weights)

    def personalised(self, server: Server) -> Weights:
        models: Weights = server.state.models
        return models

    def smoothed(self, fleet: Fleet, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Returns propagated predictions, and the same softened by the temperature; training nodes have their
        labels."""
        labelled = fleet.labels.masks[:, 0].unsqueeze(2)
        truth = functional.one_hot(fleet.labels.classes, logits.shape[2]).to(logits)
        propagated = self.propagate(fleet, torch.where(labelled, truth, logits.softmax(2)))
        sharp, soft = propagated.softmax(2), (propagated / self.temperature).softmax(2)
        return torch.where(labelled, truth, sharp), torch.where(labelled, truth, soft)

    def propagate(self, fleet: Fleet, start: Tensor) -> Tensor:
        """Label propagation; every step adds the labels of training nodes once more."""
        train = fleet.labels.masks[:, 0]
        return propagate_labels(fleet.graph, start, train, self.propagation_steps, self.propagation)

    def fingerprint(self, fleet: Fleet, chances: Tensor) -> Tensor:
        """Returns moments of the predictions of each class over a client's nodes, in one row a client."""
        real, sizes = fleet.graph.real.unsqueeze(2), fleet.size.unsqueeze(1)

        def over_nodes(values: Tensor) -> Tensor:
            return (values * real).sum(1) / sizes

        centred = chances - over_nodes(chances).unsqueeze(1)
        kinds = {"raw": [chances], "central": [centred], "hybrid": [chances, centred]}[self.moments]
        return torch.cat([over_nodes(kind**order) for kind in kinds for order in range(1, self.orders + 1)], dim=1)

    def confidence(self, fleet: Fleet, chances: Tensor) -> Tensor:
        """Returns the confidence in all nodes, weighted by degree and summed; never negative, as -q ln q is at most
        1/e.

        Padding has degree 0, and so does not count.
        """
        entropy = -(chances * (chances + 1e-8).log()).sum(2)
        return (fleet.graph.degree * (chances.shape[2] / math.e - entropy)).sum(1)

    def partners(self, moments: Tensor) -> Tensor:
        """Returns whose models make up the model of each client, [clients, clients]; everyone is its own partner."""
        directions = functional.normalize(moments.double(), dim=1)
        alike = (directions @ directions.T).clamp(max=1) > self.threshold
        return alike | torch.eye(len(moments), dtype=torch.bool, device=moments.device)


def shares(partners: Tensor, confidence: Tensor) -> Tensor:
    """Returns the weights of each client's partners in its mean; rows add up to 1."""
    weights = partners * confidence.double().clamp(min=0)
    # Without edges nobody is confident; then all partners count alike.
    weights = torch.where(weights.sum(1, keepdim=True) > 0, weights, partners)
    return weights / weights.sum(1, keepdim=True)


def mix(models: Weights, shares: Tensor) -> Tree:
    """Returns a mean of stacked models for every row of shares; integers are not averaged, every client keeps its
    own."""

    def mean(leaf: Tensor) -> Tensor:
        return torch.tensordot(shares.to(leaf), leaf, dims=1) if leaf.is_floating_point() else leaf

    return map_tree(mean, models)

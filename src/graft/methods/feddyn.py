"""FedDyn. Acar, Zhao, Matas Navarro, Mattina, Whatmough and Saligrama: Federated learning based on dynamic
regularization. ICLR 2021."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from annotated_types import Gt

from graft.federation.method import step
from graft.fields import Search
from graft.methods.fedavg import FedAvg
from graft.methods.scaffold import Average, add_share, nothing, votes
from graft.tensors.trees import Tree, Weights, add_update, difference, inner_product, map_tree, squared_distance

if TYPE_CHECKING:
    from torch import Tensor

    from graft.federation.clients import Clients, Replies
    from graft.federation.fleet import Fleet
    from graft.federation.server import Server


@dataclass(frozen=True)
class FedDyn(FedAvg):
    """FedAvg in which every client's loss is tilted by its own gradient, so that all have their minimum where the sum
    of their losses has it.

    A client keeps its gradient at the model it trained last, the server the mean of these. It is FedDC without that
    method's correction of gradients, seen from the other side.
    """

    averages: ClassVar[tuple[str, ...]] = ("train/model",)
    averaged: ClassVar[str | None] = "model"

    # Weight of the pull towards the received model; gradients are known as well as this pull balances them.
    alpha: Annotated[float, Gt(0), Search(1e-3, 1.0, log=True)] = 0.1
    average: Average = "uniform"  # every client counts alike, or by its vote (weight_by)

    def start_server(self, server: Server) -> None:
        super().start_server(server)
        server.state.gradient = nothing(server.state.model, server.model.frozen)

    def start_client(self, fleet: Fleet) -> None:
        super().start_client(fleet)
        fleet.state.gradient = nothing(fleet.state.model, fleet.model.frozen)

    def aggregate(self, server: Server, clients: Clients, replies: Replies) -> None:  # noqa: ARG002
        mean = replies.mean("model", replies.weight)
        update = difference(mean, server.state.model, server.model.frozen)
        # Clients' gradients change by their updates, and the server knows the mean of these: no gradient needs to
        # travel.
        share = len(replies) / server.clients
        server.state.gradient = add_share(server.state.gradient, update, -self.alpha * share)
        server.state.model = add_update(mean, map_tree(lambda leaf: leaf / -self.alpha, server.state.gradient))

    @step
    def train(self, fleet: Fleet, model: Weights) -> Tree:
        gradient = fleet.state.gradient
        fleet.state.model = fleet.fit(model, lambda weights, batch: self.tilted_loss(batch, weights, model, gradient))
        update = difference(fleet.state.model, model, fleet.model.frozen)
        fleet.state.gradient = add_share(gradient, update, -self.alpha)
        return Tree(model=fleet.state.model, weight=votes(fleet, self.average))

    def tilted_loss(self, fleet: Fleet, weights: Weights, received: Weights, gradient: Weights) -> Tensor:
        pull = squared_distance(weights, received, skip=fleet.model.frozen)
        tilt = inner_product(weights, gradient)
        return self.loss(fleet, weights, received) - tilt + self.alpha / 2 * pull

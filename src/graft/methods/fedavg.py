"""FedAvg. McMahan, Moore, Ramage, Hampson and Aguera y Arcas: Communication-efficient learning of deep
networks from decentralized data. AISTATS 2017."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from graft.federation.method import Method, step
from graft.federation.reveals import MODEL, VOTE
from graft.tensors.trees import Tree, Weights

if TYPE_CHECKING:
    from torch import Tensor

    from graft.federation.clients import Clients, Replies
    from graft.federation.fleet import Fleet
    from graft.federation.server import Server


@dataclass(frozen=True)
class FedAvg(Method):
    """Clients train copies of one model; the server averages them."""

    one_model: ClassVar[bool] = True
    keeps_start: ClassVar[bool] = False
    capturable: ClassVar[bool] = True
    reveals: ClassVar = {"train/model": MODEL, "train/weight": VOTE}
    averages: ClassVar[tuple[str, ...]] = ("train/model",)
    averaged: ClassVar[str | None] = "model"

    def start_server(self, server: Server) -> None:
        server.state.model = server.initial()

    def round(self, server: Server, clients: Clients) -> None:
        replies = clients.ask(self.train, server.state.model)
        self.aggregate(server, clients, replies)

    def aggregate(self, server: Server, clients: Clients, replies: Replies) -> None:  # noqa: ARG002
        server.state.model = replies.mean("model", replies.weight)

    @step
    def train(self, fleet: Fleet, model: Weights) -> Tree:
        fleet.state.model = fleet.fit(model, lambda weights, batch: self.loss(batch, weights, model))
        return Tree(model=fleet.state.model, weight=fleet.weight)

    def loss(self, fleet: Fleet, weights: Weights, received: Weights) -> Tensor:  # noqa: ARG002
        return fleet.label_loss(weights)

    def shared(self, server: Server) -> Weights:
        model: Weights = server.state.model
        return model

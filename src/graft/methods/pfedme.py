"""pFedMe. T. Dinh, Tran and Nguyen: Personalized federated learning with Moreau envelopes. NeurIPS 2020."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar

from annotated_types import Ge, Gt, Le

from graft.federation.method import step
from graft.fields import Search
from graft.methods.fedavg import FedAvg
from graft.methods.scaffold import towards
from graft.tensors.trees import Tree, Weights, squared_distance

if TYPE_CHECKING:
    from torch import Tensor

    from graft.federation.clients import Clients, Replies
    from graft.federation.fleet import Fleet
    from graft.federation.server import Server


@dataclass(frozen=True)
class PFedMe(FedAvg):
    """Clients train models of their own within reach of a local copy of the global model, which follows them and is
    averaged.

    A client's model solves, roughly, the problem whose value is the Moreau envelope of its loss at the local copy;
    lambda times the distance of the two is the gradient of that envelope.
    """

    averages: ClassVar[tuple[str, ...]] = ("train/model",)
    averaged: ClassVar[str | None] = "model"

    # lambda: how strongly a client's own model is held near the local copy.
    lam: Annotated[float, Ge(0), Search(1e-2, 30.0, log=True)] = 1.0
    inner_steps: Annotated[int, Ge(1), Search(1, 5)] = 3  # K: epochs of the own model before the local copy moves
    # eta * lambda: share of the way to the own model that the local copy goes, once in each of the experiment's epochs.
    local_step: Annotated[float, Gt(0), Le(1), Search(0.05, 1.0)] = 0.5
    # beta: step of the server from its model towards the clients' mean.
    server_step: Annotated[float, Gt(0), Search(0.1, 2.0, log=True)] = 1.0

    def aggregate(self, server: Server, clients: Clients, replies: Replies) -> None:  # noqa: ARG002
        mean = replies.mean("model", replies.weight)
        server.state.model = towards(server.state.model, mean, self.server_step, server.model.frozen)

    @step
    def train(self, fleet: Fleet, model: Weights) -> Tree:
        inner = replace(fleet.training, epochs=self.inner_steps)
        own = local = model
        for _ in range(fleet.training.epochs):
            own = fleet.fit(own, partial(self.loss_near, local), training=inner)
            local = towards(local, own, self.local_step, fleet.model.frozen)
        fleet.state.model = own
        return Tree(model=local, weight=fleet.weight)

    def loss_near(self, local: Weights, weights: Weights, batch: Fleet) -> Tensor:
        pull = squared_distance(weights, local, skip=batch.model.frozen)
        return self.loss(batch, weights, local) + self.lam / 2 * pull

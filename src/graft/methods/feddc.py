"""FedDC. Gao, Fu, Li, Chen, Xu and Xu: FedDC: federated learning with non-IID data via local drift decoupling and
correction. CVPR 2022."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from graft.federation.method import step
from graft.federation.reveals import Reveals
from graft.fields import Search
from graft.methods.fedavg import FedAvg
from graft.methods.scaffold import CONTROL, Average, add_share, fit_and_average, nothing, votes
from graft.tensors.trees import (
    Tree,
    Weights,
    add_update,
    difference,
    inner_product,
    map_tree,
    squared_distance,
    trainable,
)

if TYPE_CHECKING:
    from graft.federation.clients import Clients, Replies
    from graft.federation.fleet import Fleet
    from graft.federation.server import Server
    from graft.training.optimizers import Training


@dataclass(frozen=True)
class FedDC(FedAvg):
    """FedAvg in which every client accumulates its drift, and the server adds the mean drift to the mean model.

    A drift includes the update of the round when it is added, so the first average moves twice as far as FedAvg's, even
    with alpha = 0: so the paper and its authors' code have it.
    """

    reveals: ClassVar = {
        "train/change": CONTROL,
        "train/drift_norm": Reveals("norm of the sum of the client's updates so far"),
    }
    averages: ClassVar[tuple[str, ...]] = ("train/model", "train/change")
    averaged: ClassVar[str | None] = "model"
    logged: ClassVar[tuple[str, ...]] = ("train/drift_norm",)

    # Weight of the pull towards the received model less the client's drift.
    alpha: Annotated[float, Ge(0), Search(1e-3, 1.0, log=True)] = 0.1
    # SCAFFOLD's correction of every gradient. It needs the mean gradient of local steps, which these tell with SGD
    # alone, with or without momentum: "auto" leaves it out with Adam, where zeros travel in its place; "off" sends
    # nothing.
    correction: Literal["auto", "on", "off"] = "auto"
    drift: bool = True  # whether clients accumulate drifts; off: they stay zero
    average: Average = "uniform"  # every client counts alike, or by its vote (weight_by)

    def start_server(self, server: Server) -> None:
        super().start_server(server)
        for name in self.kept:
            server.state[name] = nothing(server.state.model, server.model.frozen)

    def start_client(self, fleet: Fleet) -> None:
        super().start_client(fleet)
        for name in self.kept:
            fleet.state[name] = nothing(fleet.state.model, fleet.model.frozen)

    def round(self, server: Server, clients: Clients) -> None:
        message = Tree(model=server.state.model)
        if self.correction != "off":
            message.control = server.state.control
        replies = clients.ask(self.train, message)
        self.aggregate(server, clients, replies)

    def aggregate(self, server: Server, clients: Clients, replies: Replies) -> None:  # noqa: ARG002
        mean = replies.mean("model", replies.weight)
        share = len(replies) / server.clients
        if self.correction != "off":
            change = replies.mean("change", replies.weight)
            server.state.control = add_share(server.state.control, change, share)
        if self.drift:
            # Clients drift by their updates, and the server knows the mean of these: no drift needs to travel.
            update = difference(mean, server.state.model, server.model.frozen)
            server.state.drift = add_share(server.state.drift, update, share)
            mean = add_update(mean, server.state.drift)
            server.record(drift_norm=replies.drift_norm)
        server.state.model = mean

    @step
    def train(self, fleet: Fleet, received: Weights) -> Tree:
        start, state, frozen = received["model"], fleet.state, fleet.model.frozen
        target = trainable(start, frozen)
        if self.drift:
            target = map_tree(torch.sub, target, state.drift)
        correction, training = self.correction_of(fleet, received), self.training(fleet)

        def loss(weights: Weights, batch: Fleet) -> Tensor:
            return self.drifting_loss(batch, weights, start, target, correction)

        if correction is None:
            model, control = fleet.fit(start, loss, training=training), state.get("control", Tree())
        else:
            model, control = fit_and_average(fleet, start, loss, correction, training)
        reply = Tree(model=model, weight=votes(fleet, self.average))
        if self.correction != "off":
            reply.change = map_tree(torch.sub, control, state.control)
            state.control = map_tree(torch.add, state.control, reply.change)
        if self.drift:
            state.drift = map_tree(torch.add, state.drift, difference(model, start, frozen))
            # To be watched: with a tiny alpha, clients that seldom participate drift without bound.
            reply.drift_norm = inner_product(state.drift, state.drift).sqrt()
        state.model = model
        return reply

    def drifting_loss(
        self, fleet: Fleet, weights: Weights, received: Weights, target: Weights, correction: Weights | None
    ) -> Tensor:
        pull = squared_distance(trainable(weights, fleet.model.frozen), target)
        loss = self.loss(fleet, weights, received) + self.alpha / 2 * pull
        return loss if correction is None else loss + inner_product(weights, correction)

    def correction_of(self, fleet: Fleet, received: Weights) -> Tree | None:
        """Returns the correction of every gradient, if there is any."""
        if self.correction == "off" or (self.correction == "auto" and fleet.training.optimizer == "adam"):
            return None
        return map_tree(torch.sub, received["control"], fleet.state.control)

    def training(self, fleet: Fleet) -> Training:
        """Returns how a client trains: with drifts momentum begins anew in every round, as the authors' optimiser does;
        kept, it and the drift would both sum the same updates, and overshoot without bound."""
        anew = self.drift and fleet.training.optimizer == "momentum"
        return replace(fleet.training, optimizer_state="reset") if anew else fleet.training

    @property
    def kept(self) -> list[str]:
        """Returns fields of the state beside the model; clients have their own, the server has the mean."""
        enabled = {"drift": self.drift, "control": self.correction != "off"}
        return [name for name, used in enabled.items() if used]

"""FedNova. Wang, Liu, Liang, Joshi and Poor: Tackling the objective inconsistency problem in heterogeneous federated
optimization. NeurIPS 2020."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from annotated_types import Ge

from graft.federation.method import step
from graft.federation.reveals import Reveals
from graft.fields import Search
from graft.methods.fedprox import FedProx
from graft.methods.scaffold import towards
from graft.tensors.trees import Tree, Weights, vote_shares

if TYPE_CHECKING:
    from torch import Tensor

    from graft.federation.clients import Clients, Replies
    from graft.federation.fleet import Fleet
    from graft.federation.server import Server


@dataclass(frozen=True)
class FedNova(FedProx):
    """FedAvg that divides a client's update by how far its local steps could take it, so that those who take more steps
    pull no harder.

    Clients differ in their steps with `least_epochs`; where they do not, it is FedAvg, or with `mu` FedProx.
    """

    reveals: ClassVar = {
        "train/steps": Reveals("how many steps the client took, as far as its optimiser adds them", ())
    }
    averages: ClassVar[tuple[str, ...]] = ("train/model",)
    averaged: ClassVar[str | None] = "model"

    mu: Annotated[float, Ge(0), Search()] = 0.0  # strength of FedProx's pull towards the received model

    def aggregate(self, server: Server, clients: Clients, replies: Replies) -> None:  # noqa: ARG002
        """The mean of the updates, each over its client's steps, times the mean number of steps.

        With shares p and steps a that is x + (sum of p a) (sum of p / a) (m - x), where m is the mean of the clients'
        models by their shares p / a: the models can be averaged as they are.
        """
        shares = vote_shares(replies.weight)
        effective = (shares * replies.steps).sum()
        reach = effective * (shares / replies.steps).sum()
        mean = replies.mean("model", shares / replies.steps)
        server.state.model = towards(server.state.model, mean, reach.float(), server.model.frozen)
        server.record(effective_steps=effective)

    @step
    def train(self, fleet: Fleet, model: Weights) -> Tree:
        fleet.state.model = fleet.fit(model, lambda weights, batch: self.loss(batch, weights, model))
        return Tree(model=fleet.state.model, weight=fleet.weight, steps=self.normalised_steps(fleet))

    def normalised_steps(self, fleet: Fleet) -> Tensor:
        """Returns the norm of every client's a: how many learning rates a constant gradient of 1 would move it.

        Exact for SGD and, where the optimiser begins anew in each round, for momentum, with FedProx's pull or without.
        Adam moves by a learning rate in every step whatever the gradient is, so its steps count as they are.
        """
        training = fleet.training
        plain = training.optimizer == "adam"
        kept = training.momentum if training.optimizer == "momentum" else 0.0
        pull = 0.0 if plain else self.mu * training.learning_rate
        taken = torch.zeros(len(fleet.clients), device=fleet.device) + fleet.steps
        total, velocity, moved = torch.zeros_like(taken), 0.0, 0.0
        for number in range(training.steps):
            velocity = kept * velocity + 1 - pull * moved
            moved += velocity
            total += velocity * (taken > number)
        return total

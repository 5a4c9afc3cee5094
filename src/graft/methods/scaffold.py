"""SCAFFOLD. Karimireddy, Kale, Mohri, Reddi, Stich and Suresh: SCAFFOLD: stochastic controlled averaging for federated
learning. ICML 2020."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from annotated_types import Gt
from torch import Tensor

from graft.federation.method import step
from graft.federation.reveals import Reveals
from graft.fields import Search
from graft.methods.fedavg import FedAvg
from graft.tensors.trees import Tree, Weights, flatten, inner_product, map_tree, trainable, unflatten, unsqueeze_to

if TYPE_CHECKING:
    from graft.federation.clients import Clients, Replies
    from graft.federation.fleet import Fleet, Loss
    from graft.federation.server import Server
    from graft.training.optimizers import Training

Average = Literal["uniform", "votes"]
Steps = int | Tensor  # of all clients, or of each
CONTROL = Reveals("change of the client's control variate: a gradient of its loss, less the one before", model=True)


@dataclass(frozen=True)
class SCAFFOLD(FedAvg):
    """FedAvg whose local steps replace a client's own part of the gradient by that of all clients.

    A client keeps its part as its control variate, of the shape of the model. The server's control is the mean over
    all clients, those that never participated included.
    """

    reveals: ClassVar = {"train/change": CONTROL}
    averages: ClassVar[tuple[str, ...]] = ("train/model", "train/change")
    averaged: ClassVar[str | None] = "model"

    # eta_g: step of the server from its model towards the clients' mean.
    server_step: Annotated[float, Gt(0), Search(0.1, 2.0, log=True)] = 1.0
    # A client's new control: its gradient at the model it received (option I), or the mean gradient of its local steps
    # (option II), which steps tell with SGD alone, with or without momentum; "auto" takes that with SGD, the other with
    # Adam.
    control: Literal["auto", "gradient", "steps"] = "auto"
    average: Average = "uniform"  # every client counts alike, in models and controls, or by its vote (weight_by)

    def start_server(self, server: Server) -> None:
        super().start_server(server)
        server.state.control = nothing(server.state.model, server.model.frozen)

    def start_client(self, fleet: Fleet) -> None:
        super().start_client(fleet)
        fleet.state.control = nothing(fleet.state.model, fleet.model.frozen)

    def round(self, server: Server, clients: Clients) -> None:
        replies = clients.ask(self.train, Tree(model=server.state.model, control=server.state.control))
        self.aggregate(server, clients, replies)

    def aggregate(self, server: Server, clients: Clients, replies: Replies) -> None:  # noqa: ARG002
        mean = replies.mean("model", replies.weight)
        server.state.model = towards(server.state.model, mean, self.server_step, server.model.frozen)
        change = replies.mean("change", replies.weight)
        server.state.control = add_share(server.state.control, change, len(replies) / server.clients)

    @step
    def train(self, fleet: Fleet, received: Weights) -> Tree:
        start, own = received["model"], fleet.state.control
        correction = map_tree(torch.sub, received["control"], own)

        def loss(weights: Weights, batch: Fleet) -> Tensor:
            return self.loss(batch, weights, start) + inner_product(weights, correction)

        if self.by_gradient(fleet):
            model, control = fleet.fit(start, loss), self.gradient(fleet, start)
        else:
            model, control = fit_and_average(fleet, start, loss, correction, fleet.training)
        change = map_tree(torch.sub, control, own)
        # The server adds this change too; adding it here as well keeps the rounding of both sides equal.
        fleet.state.model, fleet.state.control = model, map_tree(torch.add, own, change)
        return Tree(model=model, change=change, weight=votes(fleet, self.average))

    def by_gradient(self, fleet: Fleet) -> bool:
        # The mean step of Adam is near 1 in every coordinate, whatever the gradient is.
        return self.control == "gradient" or (self.control == "auto" and fleet.training.optimizer == "adam")

    def gradient(self, fleet: Fleet, weights: Weights) -> Tree:
        """Returns the gradient at some weights, without dropout, weight decay included as it is in every local step."""
        tree = map_tree(lambda leaf: leaf.detach().clone(), weights)
        trained = dict(flatten(trainable(tree, fleet.model.frozen)))
        for leaf in trained.values():
            leaf.requires_grad_()
        loss = fleet.label_loss(tree, dropout=False)
        gradients = torch.autograd.grad(loss.sum(), list(trained.values()), allow_unused=True)
        decay = fleet.training.weight_decay
        with torch.no_grad():
            return unflatten(
                {
                    path: torch.zeros_like(leaf) if gradient is None else gradient + decay * leaf
                    for (path, leaf), gradient in zip(trained.items(), gradients, strict=True)
                }
            )


def nothing(model: Weights, frozen: frozenset[str]) -> Tree:
    """Zeros in the shape of the trained weights of a model."""
    return map_tree(torch.zeros_like, trainable(model, frozen))


def votes(fleet: Fleet, average: Average) -> Tensor:
    return fleet.weight if average == "votes" else fleet.labelled_only(torch.ones_like(fleet.size))


def fit_and_average(
    fleet: Fleet, start: Weights, loss: Loss, correction: Weights, training: Training
) -> tuple[Tree, Tree]:
    """Option II: returns the trained model, and the mean gradient of its steps, weight decay included, less the
    correction.

    With momentum every gradient counts by how far it moved the model, and where the velocity of earlier rounds moved it
    does not count.
    """
    frozen, steps, rate = fleet.model.frozen, fleet.steps, training.learning_rate
    momentum = training.momentum if training.optimizer == "momentum" else 0.0
    before = trainable(start, frozen)
    carried = fleet.state.get("optimizer", Tree()).get("model", Tree()).get("velocity")
    if carried is not None:  # from now, since the steps change it in place
        reach = rate * decayed_steps(steps, momentum)
        before = map_tree(lambda leaf, velocity: leaf - per_row(reach, leaf) * velocity, before, carried)
    model = fleet.fit(start, loss, training=training)
    length = rate * path_length(steps, momentum)
    moved = map_tree(torch.sub, before, trainable(model, frozen))
    return model, map_tree(lambda leaf, corrected: leaf / per_row(length, leaf) - corrected, moved, correction)


def path_length(steps: Steps, momentum: float) -> float | Tensor:
    """Returns how far a gradient of 1 in every step moves a model at a learning rate of 1: the number of steps, and
    with momentum more, since each is taken again, by less and less, in all that follow."""
    return (steps - decayed_steps(steps, momentum)) / (1 - momentum)


def decayed_steps(steps: Steps, momentum: float) -> float | Tensor:
    """Returns how often a velocity from before is taken again in some steps: momentum + momentum^2 + ..."""
    left: float | Tensor = momentum**steps
    return momentum * (1 - left) / (1 - momentum)


def per_row(value: float | Tensor, leaf: Tensor) -> float | Tensor:
    """Returns one number a client as it is multiplied with a leaf; one for all as it is."""
    return unsqueeze_to(value, leaf) if isinstance(value, Tensor) else value


def add_share(total: Weights, mean: Weights, share: float) -> Tree:
    """Returns a mean over all clients after a share of them changed by a mean; exact where all votes are equal."""
    return map_tree(lambda leaf, change: leaf + share * change, total, mean)


def towards(start: Weights, end: Weights, share: float | Tensor, frozen: frozenset[str]) -> Tree:
    """Interpolate linearly from one model to another; buffers are those of the other."""
    moved = dict(flatten(trainable(start, frozen)))
    return unflatten(
        {path: torch.lerp(moved[path], leaf, share) if path in moved else leaf for path, leaf in flatten(end)}
    )

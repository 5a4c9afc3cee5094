"""FedTGP. Zhang, Liu, Hua and Cao: FedTGP: trainable global prototypes with adaptive-margin-enhanced contrastive
learning for data and model heterogeneity in federated learning. AAAI 2024."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor
from torch.nn import functional

from graft.fields import Search
from graft.methods.fedproto import PrototypeMethod
from graft.methods.fedproto.prototypes import distances, mean_norm, owner_means
from graft.models.architecture import Model, linear, start_linear
from graft.tensors.trees import Owners, Tree, Weights, flatten, map_tree
from graft.training.optimizers import Flat, Training, start_adam, update_adam

if TYPE_CHECKING:
    from graft.federation.clients import Clients
    from graft.federation.server import Server

aten = torch.ops.aten


@dataclass(frozen=True)
class FedTGP(PrototypeMethod):
    """The server trains one prototype a class to be near what its owners sent and, by a margin, far from the rest."""

    margin_cap: Annotated[float, Ge(0), Le(math.inf)] = 100.0  # tau: the largest margin; inf: no cap
    # S: full-batch steps of Adam on the server in a round.
    server_epochs: Annotated[int, Ge(0), Search(10, 100, log=True)] = 100
    # Learning rate of Adam on the server.
    server_learning_rate: Annotated[float, Gt(0), Search(1e-3, 0.1, log=True)] = 0.01
    hidden: Annotated[int, Ge(0)] = 0  # hidden width of the network that makes prototypes; 0: that of embeddings

    def rehearsals(self) -> Sequence[FedTGP]:
        """Returns it with a single epoch at the server, which changes no form."""
        return [replace(self, server_epochs=min(self.server_epochs, 1))]

    def start_server(self, server: Server) -> None:
        super().start_server(server)
        classes, width = server.state.known.prototypes.shape
        start = server.initial(Generator(classes, width, self.hidden or width))
        # Optimisers want a client axis; the server is one.
        server.state.generator = map_tree(lambda leaf: leaf.unsqueeze(0), start)
        server.state.optimizer = start_adam(dict(flatten(server.state.generator)))

    def round(self, server: Server, clients: Clients) -> None:
        replies = clients.ask(self.train, server.state.known)
        owned = replies.counts > 0
        margin = self.margin(replies.prototypes, owned)
        self.train_generator(server, replies.prototypes, owned, margin)
        prototypes = generate(server.state.generator)
        # The generator also makes prototypes of classes that nobody has; the mask keeps them out of losses and logits.
        server.state.known = Tree(prototypes=prototypes, present=server.state.known.present | owned.any(0))
        server.record(
            prototype_norm=mean_norm(server.state.known),
            margin=margin,
            server_loss=contrast(replies.prototypes, owned, prototypes, margin),
        )
        self.send_prototypes(server, clients)

    @torch.no_grad()
    def train_generator(self, server: Server, prototypes: Tensor, owned: Tensor, margin: Tensor) -> None:
        """Trains the generator by steps so small that autograd would take most of their time, so gradients are written
        out."""
        generator = map_tree(torch.clone, server.state.generator)
        weights, moments = dict(flatten(generator)), dict(flatten(server.state.optimizer))
        gradients = {path: torch.empty_like(leaf) for path, leaf in weights.items()}
        training = Training(self.server_epochs, "adam", self.server_learning_rate, weight_decay=0.0)
        to_prototypes, owners = contrast_gradient(prototypes, owned, margin), Owners(1)
        for _ in range(training.steps):
            generator_gradients(weights, to_prototypes, gradients)
            update_adam(weights, gradients, moments, training, owners)
        server.state.generator = generator

    def margin(self, prototypes: Tensor, owned: Tensor) -> Tensor:
        """Returns the largest distance of a class to its nearest class, at most `margin_cap`; 0 for fewer than two
        classes."""
        gaps = nearest_gaps(*owner_means(prototypes, owned))
        return gaps.masked_fill(gaps.isinf(), 0).amax().clamp(max=self.margin_cap)


def nearest_gaps(means: Tensor, present: Tensor) -> Tensor:
    """Returns the distance of every class to its nearest present class; infinite for a class that has none or is
    absent."""
    pairs = present.unsqueeze(1) & present & ~torch.eye(len(present), dtype=torch.bool, device=present.device)
    return distances(means, means).masked_fill(~pairs, float("inf")).amin(1)


def contrast(sent: Tensor, owned: Tensor, prototypes: Tensor, margin: Tensor | float) -> Tensor:
    """Cross-entropy on negative distances between what clients sent [clients, classes, width] and the prototypes,
    the right one of which is handicapped by the margin; a mean over all that was sent."""
    classes = torch.arange(len(prototypes), device=prototypes.device)
    separation = distances(sent.flatten(0, 1), prototypes).view(*owned.shape, -1)
    logits = -(separation + margin * (classes.unsqueeze(1) == classes))
    losses = functional.cross_entropy(logits.flatten(0, 1), classes.repeat(len(sent)), reduction="none")
    return (losses * owned.flatten()).sum() / owned.sum().clamp(min=1)


def contrast_gradient(sent: Tensor, owned: Tensor, margin: Tensor) -> Callable[[Tensor], Tensor]:
    """Returns the function that gives the gradient of `contrast` by the prototypes, from the operations that autograd
    would run."""
    points = sent.flatten(0, 1).contiguous()
    right = torch.eye(sent.shape[1], device=sent.device).repeat(len(sent), 1)
    handicap = margin * right
    to_likelihood = right * -(owned.flatten() / owned.sum().clamp(min=1)).unsqueeze(1)

    def gradient(prototypes: Tensor) -> Tensor:
        separation = distances(points, prototypes)
        log_likelihood = torch.log_softmax((separation + handicap).neg_(), 1)
        to_logits = aten._log_softmax_backward_data.default(to_likelihood, log_likelihood, 1, points.dtype)
        by_prototype = to_logits.neg_().mT.contiguous(), separation.mT.contiguous()
        to_prototypes: Tensor = aten._cdist_backward.default(by_prototype[0], prototypes, points, 2.0, by_prototype[1])
        return to_prototypes

    return gradient


def generator_gradients(weights: Flat, to_prototypes: Callable[[Tensor], Tensor], out: Flat) -> None:
    """Writes the gradients of the generator's weights, by their paths, from the function that gives the gradient by its
    prototypes."""
    classes, first, second = (weights[path] for path in ("classes", "first/weight", "second/weight"))
    hidden = torch.bmm(classes, first).add_(weights["first/bias"].unsqueeze(1)).relu_()
    prototypes = torch.bmm(hidden, second).add_(weights["second/bias"].unsqueeze(1))
    gradient = to_prototypes(prototypes.squeeze(0)).unsqueeze(0)
    torch.bmm(hidden.mT, gradient, out=out["second/weight"])
    torch.sum(gradient, 1, out=out["second/bias"])
    gradient = aten.threshold_backward.default(torch.bmm(gradient, second.mT), hidden, 0)
    torch.bmm(classes.mT, gradient, out=out["first/weight"])
    torch.sum(gradient, 1, out=out["first/bias"])
    torch.bmm(gradient, first.mT, out=out["classes"])


@dataclass(frozen=True)
class Generator(Model):
    """An embedding for every class and two linear layers that make its prototype."""

    classes: int
    width: int
    hidden: int

    name = "generator"

    def start(self, generator: torch.Generator) -> Tree:
        return Tree(
            classes=torch.randn(self.classes, self.width, generator=generator),
            first=start_linear(self.width, self.hidden, generator),
            second=start_linear(self.hidden, self.width, generator),
        )


def generate(weights: Weights) -> Tensor:
    """Returns the prototype of every class, [classes, width]."""
    prototypes: Tensor = linear(torch.relu(linear(weights["classes"], weights["first"])), weights["second"])
    return prototypes.squeeze(0)

"""FedAdam, FedDyn and FedNova as they would usually be written: client by client with stock PyG layers."""

from __future__ import annotations

import torch
from fleet import EPOCHS, Loop
from harness import Scores
from torch import Tensor
from torch.nn import functional

from graft.data.graphs import Graph
from graft.federation.method import Method
from graft.federation.server_optimizer_names import suiting_optimizer
from graft.methods.feddyn import FedDyn


class LoopAveraging(Loop):
    """Rounds of FedAvg, with places for what a method does otherwise; weights are one vector a model."""

    def __init__(self, graphs: list[Graph], device: torch.device, method: Method) -> None:
        super().__init__(graphs, device)
        self.shares = (self.nodes / self.nodes.sum()).to(device)
        self.start(method)

    def start(self, method: Method) -> None:
        """Sets what the method keeps."""

    def round(self) -> Scores:
        before = flat(self.server)
        for client, (model, optimizer) in enumerate(zip(self.models, self.optimizers, strict=True)):
            x, edges, y, train, *_ = self.data[client]
            model.load_state_dict(self.server.state_dict())
            model.train()
            for _ in range(EPOCHS):
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(x, edges)[train], y[train])
                (loss + self.extra_loss(client, before)).backward()
                optimizer.step()
        own = self.score(self.models)
        with torch.no_grad():
            after = self.average(before, torch.stack([flat(model) for model in self.models]))
            torch.nn.utils.vector_to_parameters(after, self.server.parameters())
        return {"own": own, "global": self.score([self.server] * len(self.models))}

    def extra_loss(self, client: int, before: Tensor) -> Tensor | float:  # noqa: ARG002
        """Returns what the method adds to a client's loss."""
        return 0.0

    def average(self, before: Tensor, models: Tensor) -> Tensor:
        """Returns the server's next model."""
        raise NotImplementedError


class LoopFedAdam(LoopAveraging):
    """The server takes a step of Adam towards the mean."""

    def start(self, method: Method) -> None:  # noqa: ARG002
        how = suiting_optimizer("adam")
        assert how is not None
        self.how, self.direction = how, torch.zeros_like(flat(self.server))
        self.square = torch.full_like(self.direction, how.tau**2)

    def average(self, before: Tensor, models: Tensor) -> Tensor:
        update = self.shares @ models - before
        self.direction = self.how.momentum * self.direction + (1 - self.how.momentum) * update
        self.square = self.how.beta2 * self.square + (1 - self.how.beta2) * update.square()
        return before + self.how.rate * self.direction / (self.square.sqrt() + self.how.tau)


class LoopFedDyn(LoopAveraging):
    """Losses are tilted by the gradients that clients keep."""

    def start(self, method: Method) -> None:
        assert isinstance(method, FedDyn)
        self.alpha = method.alpha
        self.gradients = [torch.zeros_like(flat(self.server)) for _ in self.models]

    def extra_loss(self, client: int, before: Tensor) -> Tensor:
        weights = flat_with_gradient(self.models[client])
        return self.alpha / 2 * (weights - before).square().sum() - weights @ self.gradients[client]

    def average(self, before: Tensor, models: Tensor) -> Tensor:
        for client, model in enumerate(models):
            self.gradients[client] = self.gradients[client] - self.alpha * (model - before)
        return models.mean(0) - torch.stack(self.gradients).mean(0) / self.alpha


class LoopFedNova(LoopAveraging):
    """Updates are divided by clients' steps, which are all the same here."""

    def average(self, before: Tensor, models: Tensor) -> Tensor:
        steps = torch.full_like(self.shares, EPOCHS)
        return before + (self.shares * steps).sum() * ((self.shares / steps) @ (models - before))


def flat_with_gradient(model: torch.nn.Module) -> Tensor:
    return torch.nn.utils.parameters_to_vector(model.parameters())


def flat(model: torch.nn.Module) -> Tensor:
    """Returns a copy of all weights of a model, as one vector."""
    return flat_with_gradient(model).detach().clone()

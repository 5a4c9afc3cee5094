"""Personalised methods as they would usually be written: client by client with stock PyG layers."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import torch
from fleet import EPOCHS, tensors_of
from harness import Scores
from stock import StockNet, mean_test_accuracy
from torch import nn
from torch.nn import functional

from graft.data.graphs import Graph
from graft.federation.method import Method


class LoopPersonal:
    """Clients with a model each; of what they send, the server takes the mean by nodes."""

    architecture = "gcn"
    has_global = False

    def __init__(self, graphs: list[Graph], device: torch.device, method: Method) -> None:
        torch.manual_seed(0)
        self.method = method
        self.data = [tensors_of(graph, device) for graph in graphs]
        self.server = StockNet(self.architecture, graphs[0].features, graphs[0].classes).to(device)
        self.models = [copy.deepcopy(self.server) for _ in graphs]
        self.sent = [copy.deepcopy(self.server) for _ in graphs]
        self.optimizers = [self.make_optimizers(client) for client in range(len(graphs))]
        nodes = torch.tensor([float(graph.nodes) for graph in graphs], device=device)
        self.shares = nodes / nodes.sum()

    def make_optimizers(self, client: int) -> list[torch.optim.Adam]:
        return [adam(self.models[client].parameters())]

    def train(self, client: int) -> None:
        """Trains a client's models in a round; `self.sent` has what is averaged."""
        raise NotImplementedError

    def is_shared(self, name: str) -> bool:  # noqa: ARG002
        """Returns whether a parameter is sent."""
        return True

    def round(self) -> Scores:
        for client in range(len(self.models)):
            self.train(client)
        with torch.no_grad():
            for name, parameter in self.server.named_parameters():
                if self.is_shared(name):
                    stacked = torch.stack([sent.get_parameter(name) for sent in self.sent])
                    parameter.copy_(torch.tensordot(self.shares, stacked, dims=1))
        scores = {"own": mean_test_accuracy(self.models, self.data)}
        if self.has_global:
            scores["global"] = mean_test_accuracy([self.server] * len(self.models), self.data)
        return scores

    def step(
        self, client: int, model: StockNet, optimizer: torch.optim.Adam, near: StockNet | None = None, lam: float = 0.0
    ) -> None:
        """Takes one step on the labels, and on the distance from another model."""
        x, edges, y, train, *_ = self.data[client]
        model.train()
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x, edges)[1][train], y[train])
        if near is not None:
            pairs = zip(model.parameters(), near.parameters(), strict=True)
            loss = loss + lam / 2 * sum((own - other.detach()).square().sum() for own, other in pairs)
        loss.backward()
        optimizer.step()

    def receive(self, model: StockNet) -> None:
        """Puts what is shared of the server's model into another one."""
        with torch.no_grad():
            for name, parameter in self.server.named_parameters():
                if self.is_shared(name):
                    model.get_parameter(name).copy_(parameter)


class LoopDitto(LoopPersonal):
    """A global model, and one of each client's own with a pull towards it."""

    has_global = True

    def make_optimizers(self, client: int) -> list[torch.optim.Adam]:
        return [adam(model.parameters()) for model in (self.sent[client], self.models[client])]

    def train(self, client: int) -> None:
        self.receive(self.sent[client])
        for _ in range(EPOCHS):
            self.step(client, self.sent[client], self.optimizers[client][0])
        for _ in range(EPOCHS):
            self.step(client, self.models[client], self.optimizers[client][1], self.server, self.method.lam)


class LoopPFedMe(LoopPersonal):
    """Models of clients' own near a local copy, which follows them and is sent."""

    has_global = True

    def train(self, client: int) -> None:
        own, local = self.models[client], self.sent[client]
        self.receive(own)
        self.receive(local)
        for _ in range(EPOCHS):
            for _ in range(self.method.inner_steps):
                self.step(client, own, self.optimizers[client][0], local, self.method.lam)
            with torch.no_grad():
                for copied, target in zip(local.parameters(), own.parameters(), strict=True):
                    copied.lerp_(target, self.method.local_step)


class LoopFedRep(LoopPersonal):
    """Heads of clients' own on a body that is averaged."""

    def is_shared(self, name: str) -> bool:
        return not name.startswith("head.")

    def make_optimizers(self, client: int) -> list[torch.optim.Adam]:
        named = list(self.models[client].named_parameters())
        return [adam(leaf for name, leaf in named if self.is_shared(name) == body) for body in (False, True)]

    def train(self, client: int) -> None:
        model = self.sent[client] = self.models[client]
        self.receive(model)
        for trained, optimizer in zip((False, True), self.optimizers[client], strict=True):
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(self.is_shared(name) == trained)
            for _ in range(EPOCHS):
                self.step(client, model, optimizer)


class LoopFedBN(LoopPersonal):
    """Layer normalisation of clients' own in a model that is averaged."""

    architecture = "gin"

    def is_shared(self, name: str) -> bool:
        layer, _, _ = name.rpartition(".")
        return not isinstance(self.server.get_submodule(layer), nn.LayerNorm)

    def train(self, client: int) -> None:
        model = self.sent[client] = self.models[client]
        self.receive(model)
        for _ in range(EPOCHS):
            self.step(client, model, self.optimizers[client][0])


def adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Adam:
    return torch.optim.Adam(parameters, lr=0.01, weight_decay=5e-4)

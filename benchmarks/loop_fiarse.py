"""FIARSE as it would usually be written: client by client with stock PyG layers."""

from __future__ import annotations

import copy
from typing import Any

import torch
from fleet import EPOCHS, tensors_of
from harness import Scores
from stock import StockNet
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

from graft.data.graphs import Graph
from graft.methods.fiarse import FIARSE


class Border(torch.autograd.Function):
    """Weights above a threshold, whose gradient is larger near it."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, threshold: Tensor) -> Tensor:
        size = weights.abs()
        ctx.save_for_backward((size >= threshold) * (1 + 2 * threshold * size / (size + threshold) ** 2))
        return weights * (size >= threshold)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return gradient * ctx.saved_tensors[0], None


class LoopFIARSE:
    """A GCN of which every client trains the largest weights."""

    def __init__(self, graphs: list[Graph], device: torch.device, method: FIARSE) -> None:
        torch.manual_seed(0)
        self.method = method
        self.data = [tensors_of(graph, device) for graph in graphs]
        self.server = StockNet("gcn", graphs[0].features, graphs[0].classes).to(device)
        self.matrices = [name for name, leaf in self.server.named_parameters() if leaf.dim() > 1]

    def round(self) -> Scores:
        sums = {name: torch.zeros_like(leaf) for name, leaf in self.server.named_parameters()}
        counts = {name: torch.zeros_like(leaf) for name, leaf in self.server.named_parameters()}
        for client in range(len(self.data)):
            threshold = self.threshold(self.method.capacity(client))
            model = self.train(client, threshold)
            with torch.no_grad():
                for name, before in self.server.named_parameters():
                    held = before.abs() >= threshold if name in self.matrices else torch.ones_like(before).bool()
                    sums[name] += held * (before - model.get_parameter(name))
                    counts[name] += held
        with torch.no_grad():
            for name, parameter in self.server.named_parameters():
                parameter -= self.method.server_step * sums[name] / counts[name].clamp(min=1)
        return self.score()

    def threshold(self, capacity: float) -> Tensor:
        """Returns the size of the smallest weight that a client of some capacity holds."""
        sizes = torch.cat([self.server.get_parameter(name).detach().abs().flatten() for name in self.matrices])
        return sizes.topk(int(capacity * len(sizes))).values[-1] if capacity < 1 else sizes.new_zeros(())

    def train(self, client: int, threshold: Tensor) -> StockNet:
        x, edges, y, train, *_ = self.data[client]
        model = copy.deepcopy(self.server)
        with torch.no_grad():
            for name in self.matrices:
                parameter = model.get_parameter(name)
                parameter *= parameter.abs() >= threshold
        model.train()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(EPOCHS):
            optimizer.zero_grad()
            used = self.used(model, threshold)
            loss = functional.cross_entropy(functional_call(model, used, (x, edges))[1][train], y[train])
            decay = sum(((leaf != 0) * model.get_parameter(name)).square().sum() for name, leaf in used.items())
            (loss + 5e-4 / 2 * decay).backward()
            optimizer.step()
        return model

    def used(self, model: StockNet, threshold: Tensor) -> dict[str, Tensor]:
        return {
            name: Border.apply(leaf, threshold) if name in self.matrices else leaf
            for name, leaf in model.named_parameters()
        }

    @torch.no_grad()
    def score(self) -> Scores:
        self.server.eval()
        own, shared = [], []
        for client, (x, edges, y, _, _, test) in enumerate(self.data):
            used = self.used(self.server, self.threshold(self.method.capacity(client)))
            for found, logits in (
                (own, functional_call(self.server, used, (x, edges))[1]),
                (shared, self.server(x, edges)[1]),
            ):
                found.append((logits.argmax(1) == y)[test].float().mean())
        return {"own": float(torch.stack(own).mean()), "global": float(torch.stack(shared).mean())}

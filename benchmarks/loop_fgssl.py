"""FGSSL as it would usually be written: client by client with stock PyG layers."""

from __future__ import annotations

import copy

import torch
from fleet import EPOCHS, tensors_of
from harness import Scores
from loop_fedgkc import perturbed
from stock import StockNet, mean_test_accuracy
from torch import Tensor
from torch.nn import functional
from torch_geometric.utils import scatter, softmax

from graft.data.graphs import Graph
from graft.methods.fgssl import FGSSL


class LoopFGSSL:
    """Graph convolutional networks that the averaged one teaches on two views of the graph."""

    def __init__(self, graphs: list[Graph], device: torch.device, method: FGSSL) -> None:
        torch.manual_seed(0)
        self.method = method
        self.data = [tensors_of(graph, device) for graph in graphs]
        self.server = StockNet("gcn", graphs[0].features, graphs[0].classes).to(device)
        self.models = [copy.deepcopy(self.server) for _ in graphs]
        self.optimizers = [torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4) for model in self.models]
        self.nodes = torch.tensor([float(graph.nodes) for graph in graphs], device=device)

    def round(self) -> Scores:
        self.server.eval()
        for client, (model, optimizer) in enumerate(zip(self.models, self.optimizers, strict=True)):
            model.load_state_dict(self.server.state_dict())
            model.train()
            for _ in range(EPOCHS):
                optimizer.zero_grad()
                self.loss(client).backward()
                optimizer.step()
        own = mean_test_accuracy(self.models, self.data)
        self.average()
        return {"own": own, "global": mean_test_accuracy([self.server] * len(self.models), self.data)}

    def loss(self, client: int) -> Tensor:
        model, method = self.models[client], self.method
        x, edges, y, train, *_ = self.data[client]
        labels = functional.cross_entropy(model(x, edges)[1][train], y[train])
        with torch.no_grad():
            teacher = self.server(*perturbed(x, edges, (method.weak_edges, method.weak_features)))[0]
        student = model(*perturbed(x, edges, (method.strong_edges, method.strong_features)))[0]
        teacher, student = functional.normalize(teacher, dim=1), functional.normalize(student, dim=1)
        contrast = self.contrast(student[train], teacher[train], y[train])
        return labels + method.contrast * contrast + method.structure * self.structure(student, teacher, edges)

    def contrast(self, student: Tensor, teacher: Tensor, y: Tensor) -> Tensor:
        log_chances = (student @ teacher.T / self.method.temperature).log_softmax(1)
        pairs = (y.unsqueeze(1) == y).float()
        return -((log_chances * pairs).sum(1) / pairs.sum(1)).mean()

    def structure(self, student: Tensor, teacher: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        wanted, predicted = (
            softmax((points[source] * points[target]).sum(1) / self.method.structure_temperature, target, dim=0)
            for points in (teacher, student)
        )
        gap = wanted * (wanted.clamp(min=1e-12).log() - predicted.clamp(min=1e-12).log())
        by_node = scatter(gap, target, dim_size=len(student))
        linked = torch.bincount(target, minlength=len(student)) > 0
        return by_node[linked].mean()

    @torch.no_grad()
    def average(self) -> None:
        shares = self.nodes / self.nodes.sum()
        for name, parameter in self.server.named_parameters():
            stacked = torch.stack([model.get_parameter(name) for model in self.models])
            parameter.copy_(torch.tensordot(shares, stacked, dims=1))

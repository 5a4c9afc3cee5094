"""FedGKC as it would usually be written: client by client with stock PyG layers."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from fleet import EPOCHS, tensors_of
from harness import Scores
from stock import ARCHITECTURES, StockNet, divergence
from torch import Tensor
from torch.nn import functional
from torch_geometric.utils import dropout_edge

from graft.data.graphs import Graph
from graft.methods.fedgkc import FedGKC
from graft.methods.fedgkc.distillation import VIEWS

Outputs = tuple[Tensor, Tensor]  # embeddings and logits


class LoopFedGKC:
    """Copilots and local models of five architectures that learn from each other in turn."""

    def __init__(self, graphs: list[Graph], device: torch.device, method: FedGKC) -> None:
        torch.manual_seed(0)
        self.method = method
        self.data = [tensors_of(graph, device) for graph in graphs]
        features, classes = graphs[0].features, graphs[0].classes
        self.server = StockNet("gcn", features, classes).to(device)
        self.copilots = [copy.deepcopy(self.server) for _ in graphs]
        self.models = [
            StockNet(ARCHITECTURES[client % len(ARCHITECTURES)], features, classes).to(device)
            for client in range(len(graphs))
        ]
        self.optimizers = [
            [torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4) for model in pair]
            for pair in zip(self.copilots, self.models, strict=True)
        ]
        self.nodes = torch.tensor([float(graph.nodes) for graph in graphs], device=device)

    def round(self) -> Scores:
        knowledge = []
        for client, (copilot, (x, edges, *_)) in enumerate(zip(self.copilots, self.data, strict=True)):
            copilot.load_state_dict(self.server.state_dict())
            for _ in range(EPOCHS):
                for loss, optimizer in self.losses(client):
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
            knowledge.append(self.knowledge(copilot, x, edges))
        self.average(torch.stack(knowledge).clamp(min=0))
        return {"own": self.score()}

    def losses(self, client: int) -> Iterator[tuple[Tensor, torch.optim.Optimizer]]:
        """Yields the loss of the copilot and then that of the local model, against the other as it is by then."""
        copilot, local = self.copilots[client], self.models[client]
        x, edges, y, train, validation, _ = self.data[client]
        for student, teacher, optimizer, share in (
            (copilot, local, self.optimizers[client][0], self.method.feedback),
            (local, copilot, self.optimizers[client][1], 1.0),
        ):
            student.train()
            output = student(x, edges)
            loss = self.method.alpha * functional.cross_entropy(output[1][train], y[train])
            if share:
                target, gate = self.teach(teacher, student, x, edges, y, validation)
                loss = loss + share * gate * self.distillation(target, output, edges)
            if student is local and self.method.self_weight:
                loss = loss + self.method.self_weight * self.self_distillation(local, x, edges)
            yield loss, optimizer

    @torch.no_grad()
    def teach(
        self, teacher: StockNet, student: StockNet, x: Tensor, edges: Tensor, y: Tensor, validation: Tensor
    ) -> tuple[Outputs, Tensor | float]:
        """Returns the teacher's outputs, and whether it is at least as good as its student on validation nodes."""
        teacher.eval()
        target = teacher(x, edges)
        if not self.method.gate:
            return target, 1.0
        student.eval()
        own = student(x, edges)
        student.train()
        correct = [(logits.argmax(1) == y)[validation].sum() for _, logits in (target, own)]
        return target, correct[0] >= correct[1]

    def distillation(self, teacher: Outputs, student: Outputs, edges: Tensor) -> Tensor:
        method = self.method
        loss = (1 - method.alpha - method.beta) * divergence(teacher[1], student[1])
        if method.beta:
            self_loops = torch.arange(len(student[0]), device=edges.device).expand(2, -1)
            source, target = torch.cat([edges, self_loops], 1)
            wanted, predicted = teacher[0].log_softmax(1), student[0].log_softmax(1)
            gap = (wanted[source].exp() * (wanted[source] - predicted[target])).sum(1)
            loss = loss + method.beta * gap.sum() / len(student[0])
        return loss

    def self_distillation(self, local: StockNet, x: Tensor, edges: Tensor) -> Tensor:
        weak_rates, strong_rates = VIEWS[self.method.views]
        local.eval()
        with torch.no_grad():
            weak = local(*perturbed(x, edges, weak_rates))
        local.train()
        strong = local(*perturbed(x, edges, strong_rates))
        return functional.mse_loss(strong[0], weak[0]) + divergence(weak[1], strong[1])

    @torch.no_grad()
    def knowledge(self, copilot: StockNet, x: Tensor, edges: Tensor) -> Tensor:
        copilot.eval()
        chances = copilot(x, edges)[1].softmax(1)
        best = chances.amax(1)
        similarity = functional.cosine_similarity(chances[edges[0]], chances[edges[1]])
        degree = torch.bincount(edges[0], minlength=len(x)).clamp(min=1)
        around = torch.zeros(len(x), device=x.device).index_add_(0, edges[0], similarity) / degree
        return (best + (2 * best - 1) / (chances.shape[1] - 1) - self.method.smoothing * around).mean()

    @torch.no_grad()
    def average(self, knowledge: Tensor) -> None:
        """Averages the copilots, half by nodes and half by knowledge."""
        shares = (self.nodes / self.nodes.sum() + knowledge / knowledge.sum()) / 2
        for name, parameter in self.server.named_parameters():
            stacked = torch.stack([copilot.get_parameter(name) for copilot in self.copilots])
            parameter.copy_(torch.tensordot(shares, stacked, dims=1))

    @torch.no_grad()
    def score(self) -> float:
        accuracies = []
        for model, (x, edges, y, _, _, test) in zip(self.models, self.data, strict=True):
            model.eval()
            accuracies.append((model(x, edges)[1].argmax(1) == y)[test].float().mean())
        return float(torch.stack(accuracies).mean())


def perturbed(x: Tensor, edges: Tensor, rates: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """Returns features and edges of which some are dropped."""
    kept, _ = dropout_edge(edges, p=rates[0], force_undirected=True)
    return x * (torch.rand(x.shape[1], device=x.device) >= rates[1]), kept

"""The five architectures out of stock PyG layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import GATConv, GCNConv, GINConv, SAGEConv, SGConv

ARCHITECTURES = ("gcn", "gat", "sage", "gin", "sgc")  # client k has the one at k modulo 5


def perceptron(inputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 64))


LAYERS = {
    "gcn": lambda inputs: GCNConv(inputs, 64),
    "gat": lambda inputs: GATConv(inputs, 16, heads=4),
    "sage": lambda inputs: SAGEConv(inputs, 64),
    "gin": lambda inputs: GINConv(perceptron(inputs)),
}


class StockNet(nn.Module):
    """Two stock layers, or more, and a linear head; SGC has one layer of two steps."""

    def __init__(self, kind: str, features: int, classes: int, depth: int = 2) -> None:
        super().__init__()
        widths = [features] + [64] * (depth - 1)
        self.layers = nn.ModuleList([SGConv(features, 64, K=2)] if kind == "sgc" else map(LAYERS[kind], widths))
        self.active = kind != "sgc"
        self.head = nn.Linear(64, classes)

    def forward(self, x: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        """Returns embeddings and logits."""
        hidden = x
        for layer in self.layers:
            if hidden is not x:
                hidden = functional.dropout(hidden, training=self.training)
            hidden = layer(hidden, edges)
            hidden = torch.relu(hidden) if self.active else hidden
        return hidden, self.head(functional.dropout(hidden, training=self.training))


def divergence(teacher: Tensor, student: Tensor) -> Tensor:
    return functional.kl_div(student.log_softmax(1), teacher.softmax(1), reduction="batchmean")


@torch.no_grad()
def mean_test_accuracy(models: list[StockNet], data: list[tuple[Tensor, ...]]) -> float:
    """Returns the mean over clients of the accuracy of each client's model on its own test nodes."""
    accuracies = []
    for model, (x, edges, y, _, _, test) in zip(models, data, strict=True):
        model.eval()
        accuracies.append((model(x, edges)[1].argmax(1) == y)[test].float().mean())
    return float(torch.stack(accuracies).mean())

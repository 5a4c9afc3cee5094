"""FedMLP, a reference of FedOMD (ICPP Workshops 2024): FedAvg of a multilayer perceptron, which ignores the graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graft.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedMLP(FedAvg):
    """FedAvg of a multilayer perceptron, whatever `models` is; FedOMD scores the global model."""

    architecture: ClassVar[str | None] = "mlp"

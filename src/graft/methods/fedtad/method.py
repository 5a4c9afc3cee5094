"""FedTAD. Zhu, Li, Wu, Wu, Hu and Li: FedTAD: topology-aware data-free knowledge distillation for subgraph federated
learning. IJCAI 2024."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graft.methods.fedavg import FedAvg
from graft.methods.fedtad.distillation import Distillation, PaperDistillation, ReleasedDistillation


@dataclass(frozen=True)
class FedTAD(Distillation, FedAvg):
    """FedAvg whose model is then distilled, on synthetic nodes, from every client by its reliability for each class."""

    averaged: ClassVar[str | None] = "model"


@dataclass(frozen=True)
class FedTADPaper(PaperDistillation, FedAvg):
    """FedTAD as published."""

    averaged: ClassVar[str | None] = "model"


@dataclass(frozen=True)
class FedTADReleased(ReleasedDistillation, FedAvg):
    """FedTAD with the losses and settings of the authors' released code."""

    averaged: ClassVar[str | None] = "model"

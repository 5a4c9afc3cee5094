"""FedGCN as FedOMD (ICPP Workshops 2024) uses the name: FedAvg of a graph convolutional network.

It is not the method of that name by Yao, Jin, Ravi and Joe-Wong (NeurIPS 2023), whose clients exchange sums of their
neighbours' features before they train.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graft.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedGCN(FedAvg):
    """FedAvg of a graph convolutional network, whatever `models` is; not the NeurIPS 2023 method."""

    architecture: ClassVar[str | None] = "gcn"

"""FedProx. Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith: Federated optimization in heterogeneous networks.
MLSys 2020."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge

from graft.fields import Search
from graft.methods.fedavg import FedAvg
from graft.tensors.trees import Weights, squared_distance

if TYPE_CHECKING:
    from torch import Tensor

    from graft.federation.fleet import Fleet


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg with a pull towards the model that was received."""

    mu: Annotated[float, Ge(0), Search(1e-4, 1.0, log=True)] = 1e-3  # strength of the pull; 0 is FedAvg

    def loss(self, fleet: Fleet, weights: Weights, received: Weights) -> Tensor:
        pull = squared_distance(weights, received, skip=fleet.model.frozen)
        return super().loss(fleet, weights, received) + self.mu / 2 * pull

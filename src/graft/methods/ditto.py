"""Ditto. Li, Hu, Beirami and Smith: Ditto: fair and robust federated learning through personalization. ICML 2021."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge

from graft.federation.method import step
from graft.fields import Search
from graft.methods.fedavg import FedAvg
from graft.tensors.trees import Tree, Weights, squared_distance

if TYPE_CHECKING:
    from torch import Tensor

    from graft.federation.fleet import Fleet


@dataclass(frozen=True)
class Ditto(FedAvg):
    """FedAvg, beside which every client trains a model of its own with a pull towards the global one."""

    # lambda: strength of the pull; 0 is local training, and ever more of it keeps the global model.
    lam: Annotated[float, Ge(0), Search(1e-3, 10.0, log=True)] = 1.0
    personal_epochs: Annotated[int, Ge(0)] = 0  # epochs of a client's own model in a round; 0: as many as of the global

    @step
    def train(self, fleet: Fleet, model: Weights) -> Tree:
        # First the global model, which draws the random numbers that it would draw in FedAvg.
        trained = fleet.fit(model, lambda weights, batch: self.loss(batch, weights, model), name="global")
        fleet.state.model = fleet.fit(
            fleet.state.model,
            lambda weights, batch: self.personal_loss(batch, weights, model),
            training=replace(fleet.training, epochs=self.personal_epochs or fleet.training.epochs),
        )
        return Tree(model=trained, weight=fleet.weight)

    def personal_loss(self, fleet: Fleet, weights: Weights, received: Weights) -> Tensor:
        pull = squared_distance(weights, received, skip=fleet.model.frozen)
        return self.loss(fleet, weights, received) + self.lam / 2 * pull

"""Ditto. Li, Hu, Beirami and Smith: Ditto: fair and robust federated learning through personalization. ICML 2021."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from annotated_types import Ge

from graft.federation.method import step
from graft.fields import Search
from graft.methods.fedavg import FedAvg
from graft.tensors.trees import Tree, Weights, map_tree, squared_distance, unsqueeze_to

if TYPE_CHECKING:
    from torch import Tensor

    from graft.federation.fleet import Fleet


FACTORS = {"usual": 1.0, "weak": 0.1, "strong": 2.0}  # of the pull, among which a client may choose
FEW = 5  # validation nodes below which a client keeps the usual one


@dataclass(frozen=True)
class Ditto(FedAvg):
    """FedAvg, beside which every client trains a model of its own with a pull towards the global one."""

    keeps_start: ClassVar[bool] = True
    judges_unless: ClassVar = {"choose": (False,)}

    # lambda: strength of the pull; 0 is local training, and ever more of it keeps the global model.
    lam: Annotated[float, Ge(0), Search(1e-3, 10.0, log=True)] = 1.0
    # Whether a client trains an own model with 0.1, 1 and 2 times that pull, and uses the one that is best on its
    # validation nodes; with fewer than five of them it keeps the usual pull.
    choose: bool = False
    personal_epochs: Annotated[int, Ge(0)] = 0  # epochs of a client's own model in a round; 0: as many as of the global

    def start_client(self, fleet: Fleet) -> None:
        super().start_client(fleet)
        if self.choose:
            fleet.state.candidates = Tree({name: fleet.initial() for name in FACTORS})

    @step
    def train(self, fleet: Fleet, model: Weights) -> Tree:
        # First the global model, which draws the random numbers that it would draw in FedAvg.
        trained = fleet.fit(model, lambda weights, batch: self.loss(batch, weights, model), name="global")
        if self.choose:
            candidates = fleet.state.candidates = Tree(
                {name: self.fit_own(fleet, fleet.state.candidates[name], model, name) for name in FACTORS}
            )
            fleet.state.model = best_validated(fleet, candidates)
        else:
            fleet.state.model = self.fit_own(fleet, fleet.state.model, model, "usual")
        return Tree(model=trained, weight=fleet.weight)

    def fit_own(self, fleet: Fleet, own: Weights, received: Weights, name: str) -> Weights:
        """Returns a client's own model, trained with the pull of that name."""
        strength = FACTORS[name] * self.lam
        training = replace(fleet.training, epochs=self.personal_epochs or fleet.training.epochs)
        return fleet.fit(own, partial(self.pulled_loss, strength, received), name, training=training)

    def pulled_loss(self, strength: float, received: Weights, weights: Weights, batch: Fleet) -> Tensor:
        pull = squared_distance(weights, received, skip=batch.model.frozen)
        return self.loss(batch, weights, received) + strength / 2 * pull


def best_validated(fleet: Fleet, candidates: Weights) -> Weights:
    """Returns, client by client, the model that classifies most validation nodes correctly: the first of equals, or of
    all where there are few such nodes."""
    enough = fleet.labels.judged.sum(1) >= FEW
    usual, *others = candidates.values()
    best: Weights = usual
    most = fleet.count_validated(fleet.predict(usual).logits)
    for model in others:
        correct = fleet.count_validated(fleet.predict(model).logits)
        better = enough & (correct > most)
        best = select_rows(better, model, best)
        most = torch.where(better, correct, most)
    return best


def select_rows(chosen: Tensor, model: Weights, other: Weights) -> Tree:
    """Returns the rows of a stacked model where they are chosen, bool [clients], and those of another elsewhere."""
    return map_tree(lambda new, old: torch.where(unsqueeze_to(chosen, new), new, old), model, other)

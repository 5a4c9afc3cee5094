"""MOON. Li, He and Song: Model-contrastive federated learning. CVPR 2021."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import torch
from annotated_types import Ge, Gt
from torch import Tensor
from torch.nn import functional

from graft.federation.fleet import Nodes
from graft.federation.method import step
from graft.fields import Search
from graft.methods.fedavg import FedAvg
from graft.tensors.trees import Tree, Weights
from graft.training.losses import mean_over

if TYPE_CHECKING:
    from graft.federation.fleet import Fleet


@dataclass(frozen=True)
class MOON(FedAvg):
    """FedAvg with a contrastive loss: embeddings nearer to the received model's than to those of the client's last one.

    A client that has not trained before has no last model, and then no such loss.
    """

    mu: Annotated[float, Ge(0), Search(1e-3, 10.0, log=True)] = 1.0  # weight of the contrast; 0 is FedAvg
    temperature: Annotated[float, Gt(0), Search(0.1, 2.0, log=True)] = 0.5  # tau: divides the cosines of embeddings
    nodes: Nodes = "all"  # whose embeddings are contrasted: those of all nodes, or of the training nodes

    def start_client(self, fleet: Fleet) -> None:
        super().start_client(fleet)
        fleet.state.trained = torch.zeros(len(fleet.clients), dtype=torch.bool, device=fleet.device)

    @step
    def train(self, fleet: Fleet, model: Weights) -> Tree:
        backwards = self.backwards(fleet, model)
        fleet.state.model = fleet.fit(model, lambda weights, batch: self.contrastive_loss(batch, weights, backwards))
        fleet.state.trained = torch.ones_like(fleet.state.trained)
        return Tree(model=fleet.state.model, weight=fleet.weight)

    def contrastive_loss(self, fleet: Fleet, weights: Weights, backwards: Tensor) -> Tensor:
        output = fleet.forward(weights)
        contrast = mean_over(self.contrast(output.embedding, fleet.at_nodes(backwards)), fleet.node_mask(self.nodes))
        return fleet.cross_entropy(output.logits) + self.mu * contrast

    def contrast(self, embedding: Tensor, backwards: Tensor) -> Tensor:
        """-log(e^a / (e^a + e^b)) = log(1 + e^(b - a)) of the cosines a and b over the temperature, node by node.

        Written with b - a, so that two equal references give no gradient at all, not even a rounding error.
        """
        return functional.softplus((unit(embedding) * backwards).sum(2) / self.temperature)

    def backwards(self, fleet: Fleet, received: Weights) -> Tensor:
        """Returns the last model's normalised embedding of every node less that of the received model."""
        positive, negative = (unit(fleet.predict(model).embedding) for model in (received, fleet.state.model))
        trained: Tensor = fleet.state.trained
        return (negative - positive) * trained.view(-1, 1, 1)


def unit(embedding: Tensor) -> Tensor:
    """Normalised embeddings; one that is all zero, as after a ReLU, stays so."""
    return functional.normalize(embedding, dim=2, eps=1e-8)

"""FGSSL. Huang, Wan, Ye and Du: Federated graph semantic and structural learning. IJCAI 2023."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor

from graft.fields import Search
from graft.graphs.node_subset import gather_nodes
from graft.methods.fedavg import FedAvg
from graft.methods.fgssl.contrast import Against, semantic_contrast
from graft.methods.fgssl.structure import structure_loss
from graft.tensors.trees import Weights

if TYPE_CHECKING:
    from graft.federation.fleet import Fleet


@dataclass(frozen=True)
class FGSSL(FedAvg):
    """FedAvg in which the received model teaches, on two views of the graph: embeddings gather around its embeddings of
    their class, and similarities of neighbours become distributed as its own."""

    # Weight of the contrast between classes; 0: none.
    contrast: Annotated[float, Ge(0), Search(0.01, 10.0, log=True)] = 3.0
    # Weight of the distillation of similarities between neighbours; 0: none.
    structure: Annotated[float, Ge(0), Search(0.01, 10.0, log=True)] = 0.1
    # tau: divides the cosines of the contrast.
    temperature: Annotated[float, Gt(0), Search(0.05, 1.0, log=True)] = 0.1
    # omega: divides the cosines of neighbours.
    structure_temperature: Annotated[float, Gt(0), Search(0.05, 1.0, log=True)] = 0.1
    # What a pair of one class is contrasted with: all training nodes, or the pair and those of other classes.
    against: Against = "all"
    # Training nodes of a client that are contrasted in a step, drawn anew in each where there are more.
    most_nodes: Annotated[int, Ge(1)] = 1024
    weak_edges: Annotated[float, Ge(0), Lt(1)] = 0.3  # share of the edges that the teacher's view lacks
    weak_features: Annotated[float, Ge(0), Lt(1)] = 0.3  # share of the feature columns that are hidden in that view
    strong_edges: Annotated[float, Ge(0), Lt(1)] = 0.8  # share of the edges that the view in training lacks
    strong_features: Annotated[float, Ge(0), Lt(1)] = 0.5  # share of the feature columns that are hidden in that view

    def graph_views(self) -> int:
        return 2 if self.contrast or self.structure else 0

    def loss(self, fleet: Fleet, weights: Weights, received: Weights) -> Tensor:
        loss = super().loss(fleet, weights, received)
        if not self.graph_views():
            return loss
        weak = fleet.graph.perturbed(fleet.random, self.weak_edges, self.weak_features)
        strong = fleet.graph.perturbed(fleet.random, self.strong_edges, self.strong_features)
        teacher = fleet.predict(received, graph=weak).embedding
        student = fleet.forward(weights, graph=strong).embedding
        if self.contrast:
            loss = loss + self.contrast * self.semantic_loss(fleet, student, teacher)
        if self.structure:
            # Neighbours are those of the client's own graph, whatever edges a view lacks.
            loss = loss + self.structure * structure_loss(fleet.graph, student, teacher, self.structure_temperature)
        return loss

    def semantic_loss(self, fleet: Fleet, student: Tensor, teacher: Tensor) -> Tensor:
        """Returns the contrast over training nodes, or over a draw of them where there are many."""
        nodes, classes, shares = fleet.train_nodes
        real = shares > 0
        # Drawn for small clients too, so that a client beside a large one has the same draws after it as alone.
        draws = fleet.random.uniform(nodes.shape[1])
        if nodes.shape[1] > self.most_nodes:
            chosen = torch.where(real, draws, 2).argsort(1)[:, : self.most_nodes]
            nodes, classes, real = (values.gather(1, chosen) for values in (nodes, classes, real))
        student, teacher = gather_nodes(student, nodes), gather_nodes(teacher, nodes)
        return semantic_contrast(student, teacher, classes, real, self.temperature, self.against)

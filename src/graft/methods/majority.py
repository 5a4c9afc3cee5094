"""The majority class, the reference that any model must beat: what the labels alone say of a node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from graft.federation.method import Method, step
from graft.tensors.trees import Tree

if TYPE_CHECKING:
    from graft.federation.clients import Clients
    from graft.federation.fleet import Fleet
    from graft.federation.server import Server

LEAST_SHARE = 1e-12  # of a class that a client has never seen: its logarithm must be finite


@dataclass(frozen=True)
class Majority(Method):
    """Every client predicts the share of each class among its own training labels; one round is as good as many.

    A client without labels takes all classes for equally frequent. The models of the experiment stay as they start.
    """

    heterogeneous: ClassVar[bool] = True
    keeps_start: ClassVar[bool] = False
    capturable: ClassVar[bool] = True

    def start_client(self, fleet: Fleet) -> None:
        super().start_client(fleet)
        fleet.state.shares = torch.full((len(fleet.clients), fleet.classes), 1 / fleet.classes, device=fleet.device)

    def round(self, server: Server, clients: Clients) -> None:  # noqa: ARG002
        clients.ask(self.train)

    @step
    def train(self, fleet: Fleet) -> Tree:
        """Count the own training labels."""
        counts = fleet.labels.class_counts
        total = counts.sum(1, keepdim=True)
        fleet.state.shares = torch.where(total > 0, counts / total.clamp(min=1), fleet.state.shares)
        return Tree()

    def logits(self, fleet: Fleet) -> Tensor:
        shares: Tensor = fleet.state.shares
        return shares.clamp(min=LEAST_SHARE).log().unsqueeze(1).expand(-1, fleet.graph.nodes, -1)

"""Local-only training: what a client reaches without any exchange."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from graft.federation.method import Method, step
from graft.tensors.trees import Tree

if TYPE_CHECKING:
    from graft.federation.clients import Clients
    from graft.federation.fleet import Fleet
    from graft.federation.server import Server


@dataclass(frozen=True)
class Local(Method):
    """Every client trains alone; rounds only set the budget and when models are evaluated."""

    heterogeneous: ClassVar[bool] = True
    capturable: ClassVar[bool] = True

    def round(self, server: Server, clients: Clients) -> None:  # noqa: ARG002
        clients.ask(self.train)

    @step
    def train(self, fleet: Fleet) -> Tree:
        fleet.state.model = fleet.fit(fleet.state.model, lambda weights, batch: batch.label_loss(weights))
        return Tree()

"""Centralised training: one model on the whole graph, the reference that no federation can have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from graft.federation.method import Placement
from graft.methods.local import Local

if TYPE_CHECKING:
    from graft.data.federation import FederationData


@dataclass(frozen=True)
class Centralised(Local):
    """All data in one place, scored on each client's own nodes; not federated, so nothing is counted as sent."""

    one_model: ClassVar[bool] = True

    edges: Literal["all", "inside"] = "all"  # "inside" leaves out the edges between clients, as federations do
    # "own" scores each client on its own graph, without the edges between clients.
    inference: Literal["whole", "own"] = "whole"

    def place(self, federation: FederationData) -> Placement:
        """Returns one graph of all clients' nodes, which still knows whose each one was."""
        scored = federation.clean or federation
        # All clients' own graphs side by side are the whole graph without the edges between them.
        scoring = scored.pooled("inside" if self.inference == "own" else self.edges)
        same = federation.clean is None and self.inference == "whole"
        return Placement(
            [federation.pooled(self.edges)], None if same else [scoring], federation.membership, scored.membership
        )

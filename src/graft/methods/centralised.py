"""Centralised training: one model on the whole graph, the reference that no federation can have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from graft.methods.local import Local


@dataclass(frozen=True)
class Centralised(Local):
    """All data in one place, scored on each client's own nodes; not federated, so nothing is counted as sent."""

    one_model: ClassVar[bool] = True
    pooled: ClassVar[bool] = True

    edges: Literal["all", "inside"] = "all"  # "inside" leaves out the edges between clients, as federations do
    # "own" scores each client on its own graph, without the edges between clients.
    inference: Literal["whole", "own"] = "whole"

"""LocGCN, a reference of FedOMD (ICPP Workshops 2024): every client trains a graph convolutional network alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graft.methods.local import Local


@dataclass(frozen=True)
class LocGCN(Local):
    """Local training of a graph convolutional network, whatever `models` is."""

    architecture: ClassVar[str | None] = "gcn"

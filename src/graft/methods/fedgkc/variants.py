"""FedGKC as published, and the control in which nothing travels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from graft.fields import Search
from graft.methods.fedgkc.method import Answer, FedGKC, Schedule, Teacher


@dataclass(frozen=True)
class FedGKCPaper(FedGKC):
    """FedGKC as published: both models always teach each other, by neighbourhoods and predictions, and two views."""

    copilot: str = "gcn"
    alpha: float = 0.6
    beta: float = 0.2
    feedback: Annotated[float, Search()] = 1.0
    gate: bool = False
    # Algorithm 1 can be read either way; with this order accuracy is about what the paper prints, with the other lower.
    schedule: Schedule = "local_first"
    self_weight: Annotated[float, Search()] = 1.0
    teacher: Teacher = "copilot"
    answer: Answer = "local"


@dataclass(frozen=True)
class FedGKCAlone(FedGKC):
    """FedGKC's two models at every client without a copilot that travels: what FedGKC has more is what others gave."""

    reveals: ClassVar = {"train/copilot": None}
    averages: ClassVar[tuple[str, ...]] = ()
    averaged: ClassVar[str | None] = None

    travels: bool = False

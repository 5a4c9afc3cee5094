"""From counts of correct nodes to accuracies, and to the best round."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan

import numpy as np
import torch
from torch import Tensor

from graft.federation.clients import StepLosses
from graft.federation.metrics import KINDS


@dataclass(frozen=True)
class ClientScores:
    """A metric of one set of models on every client's own nodes; nan where it is not defined, as without a node."""

    per_client: np.ndarray  # float64 [clients, 3]: train, validation, test
    nodes: np.ndarray  # [clients]

    def mean(self, kind: str) -> float | None:
        """Returns the plain mean over the clients for which there is a value; None if there is for none."""
        values, _ = self._scored(kind)
        return float(values.mean()) if len(values) else None

    def node_weighted(self, kind: str) -> float | None:
        """Returns the mean weighted by how many nodes each client has."""
        values, nodes = self._scored(kind)
        return float(values @ nodes / nodes.sum()) if len(values) else None

    def _scored(self, kind: str) -> tuple[np.ndarray, np.ndarray]:
        values = self.per_client[:, KINDS.index(kind)]
        scored = ~np.isnan(values)
        return values[scored], self.nodes[scored]

    def clients(self, kind: str) -> list[float | None]:
        values: list[float] = self.per_client[:, KINDS.index(kind)].tolist()
        return [None if isnan(value) else value for value in values]


def accuracy(correct: Tensor, totals: Tensor, nodes: Tensor) -> ClientScores:
    """Returns accuracies from counts [clients, pooled, 3]; pooled are clients whose graphs were made one."""
    with np.errstate(invalid="ignore"):  # 0 / 0 is nan: nothing to score
        shares = correct.cpu().flatten(0, 1).numpy() / totals.cpu().flatten(0, 1).numpy()
    return ClientScores(shares, nodes.cpu().flatten().numpy())


@dataclass
class Best:
    """The round with the best validation score so far; of equals, the first."""

    higher: bool = True  # whether a higher score is a better one
    round: int = 0
    validation: float | None = None

    def see(self, round: int, validation: float | None) -> bool:
        """Returns whether a round is better than all before it, and if so keeps it."""
        if validation is None or (self.validation is not None and not self._better(validation, self.validation)):
            return False
        self.round, self.validation = round, validation
        return True

    def _better(self, score: float, other: float) -> bool:
        return score > other if self.higher else score < other


@dataclass(frozen=True)
class Losses:
    """The last losses of a round."""

    owners: list[tuple[str, int]]  # step and client of each
    values: Tensor

    def first_not_finite(self) -> tuple[str, int] | None:
        """Returns the step and the client of the first loss that is not a finite number, if any."""
        not_finite = ~self.values.isfinite()
        return self.owners[int(not_finite.int().argmax())] if bool(not_finite.any()) else None

    def mean(self) -> float | None:
        return float(self.values.mean()) if self.owners else None


def gather_losses(losses: StepLosses, device: torch.device) -> tuple[list[tuple[str, int]], Tensor]:
    """Returns whose the last losses of a round are, and the losses one after the other."""
    owners = [(step, client) for step, clients, _ in losses for client in clients]
    values = [loss.detach().reshape(-1) for _, _, loss in losses]
    return owners, torch.cat(values) if values else torch.empty(0, device=device)

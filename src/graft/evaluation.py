"""From counts of correct nodes to accuracies."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan

import torch
from torch import Tensor

KINDS = ("train", "validation", "test")


@dataclass(frozen=True)
class Accuracy:
    """Accuracies of one set of models on every client's own nodes; nan where a client has no such node."""

    per_client: Tensor  # float64 [clients, 3]: train, validation, test
    nodes: Tensor  # [clients]

    def mean(self, kind: str) -> float | None:
        """The plain mean over the clients that have such nodes; None if no client has."""
        return number(self.per_client[:, KINDS.index(kind)].nanmean())

    def node_weighted(self, kind: str) -> float | None:
        """The mean weighted by how many nodes each client has."""
        values = self.per_client[:, KINDS.index(kind)]
        known = ~values.isnan()
        return number((values * self.nodes)[known].sum() / self.nodes[known].sum())

    def clients(self, kind: str) -> list[float | None]:
        values: list[float] = self.per_client[:, KINDS.index(kind)].tolist()
        return [None if isnan(value) else value for value in values]


def number(value: Tensor) -> float | None:
    return None if value.isnan() else float(value)


def accuracy(correct: Tensor, totals: Tensor, nodes: Tensor) -> Accuracy:
    """Accuracies from counts [clients, groups, 3]; groups are clients whose graphs were pooled into one."""
    shares = correct.flatten(0, 1).double() / totals.flatten(0, 1)  # 0 / 0 is nan: nothing to score
    return Accuracy(shares.cpu(), nodes.flatten().double().cpu())


@dataclass
class Best:
    """The round with the best validation accuracy so far; of equals, the first."""

    round: int = 0
    validation: float = float("-inf")

    def see(self, round: int, validation: float | None) -> bool:
        if validation is not None and validation > self.validation:
            self.round, self.validation = round, validation
            return True
        return False


@dataclass(frozen=True)
class Losses:
    """The last losses of a round, fetched from the device in one go."""

    owners: list[tuple[str, int]]  # step and client of each
    values: Tensor

    def first_bad(self) -> tuple[str, int] | None:
        """The step and the client of the first loss that is not a finite number, if any."""
        bad = ~self.values.isfinite()
        return self.owners[int(bad.int().argmax())] if bool(bad.any()) else None

    def mean(self) -> float | None:
        return float(self.values.mean()) if self.owners else None


def fetch(losses: list[tuple[str, list[int], Tensor]]) -> Losses:
    values = [loss.detach().reshape(-1) for _, _, loss in losses]
    owners = [(step, client) for step, clients, _ in losses for client in clients]
    return Losses(owners, torch.cat(values).cpu() if values else torch.empty(0))

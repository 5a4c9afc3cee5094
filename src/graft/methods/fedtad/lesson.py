"""What the server's models learn from in FedTAD: teachers, their votes, and who teaches whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from graft.tensors.trees import Tree, Weights, flatten

if TYPE_CHECKING:
    from graft.models.architecture import Model
    from graft.tensors.randomness import Stream


@dataclass(frozen=True)
class Lesson:
    """What does not change while the server's models train in a round."""

    model: Model
    teachers: Weights  # stacked
    votes: Tensor  # how much each teacher counts at each node for each student, [students or 1, teachers, nodes]


@dataclass(frozen=True)
class SyntheticLesson(Lesson):
    """The same, where a generator makes the nodes."""

    common_votes: Tensor  # of all teachers, for the generator that students share, [teachers, nodes]
    labels: Tensor  # class of each synthetic node
    norm: Tensor  # mean feature norm of real nodes


@dataclass
class Students:
    """The server's models while they train, stacked: one, or one for every client of the round."""

    weights: Tree
    optimizer: Tree
    random: Stream


def relative_reliability(reliability: Tensor, scope: Tensor) -> Tensor:
    """Eq. 6: the share of each teacher in the reliability of a class, [students, teachers, classes]; shares add up to
    1 over the teachers, or to 0 for a class of which no teacher is reliable."""
    masked = scope.unsqueeze(2) * reliability
    total = masked.sum(1, keepdim=True)
    return torch.where(total > 0, masked / total.clamp(min=1e-12), 0)


def teacher_votes(
    reliability: Tensor, scope: Tensor, labels: Tensor, losses: Literal["mean", "sum"] = "mean"
) -> Tensor:
    """Returns the share of each teacher at each synthetic node, for a mean divided by how many nodes have its class:
    [students, teachers, nodes]."""
    shares = relative_reliability(reliability, scope)[:, :, labels]
    if losses == "sum":
        return shares
    counts = torch.zeros(reliability.shape[1], device=reliability.device)
    counts.index_add_(0, labels, torch.ones_like(labels).to(reliability))
    return shares / counts[labels]


def mixing_coefficients(students: Weights, teachers: Weights) -> Tensor:
    """Returns the shares in which each student is a mean of the teachers, [students, teachers], by least squares.

    A personalised host does not report whom it averaged, but its models do: there are far more weights than clients.
    """

    def rows(models: Weights) -> Tensor:
        return torch.cat([leaf.flatten(1) for _, leaf in flatten(models) if leaf.is_floating_point()], dim=1).double()

    sources = rows(teachers)
    centre = sources.mean(0)
    offsets = sources - centre
    inverse = torch.linalg.pinv(offsets @ offsets.T, hermitian=True)
    shares: Tensor = (rows(students) - centre) @ offsets.T @ inverse
    shares += (1 - shares.sum(1, keepdim=True)) / len(sources)  # they add up to 1
    return shares

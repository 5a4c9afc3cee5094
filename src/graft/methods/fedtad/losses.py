"""The losses of FedTAD's server phase: of students against teachers, and of the generator.

Logits are [models, nodes, classes]; votes say how much each teacher counts at each node for each student,
[students or 1, teachers, nodes].
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def prediction_gap(students: Tensor, teachers: Tensor, votes: Tensor) -> Tensor:
    """Eq. 10: KL(student || teacher), weighted over teachers and nodes; one number a student."""
    target = torch.einsum("stn,tnc->snc", votes, teachers.log_softmax(2))
    log_probabilities = students.log_softmax(2)
    # The derivative of the student's own logarithm vanishes in the sum over classes; left out, it leaves no rounding
    # behind, which Adam would blow up where student and teachers agree.
    gap = votes.sum(1).unsqueeze(2) * log_probabilities.detach() - target
    return (log_probabilities.exp() * gap).sum((1, 2))


def logit_gap(students: Tensor, teachers: Tensor, votes: Tensor) -> Tensor:
    """Returns the mean absolute difference of logits, weighted over teachers and nodes; one number a student."""
    return ((students.unsqueeze(1) - teachers).abs().mean(3) * votes).sum((1, 2))


def recognition(teachers: Tensor, labels: Tensor, votes: Tensor) -> Tensor:
    """Eq. 8: cross-entropy of the teachers on the labels of synthetic nodes; votes are [teachers, nodes]."""
    targets = labels.expand(len(teachers), -1).unsqueeze(2)
    cross_entropy = -teachers.log_softmax(2).gather(2, targets).squeeze(2)
    return (votes * cross_entropy).sum()


def mean_cosine(features: Tensor, noise: Tensor, teachers: int) -> Tensor:  # noqa: ARG001
    """Eq. 9: over all pairs of nodes, each with itself included, which makes it the length of a mean, squared."""
    return functional.normalize(features, dim=1, eps=1e-12).mean(0).square().sum()


def nearness(features: Tensor, noise: Tensor, teachers: int) -> Tensor:
    """Near 1 for nodes that hardly differ where their noise does; added up once a teacher."""
    feature_distances = torch.cdist(features, features, p=1) / features.shape[1]
    noise_distances = torch.cdist(noise, noise).square() / noise.shape[1]
    return teachers * (-(noise_distances * feature_distances).mean()).exp()


DIVERGENCES = {"paper": prediction_gap, "released": logit_gap}
DIVERSITIES = {"paper": mean_cosine, "released": nearness}

"""Losses that two or more methods use; each gives one number a client."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional


def mean_over(values: Tensor, nodes: Tensor) -> Tensor:
    """Returns the mean of [clients, nodes] over some nodes of each client; zero for a client without any."""
    return (values * nodes).sum(1) / nodes.sum(1).clamp(min=1)


def log_softmax(logits: Tensor) -> Tensor:
    """Returns log-probabilities over the last of three axes."""
    if logits.is_cuda or logits.shape[2] >= 16:
        return functional.log_softmax(logits, 2)
    return functional.log_softmax(logits.mT, 1).mT  # CPUs were seen to be ten times as fast along a long axis


def softmax(logits: Tensor) -> Tensor:
    """Returns probabilities over the last of three axes."""
    if logits.is_cuda or logits.shape[2] >= 16:
        return functional.softmax(logits, 2)
    return functional.softmax(logits.mT, 1).mT  # as in `log_softmax`


def focal(log_likelihood: Tensor, gamma: float) -> Tensor:
    """Returns log-likelihoods times (1 - p) ** gamma, so that easy nodes hardly count (Lin et al., ICCV 2017).

    Where p rounds to 1 the power has no finite slope for gamma below 1, hence the bound.
    """
    return (-log_likelihood.expm1()).clamp(min=torch.finfo(log_likelihood.dtype).eps) ** gamma * log_likelihood


def divergence(teacher: Tensor, student: Tensor, nodes: Tensor, temperature: float = 1.0) -> Tensor:
    """Returns KL(teacher || student) of two sets of logits: a sum over classes and a mean over nodes.

    The teacher is a fixed target, so no gradient reaches it. A temperature softens both, and its square keeps the
    gradient as large as without (Hinton, Vinyals and Dean, 2015).
    """
    if temperature != 1:
        teacher, student = teacher / temperature, student / temperature
    target, predicted = log_softmax(teacher.detach()), log_softmax(student)
    return temperature**2 * mean_over((target.exp() * (target - predicted)).sum(2), nodes)


def mean_prediction(logits: Tensor, others: Tensor) -> Tensor:
    """Returns logits of the mean of what two models predict."""
    return torch.logaddexp(log_softmax(logits), log_softmax(others)) - math.log(2)
